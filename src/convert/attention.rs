//! Computes every attention module from both files, and from random weights that went through the plan.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::OnceLock;

use indexmap::IndexMap;

use crate::bind::{AxisSizes, Bound};
use crate::catalog::{Catalog, TensorMeta};
use crate::diag::{Diagnostic, Errors, VerifyCode};
use crate::dtype::Dtype;
use crate::format::Reader;
use crate::mapping::Layout;
use crate::mapping::forward::{Forward, stored_name};
use crate::mapping::key::Captures;
use crate::mapping::select::Selection;
use crate::parallel::in_parallel;
use crate::plan::{Plan, Step, ValueOp};
use crate::progress::Progress;
use crate::verify::forward::{Differences, ForwardError, ForwardSide, Weights, compare_module};

/// Random weights are made for modules of up to this many bytes; memory is bounded by it.
pub(super) const MOST_RANDOM: u64 = 64 << 20;

/// The largest relative difference of computations whose weights are the same bits; only the order of sums differs.
const EXACT: f64 = 1e-9;

/// What was computed.
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// Modules computed from both files.
    pub modules: u64,
    /// The same of each kind of attention, by its name.
    pub kinds: IndexMap<String, u64>,
    /// The largest differences over these.
    pub files: Differences,
    /// Module shapes computed with random weights.
    pub random_modules: u64,
    /// The largest differences over these.
    pub random: Differences,
    /// The largest relative difference that is accepted of the files.
    pub tolerance: f64,
    /// The largest relative difference that is accepted of random weights.
    pub random_tolerance: f64,
    /// Why something was not computed, and how many modules it concerns.
    pub abstained: Vec<(String, u64)>,
    /// What differs.
    pub differences: Vec<Diagnostic>,
}

/// What tells modules apart for random weights: shapes and types of their tensors.
type Shape = Vec<(Vec<u64>, Dtype)>;

/// A module as both files hold it.
pub(super) struct Module {
    /// The kind of attention, an index.
    pub(super) kind: usize,
    pub(super) captures: Captures,
    pub(super) sizes: AxisSizes,
    /// Its source tensors, indices into the catalog.
    pub(super) tensors: Vec<usize>,
}

/// What the computations share.
pub(super) struct Computation<'a> {
    pub(super) selection: &'a Selection,
    pub(super) bound: &'a Bound,
    pub(super) plan: &'a Plan,
    pub(super) source: &'a dyn Reader,
    /// The source's catalog with each tensor in a file of its own, made when it is first wanted.
    pub(super) isolated: OnceLock<Catalog>,
}

impl Computation<'_> {
    /// Computes and compares.
    ///
    /// # Errors
    /// Returns cancellation and what the system refuses to read; everything else is part of the result.
    pub(super) fn run(
        &self,
        target: &dyn Reader,
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<Attention, Errors> {
        let (tolerance, random_tolerance) = self.tolerances();
        let mut found = Attention { tolerance, random_tolerance, ..Attention::default() };
        let (source_layout, target_layout) = (self.selection.source(), self.selection.target());
        for (layout, other) in [(source_layout, target_layout), (target_layout, source_layout)] {
            for kind in layout.forwards.keys().filter(|kind| !other.forwards.contains_key(*kind)) {
                let what = if kind.is_empty() { String::new() } else { format!(" the attention `{kind}`") };
                let why = format!("the layout `{}` does not say how it computes{what}", other.name);
                found.abstained.push((why, 0));
            }
        }
        if source_layout.forwards.is_empty() && target_layout.forwards.is_empty() {
            found
                .abstained
                .push((format!("the layout `{}` does not say how it computes", source_layout.name), 0));
        }
        let (kinds, pairs): (Vec<&String>, Vec<(&Forward, &Forward)>) = source_layout
            .forwards
            .iter()
            .filter_map(|(kind, a)| Some((kind, (a, target_layout.forwards.get(kind)?))))
            .unzip();
        if pairs.is_empty() {
            return Ok(found);
        }
        let modules: Vec<Module> =
            pairs.iter().enumerate().flat_map(|(kind, (a, b))| self.modules(kind, a, b)).collect();
        let source = FileWeights { reader: self.source, names: self.source_names(source_layout) };
        let target =
            FileWeights { reader: target, names: self.target_names(target_layout, target.catalog()) };
        let mut shapes: HashSet<(usize, Shape)> = HashSet::default();
        let fresh: Vec<bool> =
            modules.iter().map(|module| shapes.insert((module.kind, self.shape(module)))).collect();
        let one = |at: usize| {
            let module = &modules[at];
            let (a, b) = pairs[module.kind];
            let sides =
                (ForwardSide { forward: a, weights: &source }, ForwardSide { forward: b, weights: &target });
            let files = compare_module(sides.0, sides.1, &module.captures, &module.sizes, at as u64);
            let random = (fresh[at] && files.is_ok()).then(|| self.random(module, a, b, at as u64));
            Ok((files, random))
        };
        let mut abstained: IndexMap<String, u64> = IndexMap::new();
        for (module, (files, random)) in
            modules.iter().zip(in_parallel(modules.len(), threads, progress, &one)?)
        {
            match files {
                Ok(differences) => {
                    found.modules += 1;
                    *found.kinds.entry(kinds[module.kind].clone()).or_default() += 1;
                    found.files.widen(&differences);
                    self.judge(module, "the two files", tolerance, &differences, &mut found);
                }
                Err(error) => self.refuse(module, error, &mut abstained, &mut found)?,
            }
            match random {
                None => {}
                Some(Ok(Ok(differences))) => {
                    found.random_modules += 1;
                    found.random.widen(&differences);
                    let what = "random weights put through the plan";
                    self.judge(module, what, random_tolerance, &differences, &mut found);
                }
                Some(Ok(Err(why))) => *abstained.entry(why).or_default() += 1,
                Some(Err(error)) => self.refuse(module, error, &mut abstained, &mut found)?,
            }
        }
        found.abstained.extend(abstained);
        Ok(found)
    }

    fn shape(&self, module: &Module) -> Shape {
        let stored = module.tensors.iter().map(|tensor| &self.source.catalog().tensors[*tensor]);
        stored.map(|stored| (stored.shape.clone(), stored.dtype)).collect()
    }

    fn refuse(
        &self,
        module: &Module,
        error: ForwardError,
        abstained: &mut IndexMap<String, u64>,
        found: &mut Attention,
    ) -> Result<(), Errors> {
        if let ForwardError::Read(key, error) = &error {
            let message = format!("cannot read the weights to compute attention: {error}");
            return Err(Diagnostic::error(VerifyCode::Read, message).tensor(key).into());
        }
        if error.is_abstention() {
            let mut why = error.to_string();
            if let ForwardError::Open(axis) = &error {
                why = format!("{why}; give it with --axis {axis}=N");
            }
            *abstained.entry(why).or_default() += 1;
            return Ok(());
        }
        let layouts = format!("{} or {}", self.selection.source().name, self.selection.target().name);
        found.differences.push(
            Diagnostic::error(
                VerifyCode::Differs,
                format!("the module cannot be computed as its layout says: {error}"),
            )
            .tensor(name_of(module))
            .help(format!("a `forward` entry of {layouts} contradicts the stored tensors")),
        );
        Ok(())
    }

    /// Returns the largest relative difference that is accepted of the files, and of random weights.
    ///
    /// A cast or a scale changes weights by its rounding; what follows from it is bounded by a multiple of that. Random
    /// weights are made so that a cast leaves them as they are.
    fn tolerances(&self) -> (f64, f64) {
        let rounding = |dtype: Dtype| match dtype {
            Dtype::BF16 => 2_f64.powi(-8),
            Dtype::F16 => 2_f64.powi(-11),
            Dtype::F32 => 2_f64.powi(-24),
            _ => 2_f64.powi(-53),
        };
        let (mut files, mut random) = (EXACT, EXACT);
        for step in self.plan.targets.iter().flat_map(|target| &target.steps) {
            let Step::Copy(copy) = step else { continue };
            let ValueOp::Convert { from, to, affine } = copy.value else { continue };
            let bound = 16.0 * rounding(from).max(rounding(to));
            files = files.max(bound);
            if !affine.is_identity() {
                random = random.max(bound);
            }
        }
        (files, random)
    }

    fn judge(
        &self,
        module: &Module,
        what: &str,
        tolerance: f64,
        differences: &Differences,
        found: &mut Attention,
    ) {
        // Softmax multiplies a rounding by the size of the logits: of rounded weights the output is no measure, but the
        // two output projections of the same heads' outputs are.
        let measured =
            if tolerance > EXACT { Differences { out: 0.0, ..*differences } } else { *differences };
        if measured.largest() <= tolerance {
            return;
        }
        let parts = differences.parts().map(|(name, value)| format!("{name} {value:.1e}")).join(", ");
        found.differences.push(
            Diagnostic::error(VerifyCode::Differs, format!("attention computed from {what} differs"))
                .tensor(name_of(module))
                .expected(format!("at most {tolerance:.0e}, relative to the largest value"))
                .found(format!("{parts}; head {} differs most", differences.head))
                .help("the heads, the rotary order or the layout itself are not what --from or --to says"),
        );
    }

    /// Lists the modules of one kind: what the names of their tensors capture, and each slice of stacked ones.
    fn modules(&self, kind: usize, a: &Forward, b: &Forward) -> Vec<Module> {
        let of_b = b.module_axes();
        let axes: Vec<&str> = a.module_axes().into_iter().filter(|axis| of_b.contains(axis)).collect();
        let templates: HashSet<String> = a.templates().into_iter().map(ToString::to_string).collect();
        let rules = &self.selection.source().rules;
        let takes_part: Vec<bool> =
            rules.iter().map(|rule| templates.contains(&rule.template.to_string())).collect();
        let mut modules: IndexMap<Captures, Module> = IndexMap::new();
        for tensor in self.bound.sources.iter().filter(|tensor| takes_part[tensor.reading.rule]) {
            let mut captures = tensor.reading.captures.clone();
            captures.indices.retain(|(axis, _)| axes.contains(&&**axis));
            let size_of =
                |axis: &str| tensor.reading.sizes.iter().find_map(|(_, sizes)| sizes.get(axis).copied());
            let mut slices = vec![captures];
            for (axis, _) in &a.stacked {
                let count = size_of(axis).unwrap_or(0);
                slices =
                    slices.iter().flat_map(|captures| (0..count).map(|at| captures.with(axis, at))).collect();
            }
            for captures in slices {
                let module = modules.entry(captures.clone()).or_insert_with(|| Module {
                    kind,
                    captures,
                    sizes: AxisSizes::new(),
                    tensors: Vec::new(),
                });
                module.tensors.push(tensor.tensor);
                for (_, sizes) in &tensor.reading.sizes {
                    // Heads that nothing tells are those of the reading, which fit: layouts that need no head count
                    // agree with any.
                    module.sizes.extend(sizes.iter().map(|(axis, size)| (axis.clone(), *size)));
                }
            }
        }
        // A tensor without elements leaves nothing to compute.
        let stored = |tensor: &usize| &self.source.catalog().tensors[*tensor];
        let full = |module: &Module| module.tensors.iter().all(|tensor| stored(tensor).elements() > 0);
        modules.into_values().filter(full).collect()
    }

    pub(super) fn source_names(&self, layout: &Layout) -> HashMap<String, usize> {
        let name = |tensor: &crate::bind::SourceTensor| {
            let template = &layout.rules[tensor.reading.rule].template;
            let name = stored_name(template, &tensor.reading.captures).ok()?;
            Some((name, tensor.tensor))
        };
        self.bound.sources.iter().filter_map(name).collect()
    }

    fn target_names(&self, layout: &Layout, catalog: &Catalog) -> HashMap<String, usize> {
        let name = |tensor: &crate::bind::TargetTensor| {
            let template = &layout.rules[tensor.reading.rule].template;
            let name = stored_name(template, &tensor.reading.captures).ok()?;
            Some((name, catalog.find(&tensor.key)?))
        };
        self.bound.targets.iter().filter_map(name).collect()
    }
}

fn name_of(module: &Module) -> String {
    let paths = module.captures.paths.iter().flat_map(|(_, segments)| segments.iter().cloned());
    let indices = module.captures.indices.iter().map(|(axis, index)| format!("{axis}={index}"));
    paths.chain(indices).collect::<Vec<_>>().join(".")
}
/// A file's tensors.
struct FileWeights<'a> {
    reader: &'a dyn Reader,
    names: HashMap<String, usize>,
}

impl Weights for FileWeights<'_> {
    fn find(&self, name: &str) -> Option<&TensorMeta> {
        self.names.get(name).map(|tensor| &self.reader.catalog().tensors[*tensor])
    }

    fn read(&self, tensor: &TensorMeta, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact_at(tensor.file, tensor.offset + offset, buffer)
    }
}

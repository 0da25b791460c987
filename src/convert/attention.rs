//! Computes every attention module from both files, and from random weights that went through the plan.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use indexmap::IndexMap;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::bind::{AxisSizes, Bound};
use crate::catalog::{Catalog, TensorMeta};
use crate::diag::{Diagnostic, Errors};
use crate::dtype::Dtype;
use crate::exec::{Limits, Placement, Progress, ReadAt, WriteAt, execute};
use crate::format::Reader;
use crate::mapping::Layout;
use crate::mapping::forward::Forward;
use crate::mapping::key::Captures;
use crate::mapping::select::Selection;
use crate::plan::{Check, Plan, Step, TensorPlan, ValueOp, unit};
use crate::verify::forward::{Differences, ForwardError, ForwardSide, Random, Weights, compare_module};

/// Random weights are made for modules of up to this many bytes; memory is bounded by it.
const MOST_RANDOM: u64 = 64 << 20;
/// The largest relative difference of computations whose weights are the same bits; only the order of sums differs.
const EXACT: f64 = 1e-9;

/// What was computed.
#[derive(Clone, Debug, Default)]
pub struct Attention {
    /// Modules computed from both files.
    pub modules: u64,
    /// The largest differences over these.
    pub files: Differences,
    /// Module shapes computed with random weights.
    pub random_modules: u64,
    /// The largest differences over these.
    pub random: Differences,
    /// The largest relative difference that is accepted.
    pub tolerance: f64,
    /// Why something was not computed, and how many modules it concerns.
    pub abstained: Vec<(String, u64)>,
    /// What differs.
    pub differences: Vec<Diagnostic>,
}

/// A module as both files hold it.
struct Module {
    captures: Captures,
    sizes: AxisSizes,
    /// Its source tensors, indices into the catalog.
    tensors: Vec<usize>,
}

/// What the computations share.
pub(super) struct Computation<'a> {
    pub(super) selection: &'a Selection,
    pub(super) bound: &'a Bound,
    pub(super) plan: &'a Plan,
    pub(super) source: &'a dyn Reader,
}

impl Computation<'_> {
    /// Computes and compares.
    ///
    /// # Errors
    /// Returns cancellation; everything else is part of the result.
    pub(super) fn run(
        &self,
        target: &dyn Reader,
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<Attention, Errors> {
        let mut found = Attention { tolerance: self.tolerance(), ..Attention::default() };
        let (source_layout, target_layout) = (self.selection.source(), self.selection.target());
        let (Some(a), Some(b)) = (&source_layout.forward, &target_layout.forward) else {
            let without = if source_layout.forward.is_none() { source_layout } else { target_layout };
            found.abstained.push((format!("the layout `{}` does not say how it computes", without.name), 0));
            return Ok(found);
        };
        let modules = self.modules(a, b);
        let source = FileWeights { reader: self.source, names: self.source_names(source_layout) };
        let target =
            FileWeights { reader: target, names: self.target_names(target_layout, target.catalog()) };
        let mut shapes: FxHashSet<Vec<(Vec<u64>, Dtype)>> = FxHashSet::default();
        let fresh: Vec<bool> = modules.iter().map(|module| shapes.insert(self.shape(module))).collect();
        let sides =
            (ForwardSide { forward: a, weights: &source }, ForwardSide { forward: b, weights: &target });
        let one = |at: usize| {
            let module = &modules[at];
            let files = compare_module(sides.0, sides.1, &module.captures, &module.sizes, at as u64);
            let random = (fresh[at] && files.is_ok()).then(|| self.random(module, a, b, at as u64));
            (files, random)
        };
        let mut abstained: IndexMap<String, u64> = IndexMap::new();
        for (module, (files, random)) in
            modules.iter().zip(in_parallel(modules.len(), threads, progress, &one)?)
        {
            match files {
                Ok(differences) => {
                    found.modules += 1;
                    found.files.widen(&differences);
                    self.judge(module, "the two files", &differences, &mut found);
                }
                Err(error) => self.refuse(module, error, &mut abstained, &mut found),
            }
            match random {
                None => {}
                Some(Ok(Some(differences))) => {
                    found.random_modules += 1;
                    found.random.widen(&differences);
                    self.judge(module, "random weights put through the plan", &differences, &mut found);
                }
                Some(Ok(None)) => {
                    let why = format!("no random weights for modules of over {} MiB", MOST_RANDOM >> 20);
                    *abstained.entry(why).or_default() += 1;
                }
                Some(Err(error)) => self.refuse(module, error, &mut abstained, &mut found),
            }
        }
        found.abstained.extend(abstained);
        Ok(found)
    }

    /// What tells modules apart for random weights: shapes and types of their tensors.
    fn shape(&self, module: &Module) -> Vec<(Vec<u64>, Dtype)> {
        let stored = module.tensors.iter().map(|tensor| &self.source.catalog().tensors[*tensor]);
        stored.map(|stored| (stored.shape.clone(), stored.dtype)).collect()
    }

    fn refuse(
        &self,
        module: &Module,
        error: ForwardError,
        abstained: &mut IndexMap<String, u64>,
        found: &mut Attention,
    ) {
        if error.is_abstention() {
            let mut why = error.to_string();
            if let ForwardError::Open(axis) = &error {
                why = format!("{why}; give it with --axis {axis}=N");
            }
            *abstained.entry(why).or_default() += 1;
            return;
        }
        let layouts = format!("{} or {}", self.selection.source().name, self.selection.target().name);
        found.differences.push(
            Diagnostic::error(
                "verify/differs",
                format!("the module cannot be computed as its layout says: {error}"),
            )
            .tensor(name_of(module))
            .help(format!("a `forward` entry of {layouts} contradicts the stored tensors")),
        );
    }

    /// A cast or a scale changes weights by its rounding; what follows from it is bounded by a multiple of that.
    fn tolerance(&self) -> f64 {
        let rounding = |dtype: Dtype| match dtype {
            Dtype::BF16 => 2_f64.powi(-8),
            Dtype::F16 => 2_f64.powi(-11),
            Dtype::F32 => 2_f64.powi(-24),
            _ => 2_f64.powi(-53),
        };
        let steps = self.plan.targets.iter().flat_map(|target| &target.steps);
        let converted = steps.filter_map(|step| match step {
            Step::Copy(copy) => match copy.value {
                ValueOp::Convert { from, to, .. } => Some(rounding(from).max(rounding(to))),
                ValueOp::Bits => None,
            },
            Step::Zero(_) => None,
        });
        EXACT.max(64.0 * converted.fold(0.0, f64::max))
    }

    fn judge(&self, module: &Module, what: &str, differences: &Differences, found: &mut Attention) {
        let largest = differences.largest();
        if largest <= found.tolerance {
            return;
        }
        let parts = differences.parts().map(|(name, value)| format!("{name} {value:.1e}")).join(", ");
        found.differences.push(
            Diagnostic::error("verify/differs", format!("attention computed from {what} differs"))
                .tensor(name_of(module))
                .expected(format!("at most {:.0e}, relative to the largest value", found.tolerance))
                .found(format!("{parts}; head {} differs most", differences.head))
                .help("the heads, the rotary order or the layout itself are not what --from or --to says"),
        );
    }

    /// Lists the modules: what the names capture, less the axes along which a module has one weight per head.
    fn modules(&self, a: &Forward, b: &Forward) -> Vec<Module> {
        let each: Vec<&str> = a.each().into_iter().chain(b.each()).collect();
        let named = |forward: &Forward| -> Vec<String> {
            let axes = forward.templates().into_iter().flat_map(|template| template.axes());
            axes.filter(|axis| !each.contains(axis)).map(str::to_owned).collect()
        };
        let names: Vec<String> = named(a).into_iter().filter(|axis| named(b).contains(axis)).collect();
        let known: FxHashSet<&str> = self.bound.sizes.iter().map(|size| size.axis.as_str()).collect();
        let fixed =
            |axis: &str| self.selection.mapping().axes.get(axis).is_some_and(|axis| axis.size.is_some());
        let mut modules: IndexMap<Captures, Module> = IndexMap::new();
        for tensor in &self.bound.sources {
            let mut captures = tensor.reading.captures.clone();
            captures.indices.retain(|(axis, _)| names.contains(axis));
            let module = modules.entry(captures.clone()).or_insert_with(|| Module {
                captures,
                sizes: AxisSizes::new(),
                tensors: Vec::new(),
            });
            module.tensors.push(tensor.tensor);
            for (_, sizes) in &tensor.reading.sizes {
                let told = sizes.iter().filter(|(axis, _)| known.contains(axis.as_str()) || fixed(axis));
                module.sizes.extend(told.map(|(axis, size)| (axis.clone(), *size)));
            }
        }
        modules.into_values().collect()
    }

    fn source_names(&self, layout: &Layout) -> FxHashMap<String, usize> {
        let name = |tensor: &crate::bind::SourceTensor| {
            let (_, name) =
                layout.rules[tensor.reading.rule].template.print(&tensor.reading.captures).ok()?;
            Some((name, tensor.tensor))
        };
        self.bound.sources.iter().filter_map(name).collect()
    }

    fn target_names(&self, layout: &Layout, catalog: &Catalog) -> FxHashMap<String, usize> {
        let name = |tensor: &crate::bind::TargetTensor| {
            let (_, name) =
                layout.rules[tensor.reading.rule].template.print(&tensor.reading.captures).ok()?;
            Some((name, catalog.find(&tensor.key)?))
        };
        self.bound.targets.iter().filter_map(name).collect()
    }

    /// Makes random weights for a module, puts them through the plan and compares; `None` where it is too large.
    fn random(
        &self,
        module: &Module,
        a: &Forward,
        b: &Forward,
        seed: u64,
    ) -> Result<Option<Differences>, ForwardError> {
        let (sources, targets) = self.closure(&module.tensors);
        let catalog = self.source.catalog();
        let bytes: u64 = sources.iter().map(|tensor| catalog.tensors[*tensor].bytes()).sum();
        if bytes > MOST_RANDOM {
            return Ok(None);
        }
        let mut random = Random(seed ^ 0x5eed);
        let mut made: BTreeMap<usize, Vec<u8>> = sources
            .iter()
            .map(|&tensor| (tensor, random_bytes(&catalog.tensors[tensor], &mut random)))
            .collect();
        for requirement in &self.plan.requirements {
            fulfil(&requirement.check, catalog, &mut made);
        }
        let part = Plan {
            targets: targets.iter().map(|at| self.plan.targets[*at].clone()).collect(),
            ..Plan::default()
        };
        let source = Memory { catalog, tensors: &made };
        let mut placements = Vec::new();
        let mut size = 0;
        for target in &part.targets {
            placements.push(Placement { file: 0, offset: size });
            size += target.bytes();
        }
        let output = Output(Mutex::new(vec![0; size as usize]));
        let limits = Limits { threads: 1, memory: 8 << 20 };
        let failed = |errors: Errors| {
            ForwardError::Read("random weights".into(), io::Error::other(errors.to_string()))
        };
        execute(&part, catalog, &source, &output, &placements, &limits, &Silent).map_err(failed)?;
        let written = output.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let source = MemoryWeights {
            names: self.source_names_of(&sources),
            read: Box::new(|meta: &TensorMeta| {
                catalog.find(&meta.key).and_then(|at| made.get(&at)).map(Vec::as_slice)
            }),
        };
        let metas = self.target_metas(&part.targets, &placements);
        let places: FxHashMap<String, (usize, usize)> = part
            .targets
            .iter()
            .zip(&placements)
            .map(|(target, place)| (target.key.clone(), (place.offset as usize, target.bytes() as usize)))
            .collect();
        let target = MemoryWeights {
            names: metas,
            read: Box::new(|meta: &TensorMeta| {
                let (start, length) = places.get(&meta.key)?;
                written.get(*start..start + length)
            }),
        };
        let sides =
            (ForwardSide { forward: a, weights: &source }, ForwardSide { forward: b, weights: &target });
        compare_module(sides.0, sides.1, &module.captures, &module.sizes, seed).map(Some)
    }

    /// Returns the source tensors that any target tensor of the module needs, and these target tensors.
    fn closure(&self, tensors: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut sources: FxHashSet<usize> = tensors.iter().copied().collect();
        let mut targets: FxHashSet<usize> = FxHashSet::default();
        loop {
            let before = (sources.len(), targets.len());
            for (at, target) in self.plan.targets.iter().enumerate() {
                let needs = sources_of(target);
                if target.rule.is_some() && needs.iter().any(|source| sources.contains(source)) {
                    targets.insert(at);
                    sources.extend(needs);
                }
            }
            if before == (sources.len(), targets.len()) {
                break;
            }
        }
        let sorted = |set: FxHashSet<usize>| {
            let mut list: Vec<usize> = set.into_iter().collect();
            list.sort_unstable();
            list
        };
        (sorted(sources), sorted(targets))
    }

    fn source_names_of(&self, sources: &[usize]) -> FxHashMap<String, TensorMeta> {
        let names = self.source_names(self.selection.source());
        let chosen = names.into_iter().filter(|(_, tensor)| sources.contains(tensor));
        chosen.map(|(name, tensor)| (name, self.source.catalog().tensors[tensor].clone())).collect()
    }

    fn target_metas(
        &self,
        targets: &[TensorPlan],
        placements: &[Placement],
    ) -> FxHashMap<String, TensorMeta> {
        let by_key: FxHashMap<&str, (&TensorPlan, &Placement)> = targets
            .iter()
            .zip(placements)
            .map(|(target, place)| (target.key.as_str(), (target, place)))
            .collect();
        let layout = self.selection.target();
        let named = self.bound.targets.iter().filter_map(|tensor| {
            let (target, place) = by_key.get(tensor.key.as_str())?;
            let (_, name) =
                layout.rules[tensor.reading.rule].template.print(&tensor.reading.captures).ok()?;
            let meta = TensorMeta {
                key: target.key.clone(),
                dtype: target.dtype,
                shape: target.shape.clone(),
                strides: target.strides(),
                file: 0,
                offset: place.offset,
            };
            Some((name, meta))
        });
        named.collect()
    }
}

/// Does `one` for every number below `count`; the results are in order.
fn in_parallel<T: Send>(
    count: usize,
    threads: usize,
    progress: &dyn Progress,
    one: &(dyn Fn(usize) -> T + Sync),
) -> Result<Vec<T>, Errors> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || progress.cancelled() {
                        break;
                    }
                    let result = one(at);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if results.len() < count {
        return Err(Diagnostic::error("exec/cancelled", "stopped while verifying").into());
    }
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

fn name_of(module: &Module) -> String {
    let paths = module.captures.paths.iter().flat_map(|(_, segments)| segments.iter().cloned());
    let indices = module.captures.indices.iter().map(|(axis, index)| format!("{axis}={index}"));
    paths.chain(indices).collect::<Vec<_>>().join(".")
}

fn sources_of(target: &TensorPlan) -> Vec<usize> {
    let copies = target.steps.iter().filter_map(|step| match step {
        Step::Copy(copy) => Some(copy.source),
        Step::Zero(_) => None,
    });
    copies.collect()
}

/// Makes a tensor's random bytes: normally distributed where the type has such numbers, biases and norms included.
fn random_bytes(tensor: &TensorMeta, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(tensor.bytes() as usize);
    match tensor.dtype {
        Dtype::F64 => (0..tensor.elements()).for_each(|_| bytes.extend(random.normal().to_le_bytes())),
        Dtype::F32 => {
            (0..tensor.elements()).for_each(|_| bytes.extend((random.normal() as f32).to_le_bytes()))
        }
        Dtype::F16 => (0..tensor.elements())
            .for_each(|_| bytes.extend(half::f16::from_f32(random.normal() as f32).to_le_bytes())),
        Dtype::BF16 => (0..tensor.elements())
            .for_each(|_| bytes.extend(half::bf16::from_f32(random.normal() as f32).to_le_bytes())),
        // Nothing is computed with these; the caller abstains.
        _ => bytes.resize(tensor.bytes() as usize, 0),
    }
    bytes
}

/// Makes random data what the plan requires: copies equal, fillers zero.
fn fulfil(check: &Check, catalog: &Catalog, made: &mut BTreeMap<usize, Vec<u8>>) {
    let width = |tensor: usize| unit(catalog.tensors[tensor].dtype) as usize;
    match check {
        Check::Equal { first, second, loops } => {
            if !made.contains_key(&first.0) || !made.contains_key(&second.0) {
                return;
            }
            let mut places = vec![(first.1, second.1)];
            for (count, a, b) in loops {
                places = places
                    .iter()
                    .flat_map(|(x, y)| (0..*count).map(move |i| (x + i * a, y + i * b)))
                    .collect();
            }
            let width = width(first.0);
            for (from, to) in places {
                let from = from as usize * width;
                let element = made[&first.0][from..from + width].to_vec();
                if let Some(bytes) = made.get_mut(&second.0) {
                    bytes[to as usize * width..][..width].copy_from_slice(&element);
                }
            }
        }
        Check::Zero { source, region } => {
            let width = width(*source);
            let Some(bytes) = made.get_mut(source) else { return };
            let mut places = vec![region.offset];
            for (count, step) in &region.loops {
                places = places.iter().flat_map(|place| (0..*count).map(move |i| place + i * step)).collect();
            }
            places.iter().for_each(|place| bytes[*place as usize * width..][..width].fill(0));
        }
    }
}

/// A file's tensors.
struct FileWeights<'a> {
    reader: &'a dyn Reader,
    names: FxHashMap<String, usize>,
}

impl Weights for FileWeights<'_> {
    fn find(&self, name: &str) -> Option<&TensorMeta> {
        self.names.get(name).map(|tensor| &self.reader.catalog().tensors[*tensor])
    }

    fn read(&self, tensor: &TensorMeta, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact_at(tensor.file, tensor.offset + offset, buffer)
    }
}

/// Finds a tensor's bytes.
type Find<'a> = Box<dyn Fn(&TensorMeta) -> Option<&'a [u8]> + Sync + 'a>;

/// Tensors in memory.
struct MemoryWeights<'a> {
    names: FxHashMap<String, TensorMeta>,
    read: Find<'a>,
}

impl Weights for MemoryWeights<'_> {
    fn find(&self, name: &str) -> Option<&TensorMeta> {
        self.names.get(name)
    }

    fn read(&self, tensor: &TensorMeta, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = offset as usize;
        let bytes = (self.read)(tensor).and_then(|bytes| bytes.get(start..start + buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Random source tensors, as the execution reads them: by place in the source's files.
struct Memory<'a> {
    catalog: &'a Catalog,
    tensors: &'a BTreeMap<usize, Vec<u8>>,
}

impl ReadAt for Memory<'_> {
    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let holder = self.tensors.iter().find(|(tensor, _)| {
            let meta = &self.catalog.tensors[**tensor];
            meta.file == file && meta.offset <= offset && end <= meta.offset + meta.bytes()
        });
        let (tensor, bytes) = holder.ok_or(io::ErrorKind::UnexpectedEof)?;
        let start = (offset - self.catalog.tensors[*tensor].offset) as usize;
        buffer.copy_from_slice(&bytes[start..start + buffer.len()]);
        Ok(())
    }
}

/// The output in memory.
struct Output(Mutex<Vec<u8>>);

impl WriteAt for Output {
    fn write_all_at(&self, _: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Nobody watches.
struct Silent;

impl Progress for Silent {
    fn advance(&self, _: u64) {}

    fn cancelled(&self) -> bool {
        false
    }
}

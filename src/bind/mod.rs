//! Two layouts meet one checkpoint: every name to its rule, every axis to its size, on headers alone.
//!
//! [`bind`] returns all blocks of all source and target tensors on common coordinates, or every error that there is.

mod attachment;
mod casts;
mod classes;
mod contradiction;
mod counts;
mod explain;
mod finish;
mod fits;
mod gaps;
mod given;
mod ids;
mod keys;
mod left_behind;
mod lower;
mod names;
mod needed;
mod only;
mod options;
mod pair;
mod parts;
mod sizes;
mod source;
mod target;
mod ties;
mod trace;
mod unknowns;
mod unmatched;

pub(crate) use attachment::Owners;
pub use explain::open_size;
pub use ids::{InstanceId, ModuleId, ParamId, SourceId};
pub use lower::{Block, Content, Coordinate, Factor};
pub(crate) use names::names_for_rules;

pub use options::{Allow, BindOptions, Modules, Tied};

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::catalog::Catalog;
use crate::diag::{Collector, Diagnostic, Errors};
use crate::dtype::Dtype;
pub use crate::mapping::Affine;
use crate::mapping::key::Captures;
use crate::mapping::role::AttentionPart;
use crate::mapping::{Layout, Mapping};
use crate::span::Span;
use ids::AxisId;
use pair::Pair;
use unknowns::{Scopes, Unknowns};

/// A checkpoint bound to a source layout, and the target layout's tensors that follow from it.
#[derive(Debug)]
pub struct Bound {
    /// The source tensors that hold parameters.
    pub sources: Vec<SourceTensor>,
    /// The target tensors that hold parameters.
    pub targets: Vec<TargetTensor>,
    /// Source tensors that pass through, each with its name in the output.
    pub kept: Vec<(usize, String)>,
    /// Those among them that follow from a config: they are not cast.
    pub computed: BTreeSet<usize>,
    /// Source tensors that are left out.
    pub dropped: Vec<Dropped>,
    /// Source tensors that are left out because another one that passes through is the same, which stands second.
    pub tied: Vec<(usize, usize)>,
    /// Parameter instances that the target has no place for because zeros may stand for them; they must be zeros.
    pub unplaced: Vec<InstanceId>,
    /// The names of the parameters.
    pub params: Vec<String>,
    /// Of each parameter, which part of which attention it is.
    pub parts: Vec<Option<AttentionPart>>,
    /// All parameter instances.
    pub instances: Vec<InstanceInfo>,
    /// All sizes, one entry per axis and value.
    pub sizes: Vec<Size>,
    /// The type to which all floating-point tensors are cast.
    pub dtype: Option<Dtype>,
    /// What is odd but harmless.
    pub warnings: Vec<Diagnostic>,
    /// Captured paths of each module, written with dots.
    pub modules: Vec<String>,
    /// Likewise of the modules that `--modules` leaves as they are.
    pub left: Vec<String>,
    /// The source layout as it was read, where a parameter of it is read as the one that it is tied to.
    pub source_layout: Option<Layout>,
    /// The target layout as it is written, where a parameter that the source lacks is written as the one that it is tied
    /// to.
    pub target_layout: Option<Layout>,
}

impl Bound {
    /// Returns the paths of the modules that are converted, in the order of their names in the source.
    pub fn converted_modules(&self) -> Vec<&str> {
        let held: BTreeSet<ModuleId> = self.instances.iter().map(|instance| instance.module).collect();
        held.into_iter().map(|module| self.modules[module].as_str()).collect()
    }
}

/// One parameter of one module, or of one layer where both layouts keep layers apart.
#[derive(Clone, Debug)]
pub struct InstanceInfo {
    /// The parameter, an index into [`Bound::params`].
    pub param: ParamId,
    /// The module, an index into [`Bound::modules`].
    pub module: ModuleId,
    /// The source tensors that hold it, indices into [`Bound::sources`].
    pub sources: Vec<SourceId>,
}

/// A source tensor that holds parameters.
#[derive(Clone, Debug)]
pub struct SourceTensor {
    /// The tensor, an index into [`Catalog::tensors`].
    pub tensor: usize,
    /// Its rule's place.
    pub rule: Span,
    /// What its name and its parameters' sizes are.
    pub reading: Reading,
    /// Its blocks, shared by all tensors that have the same.
    pub blocks: Arc<[Block]>,
    /// The instance of each parameter that it holds.
    pub instances: Vec<(ParamId, InstanceId)>,
    /// How its values follow from the parameters'.
    pub affine: Affine,
}

/// A target tensor that holds parameters.
#[derive(Clone, Debug)]
pub struct TargetTensor {
    /// Its name.
    pub key: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its rule's place.
    pub rule: Span,
    /// What its name and its parameters' sizes are.
    pub reading: Reading,
    /// Its blocks, shared by all tensors that have the same.
    pub blocks: Arc<[Block]>,
    /// The instance of each parameter that it holds; a parameter without one is filled with zeros.
    pub instances: Vec<(ParamId, InstanceId)>,
    /// How its values follow from the parameters'.
    pub affine: Affine,
}

/// What a second reading of a tensor's expression starts from: nothing that was derived from the expression itself.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The rule, an index into [`Layout::rules`].
    pub rule: usize,
    /// What the rule's template captured, or was printed with.
    pub captures: Captures,
    /// The sizes of axes for each parameter of the rule. Where only a product is known (`h d` of thirds), its factors
    /// are any that fit: no tensor of either layout tells them apart; those are not in [`Reading::known`].
    pub sizes: Vec<(ParamId, Arc<AxisSizes>)>,
    /// Of these the ones that something tells: a shape, an option, the config, a record.
    pub known: Vec<(ParamId, Arc<AxisSizes>)>,
}

/// Sizes by axis name.
pub type AxisSizes = BTreeMap<String, u64>;

/// A source tensor that is left out.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// The tensor, an index into [`Catalog::tensors`].
    pub tensor: usize,
    /// Why.
    pub reason: DropReason,
    /// The mapping entry that says so, if one does.
    pub rule: Option<Span>,
}

/// Why a tensor is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// `--drop`
    Drop,
    /// Not among `--only`.
    NotOnly,
    /// The layout ignores it.
    Ignored,
    /// It is tied to another one that is kept.
    Tied,
}

impl DropReason {
    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        match self {
            DropReason::Drop => "dropped by --drop",
            DropReason::NotOnly => "not among --only",
            DropReason::Ignored => "ignored by the layout",
            DropReason::Tied => "tied to another tensor, which is kept",
        }
    }
}

/// The size of an axis and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// The axis.
    pub axis: String,
    /// Its size.
    pub value: u64,
    /// Where it came from, in words.
    pub origin: String,
}

/// What a source tensor's name and rule say of it.
struct Held {
    tensor: usize,
    rule: usize,
    module: ModuleId,
    /// Indices of the name's axes.
    indices: Indices,
    /// Per parameter of the rule.
    scopes: SmallVec<[Scopes; 3]>,
    instances: SmallVec<[InstanceId; 3]>,
}

/// Indices along axes, in order of the axes.
type Indices = SmallVec<[(AxisId, u64); 3]>;

/// A map that keeps its order.
type OrderedMap<K, V> = indexmap::IndexMap<K, V>;

/// A set that keeps its order.
type OrderedSet<T> = indexmap::IndexSet<T>;

/// The instances of parameters, as they are found.
#[derive(Default)]
struct Instances {
    ids: HashMap<Scopes, InstanceId>,
    /// Per instance: module, parameter and instance indices.
    all: Vec<(ModuleId, ParamId, Indices)>,
    /// Per instance: the source tensors, indices into the catalog.
    tensors: Vec<SmallVec<[usize; 2]>>,
    /// The instances of each parameter of each module.
    by_module: HashMap<(ModuleId, ParamId), Vec<InstanceId>>,
}

impl Instances {
    fn add(&mut self, scopes: Scopes, module: ModuleId, values: Indices, tensor: usize) -> InstanceId {
        let next = InstanceId::new(self.all.len());
        let id = *self.ids.entry(scopes).or_insert(next);
        if id == next {
            self.all.push((module, scopes.param(), values));
            self.tensors.push(SmallVec::new());
            self.by_module.entry((module, scopes.param())).or_default().push(id);
        }
        self.tensors[id].push(tensor);
        id
    }

    fn find(&self, scopes: Scopes) -> Option<InstanceId> {
        self.ids.get(&scopes).copied()
    }
}

/// What a message says is there instead of a missing tensor, and what it is to the weight if it belongs to one.
type Near = (String, Option<attachment::Attachment>);

/// What the stages of binding share.
struct Binding<'a> {
    catalog: &'a Catalog,
    options: &'a BindOptions,
    pair: &'a Pair<'a>,
    keys: keys::Keys,
    instances: Instances,
    held: Vec<Held>,
    /// What is there instead of a missing parameter's tensors, if anything is.
    near: RefCell<HashMap<ParamId, Option<Near>>>,
}

/// Binds a checkpoint to a source layout and derives the target layout's tensors.
///
/// # Errors
/// Returns everything that headers can tell is wrong: names without a rule, missing parameters, gaps, sizes that do not
/// fit or stay open, types that differ, two sources for one target.
pub fn bind(
    mapping: &Mapping,
    source: &Layout,
    target: &Layout,
    catalog: &Catalog,
    options: &BindOptions,
) -> Result<Bound, Errors> {
    let mut errors = Collector::default();
    explain::check_conditions(source, options, &mut errors);
    let ties = ties::settle(mapping, source, target, catalog, options);
    let source = ties.source.as_ref().unwrap_or(source);
    let target = ties.target.as_ref().unwrap_or(target);
    ties.warnings.into_iter().for_each(|warning| errors.push(warning));
    let pair = Pair::new(mapping, source, target);
    let keys = keys::sort_out(&pair, catalog, options, &mut errors);
    casts::check(catalog, &keys, options, &mut errors);
    gaps::check_paths(catalog, &keys, options, &mut errors);
    if gaps::check_files(&pair, catalog, &keys, options, &mut errors) {
        errors = errors.finish(()).map(|_| Collector::default())?;
    }
    let given = given::given(&pair, options, &mut errors);
    let mut unknowns = Unknowns::new(&pair, given);
    let mut binding = Binding {
        catalog,
        options,
        pair: &pair,
        keys,
        instances: Instances::default(),
        held: Vec::new(),
        near: RefCell::default(),
    };
    binding.read_sources(&mut unknowns, &mut errors);
    unknowns.solver.solve();
    let groups = binding.target_groups(&mut unknowns, &mut errors);
    binding.apply_rules(&mut unknowns);
    binding.take_only_values(&mut unknowns);
    binding.check_counts(&unknowns, &mut errors);
    contradiction::contradictions(&binding, &unknowns, &mut errors);
    binding.check_kinds_of_modules(&mut errors);
    let (bound, errors) = binding.finish(&mut unknowns, &groups, errors);
    let (mut bound, warnings) = errors.finish(bound)?;
    bound.warnings = warnings;
    (bound.source_layout, bound.target_layout) = (ties.source, ties.target);
    Ok(bound)
}

/// Returns of each parameter which part of which attention it is.
fn attention_parts(mapping: &Mapping) -> Vec<Option<AttentionPart>> {
    let roles = mapping.roles();
    mapping.params.keys().map(|name| roles.part(name).cloned()).collect()
}

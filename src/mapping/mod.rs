//! The mapping file: JSON text → [`Mapping`].
//!
//! A mapping file names the parameters of a model family once and says, for each layout, which stored tensor holds
//! them. [`read`] decodes and checks a file, [`builtin`] holds those that are compiled into the library.

mod affine;
pub mod arith;
mod bounds;
pub mod builtin;
mod check;
mod choices;
mod cover;
mod field;
mod fields;
mod fields_forward;
pub mod forward;
mod inherit;
mod json;
pub mod key;
mod matrix;
pub mod names;
mod nest;
mod own_place;
mod pattern;
pub mod print;
mod read;
mod read_forward;
mod read_layout;
mod read_param;
mod recover;
mod rename;
pub mod role;
pub mod roles;
pub mod schema;
pub mod select;
pub mod setting;
pub mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;

use crate::notation::{AxisName, DimKind, Expr, Term, for_each_axis};
use crate::span::{Source, Span};
pub use affine::Affine;
use arith::Formula;
use key::{Piece, Template};
pub use read::read;
use role::{AxisRole, ParamRole};
use roles::Roles;
use setting::Setting;

/// A model family: its parameters and the layouts in which checkpoints hold them.
///
/// ```
/// use std::sync::Arc;
///
/// let text = r#"{ "format": 1, "family": "tiny", "axes": { "h": "heads", "d": "head size", "e": "width" },
///   "params": { "q.weight": "h d e" },
///   "layouts": { "rows":    { "tensors": { "{*m}.q.weight": "q.weight: (h d) e" } },
///                "columns": { "tensors": { "{*m}.q.kernel": "q.weight: e (h d)" } } } }"#;
/// let source = Arc::new(qkvconv::Source { name: "tiny.json".into(), text: text.into() });
/// let mapping = qkvconv::read_mapping(&source)?;
/// assert_eq!((mapping.family.as_str(), mapping.params["q.weight"].axes.join(" ")), ("tiny", "h d e".into()));
/// // Given to `select`, its layouts convert into each other.
/// let layouts = qkvconv::select("tiny/rows", "tiny/columns", &[source])?;
/// assert_eq!(layouts.target().rules[0].expr.to_string(), "q.weight: e (h d)");
/// # Ok::<(), qkvconv::Errors>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mapping {
    /// The family's name.
    pub family: String,
    /// What it is, for a reader.
    pub about: String,
    /// The axes that all layouts share.
    pub axes: IndexMap<String, Axis>,
    /// The parameters.
    pub params: IndexMap<String, Param>,
    /// Parameters of which one at least must be there for a module to exist; empty: any.
    pub anchors: Vec<String>,
    /// What happens to tensors that no rule matches.
    pub unmapped: Unmapped,
    /// The layouts, in the file's order.
    pub layouts: IndexMap<String, Layout>,
    /// The file; with `extends` the extending one.
    pub source: Arc<Source>,
    /// BLAKE3 of the file's text (with `extends`, of both texts), in hexadecimal.
    pub hash: String,
    /// The roles of axes and parameters, found when they are first asked for.
    roles: OnceLock<Roles>,
}

/// What happens to tensors that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// They pass through, bytes and name untouched (a module family).
    Keep,
    /// They are an error (a whole-model family).
    Error,
}

/// An axis: what it means, and what it is composed of where it is.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Its definition, `(c f) + u`: the canonical order in a family, the stored order in a layout.
    pub is: Option<Vec<Term>>,
    /// Its size, where the mapping fixes it.
    pub size: Option<u64>,
    /// Whether each parameter has a size of its own (the input widths of q, k and v) instead of the module one.
    pub per_parameter: bool,
    /// What it is, where the file says it; [`Mapping::roles`] knows what follows too.
    pub role: Option<AxisRole>,
    /// What it means, for a reader.
    pub about: String,
    /// Where it is declared.
    pub span: Span,
}

impl Axis {
    /// Makes an axis of which nothing is said but where it is declared.
    fn at(span: &Span) -> Axis {
        let (is, size, role) = (None, None, None);
        Axis { is, size, per_parameter: false, role, about: String::new(), span: span.clone() }
    }
}

/// A parameter of the family.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its axes in canonical order.
    pub axes: Vec<String>,
    /// Where each of them stands.
    pub axis_spans: Vec<Span>,
    /// Of a matrix, how many axes stand before its inputs, `h d | e`: those of layers and experts, then its outputs.
    /// `None` where the file does not say it.
    pub inputs_from: Option<usize>,
    /// Whether both sides may lack it.
    pub optional: bool,
    /// Whether zeros stand for it where one side has no tensor for it. Where it is not optional as well, a tensor that
    /// the target's rules demand is made of zeros alone; an optional one is filled in only beside parts that are there.
    pub absent_zeros: bool,
    /// The parameter whose values it has where a checkpoint holds no tensor for it: an output layer tied to the embedding.
    pub tied: Option<String>,
    /// Its axes whose indices in names need not be 0, 1, 2, …: layers of which only some have it.
    pub sparse: Vec<String>,
    /// What it is, where the file says it; [`Mapping::roles`] knows what follows too.
    pub role: Option<ParamRole>,
    /// Where it is declared.
    pub span: Span,
}

impl Param {
    /// Returns whether a module without it is incomplete.
    pub(crate) fn is_required(&self) -> bool {
        !self.optional && !self.absent_zeros
    }
}

/// One arrangement of the family's parameters.
///
/// ```
/// let family = qkvconv::mapping::builtin::family("attention").expect("a built-in family");
/// let layout = &family.layouts["neox"];
/// assert_eq!(layout.rules[0].template.to_string(), "{*m}.query_key_value.weight");
/// assert_eq!(layout.rules[0].expr.to_string(), "(h (q.weight: d + k.weight: d + v.weight: dv)) e");
/// ```
#[derive(Clone, Debug)]
pub struct Layout {
    /// Its name.
    pub name: String,
    /// What it is, for a reader.
    pub about: String,
    /// The source that it was read from, repository and file.
    pub citation: String,
    /// Axes that this layout restates in its stored order, or has alone.
    pub axes: IndexMap<String, Axis>,
    /// The stored tensors.
    pub rules: Vec<Rule>,
    /// Where a config file tells an axis's size.
    pub config: IndexMap<String, ConfigEntry>,
    /// What a config file says beside sizes, by names that the family's layouts share.
    pub settings: IndexMap<String, Setting>,
    /// The file in which the framework looks for the weights in a folder, where it says one.
    pub file: Option<String>,
    /// The name of the config file, where it is not `config.json`.
    pub config_file: Option<String>,
    /// Sizes that the framework fixes, used where nothing else tells them.
    pub defaults: IndexMap<String, Default>,
    /// Stored tensors that are no parameters (buffers), dropped and reported.
    pub ignore: Vec<Template>,
    /// Stored tensors that follow from the config and not from weights: dropped when they are read, computed when they are
    /// written.
    pub computed: Vec<Computed>,
    /// What captured paths are where the other side does not capture them, as segments.
    pub paths: BTreeMap<String, Vec<String>>,
    /// What must hold of the config.
    pub when: Vec<Condition>,
    /// Metadata that the layout's readers demand.
    pub metadata: BTreeMap<String, String>,
    /// The parts of a config in which its entries stand; the first that is there counts, `.` is the config itself.
    /// Empty: the config itself.
    pub part: Vec<String>,
    /// What checkpoints in this layout call their model: `model_type` in a config, `general.architecture` in GGUF.
    pub models: Vec<String>,
    /// How the framework computes attention from the tensors, by the kind of attention; one alone has no name.
    pub forwards: IndexMap<String, forward::Forward>,
    /// Where it is declared.
    pub span: Span,
}

/// A stored tensor that follows from the config.
#[derive(Clone, Debug)]
pub struct Computed {
    /// Its name.
    pub template: Template,
    /// What it holds.
    pub values: Values,
    /// The axis of rotary pairs that it has.
    pub axis: String,
    /// Where it stands.
    pub span: Span,
}

/// What a computed tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// By what the frequency of each rotary pair is divided where the config's rotary scaling is of type llama3.
    Llama3,
    /// The factors for long contexts where it is of type longrope.
    LongRopeLong,
    /// The factors for short contexts where it is of type longrope.
    LongRopeShort,
}

/// One stored tensor, or all that a template names.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its name.
    pub template: Template,
    /// What it holds.
    pub expr: Expr,
    /// Whether the tensor may be missing though its parameters are there (a tied copy).
    pub optional: bool,
    /// The scale of its [`Affine`]; 1 without.
    pub scale: Option<Formula>,
    /// The offset of its [`Affine`]; 0 without.
    pub offset: Option<Formula>,
    /// What must hold of the config for the rule to count.
    pub when: Vec<Condition>,
    /// Where the layout's readers cannot do without the tensor.
    pub needed: Option<Needed>,
}

/// Where a layout's readers cannot do without a tensor.
#[derive(Clone, Debug)]
pub enum Needed {
    /// In every checkpoint.
    Always,
    /// Where the conditions of any of these lists hold of the config; not where there is no config.
    Where(Vec<Vec<Condition>>),
    /// Wherever that parameter is.
    Beside(String),
}

/// The name of a config file where there is none.
pub(crate) const NO_CONFIG: &str = "none";

/// Where a config file tells an axis's size.
#[derive(Clone, Debug)]
pub struct ConfigEntry {
    /// Names in the config, dots reach into nested objects; the first that is there and not null counts.
    pub keys: Vec<String>,
    /// The size over the entry's `value` and axes, where it is not the entry itself: `value / 2`, `value * d`.
    pub is: Option<Formula>,
    /// What the framework takes where the config has none of them, over axes.
    pub absent: Option<Formula>,
    /// Where it stands.
    pub span: Span,
}

/// A size that the framework fixes.
#[derive(Clone, Debug)]
pub struct Default {
    /// The size over other axes.
    pub value: Formula,
    /// Where it stands.
    pub span: Span,
}

/// Returns whether two conditions cannot hold of one config: they allow other values of one entry.
pub(crate) fn exclude_each_other(first: &[Condition], second: &[Condition]) -> bool {
    let differ =
        |a: &Condition, b: &Condition| a.key == b.key && !a.allowed.iter().any(|value| b.holds(Some(value)));
    first.iter().any(|a| second.iter().any(|b| differ(a, b)))
}

/// A condition on one config entry.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The entry's name; dots reach into nested objects.
    pub key: String,
    /// The values that fulfil it; null also stands for a missing entry.
    pub allowed: Vec<serde_json::Value>,
    /// Where it stands.
    pub span: Span,
}

impl ConfigEntry {
    /// Returns the size that a value in the config tells, given other sizes; `None` where it is no whole number.
    pub fn size(&self, value: f64, sizes: &impl Fn(&str) -> Option<u64>) -> Option<u64> {
        match &self.is {
            Some(is) => is.clone().with("value", value).eval_size(sizes),
            None => Formula::number(value, &self.span).eval_size(sizes),
        }
    }

    /// Returns the value in the config that tells a size, given other sizes; `None` where the entry's formula cannot be
    /// turned round.
    pub fn value_for(&self, size: u64, sizes: &impl Fn(&str) -> Option<u64>) -> Option<f64> {
        let Some(is) = &self.is else { return Some(size as f64) };
        let at = |value: f64| is.clone().with("value", value).eval(sizes);
        // Formulas are linear in the value as a rule; what comes out must tell the size again.
        let (zero, one) = (at(0.0)?, at(1.0)?);
        let value = (size as f64 - zero) / (one - zero);
        (value.is_finite() && self.size(value, sizes) == Some(size)).then_some(value)
    }
}

impl Condition {
    /// Returns the values that fulfil it, in words.
    pub(crate) fn allowed_words(&self) -> String {
        let words = self.allowed.iter().map(|value| match value {
            serde_json::Value::Null => "missing".to_owned(),
            other => other.to_string(),
        });
        words.collect::<Vec<_>>().join(" or ")
    }

    /// Returns whether a config with that value for the key fulfils it.
    pub fn holds(&self, value: Option<&serde_json::Value>) -> bool {
        let value = value.unwrap_or(&serde_json::Value::Null);
        self.allowed.iter().any(|allowed| {
            allowed == value || matches!((allowed.as_f64(), value.as_f64()), (Some(a), Some(b)) if a == b)
        })
    }
}

impl Mapping {
    /// Returns the axis as a layout has it: restated by it, else the family's.
    pub fn axis<'a>(&'a self, layout: &'a Layout, name: &str) -> Option<&'a Axis> {
        layout.axes.get(name).or_else(|| self.axes.get(name))
    }

    /// Returns the axes whose parts two layouts store in different orders, as the halves and the frequencies of rotary
    /// pairs: nothing in names and shapes shows which order a tensor has.
    pub fn reordered(&self, first: &Layout, second: &Layout) -> Vec<&str> {
        let differs = |name: &str| {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            self.parts_of(first, name, &mut a, 0);
            self.parts_of(second, name, &mut b, 0);
            let differ = a != b;
            a.sort_unstable();
            b.sort_unstable();
            differ && a == b
        };
        self.axes.keys().map(String::as_str).filter(|name| differs(name)).collect()
    }

    /// Lists the axes of which one is composed in a layout's stored order, `+` between the terms of a sum.
    fn parts_of<'a>(&'a self, layout: &'a Layout, name: &'a str, parts: &mut Vec<&'a str>, depth: usize) {
        // An axis that is composed of itself is refused at reading.
        const DEEPEST: usize = 16;
        let Some(terms) = self.axis(layout, name).and_then(|axis| axis.is.as_ref()) else {
            parts.push(name);
            return;
        };
        for (at, term) in terms.iter().enumerate() {
            if at > 0 {
                parts.push("+");
            }
            for_each_axis(&term.dims, &mut |axis, _| match axis {
                AxisName::Named(inner) if depth < DEEPEST => self.parts_of(layout, inner, parts, depth + 1),
                AxisName::Named(inner) => parts.push(inner),
                AxisName::Literal(_) => {}
            });
        }
    }

    /// Returns what the family's axes and parameters are.
    pub fn roles(&self) -> &Roles {
        self.roles.get_or_init(|| Roles::of(self))
    }

    /// Returns what an axis of a layout is: the family's axis of that name, or one that the layout has alone.
    pub fn axis_role(&self, layout: &Layout, name: &str) -> Option<AxisRole> {
        self.roles().axis(name).or_else(|| layout.axes.get(name)?.role)
    }

    /// Returns the axis of heads among a parameter's axes.
    pub fn head_axis(&self, param: &str) -> Option<&str> {
        self.axis_of(param, AxisRole::is_heads)
    }

    /// Returns the axis of a head's elements among a parameter's axes.
    pub fn head_size_axis(&self, param: &str) -> Option<&str> {
        self.axis_of(param, AxisRole::is_head_size)
    }

    fn axis_of(&self, param: &str, wanted: impl Fn(AxisRole) -> bool) -> Option<&str> {
        let is_wanted = |axis: &&str| self.roles().axis(axis).is_some_and(&wanted);
        self.params.get(param)?.axes.iter().map(String::as_str).find(is_wanted)
    }

    /// Returns the axis of key/value heads of which an axis of query heads is composed, `g` of `h` = `g r`.
    pub fn group_axis(&self, heads: &str) -> Option<&str> {
        let [term] = &self.axes.get(heads)?.is.as_ref()?[..] else { return None };
        let [first, _, ..] = &term.dims[..] else { return None };
        let DimKind::Axis(name) = &first.kind else { return None };
        (self.roles().axis(name) == Some(AxisRole::KvHeads)).then_some(name)
    }
}

impl Layout {
    /// Returns the name of the framework's config file.
    pub fn config_file(&self) -> &str {
        self.config_file.as_deref().filter(|name| *name != NO_CONFIG).unwrap_or("config.json")
    }

    /// Returns whether the framework reads a config file; where it does not, the files of weights say it themselves.
    pub fn has_config_file(&self) -> bool {
        self.config_file.as_deref() != Some(NO_CONFIG)
    }

    /// Returns whether the layout itself has one of these as a component of its names.
    pub(crate) fn names_any(&self, parts: &[&str]) -> bool {
        let has = |piece: &Piece| match piece {
            Piece::Literal(text) => text.split(['.', '/']).any(|part| parts.contains(&part)),
            _ => false,
        };
        let ignored = self.ignore.iter();
        let mut templates = self.rules.iter().map(|rule| &rule.template).chain(ignored);
        templates.any(|template| template.key.iter().any(has))
    }

    /// Splits the name of a tensor in a set of files, `FILE::KEY`; elsewhere the file is empty.
    pub(crate) fn split_name<'n>(&self, name: &'n str) -> (&'n str, &'n str) {
        name.split_once("::").filter(|_| self.is_file_set()).unwrap_or(("", name))
    }

    /// Of rules that match one name, given by number, returns the place of the one whose names are among those of each
    /// other.
    pub(crate) fn most_special(&self, rules: &[usize]) -> Option<usize> {
        let template = |rule: usize| &self.rules[rule].template;
        let within = |rule: usize| {
            rules.iter().all(|other| *other == rule || template(rule).is_within(template(*other)))
        };
        rules.iter().position(|rule| within(*rule))
    }

    /// Returns whether the names of files count: a rule is written `FILE::KEY`.
    pub fn is_file_set(&self) -> bool {
        self.rules.iter().any(|rule| rule.template.file.is_some())
    }

    /// Returns whether a rule, or a template of what is ignored, is of tensors in that file.
    pub fn names_file(&self, file: &str) -> bool {
        self.templates().any(|template| template.names_file(file))
    }

    /// Returns in how many folders, one inside the other, the files of a set may lie.
    pub fn file_depths(&self) -> BTreeSet<usize> {
        let in_files = self.templates().filter(|template| template.file.is_some());
        in_files.flat_map(Template::file_depths).collect()
    }

    /// Returns the templates of its rules and of what is ignored.
    fn templates(&self) -> impl Iterator<Item = &Template> {
        self.rules.iter().map(|rule| &rule.template).chain(&self.ignore)
    }

    /// Returns the rules of that very template, each with its place: one, or alternatives.
    pub(crate) fn rules_of(&self, template: &Template) -> Vec<(usize, &Rule)> {
        let same = |(_, rule): &(usize, &Rule)| {
            rule.template.file == template.file && rule.template.key == template.key
        };
        self.rules.iter().enumerate().filter(same).collect()
    }

    /// Returns whether any rule holds that parameter.
    pub fn holds(&self, param: &str) -> bool {
        self.rules.iter().any(|rule| rule.expr.params().contains(&param))
    }
}

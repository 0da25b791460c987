//! One layout to another, on a model without a checkpoint: bind, plan, prove, execute, and every element compared with
//! the naive reading of both expressions.

use std::collections::{BTreeMap, HashMap};

use super::model::{Model, Place, Tensor};
use super::setting::Setting;
use crate::bind::{BindOptions, Modules, bind};
use crate::catalog::{Catalog, TensorMeta};
use crate::convert::random::{MemoryWeights, in_memory};
use crate::diag::{Diagnostic, Errors, LintCode, Severity};
use crate::plan::{build, prove};

/// The largest relative difference of a value that was scaled on the way.
const ROUNDING: f64 = 1e-12;

/// A stored tensor with what its elements are and hold.
pub(super) struct Stored {
    pub(super) tensor: Tensor,
    /// What each element is by the layout's expression.
    pub(super) places: Vec<Option<Place>>,
    pub(super) values: Vec<f64>,
}

/// One side of a model in memory.
#[derive(Default)]
pub(super) struct Checkpoint {
    pub(super) tensors: Vec<Stored>,
}

/// An element that is not where it belongs.
pub(super) struct Misplaced {
    /// The target's tensor, as it was written.
    pub(super) stored: Stored,
    /// The element, row by row.
    pub(super) at: usize,
}

/// Why a trial failed.
pub(super) enum Failure {
    /// The layouts cannot be bound, planned or proved.
    Refused(Vec<Diagnostic>),
    /// An element is not where the expressions say.
    Misplaced(Box<Misplaced>),
}

impl From<Errors> for Failure {
    fn from(errors: Errors) -> Failure {
        let all = errors.diagnostics().iter();
        Failure::Refused(all.filter(|found| found.severity == Severity::Error).cloned().collect())
    }
}

impl Checkpoint {
    /// Fills the tensors of one side with the values that the setting gives the elements.
    pub(super) fn of(model: Model<'_, '_>) -> Result<Checkpoint, Failure> {
        let mut checkpoint = Checkpoint::default();
        for tensor in model.tensors().map_err(Failure::Refused)? {
            let unread = || {
                let rule = &model.layout().rules[tensor.rule];
                let error =
                    Diagnostic::error(LintCode::OpenSize, "nothing gives all axes of this rule a size");
                Failure::Refused(vec![error.rule(&rule.expr.span)])
            };
            let places = model.places(&tensor).ok_or_else(unread)?;
            let affine = model.affine(tensor.rule).ok_or_else(unread)?;
            let value = |place: &Option<Place>| match place {
                Some(place) => affine.apply(model.setting.value(place)),
                None => 0.0,
            };
            let values = places.iter().map(value).collect();
            checkpoint.tensors.push(Stored { tensor, places, values });
        }
        Ok(checkpoint)
    }

    fn bytes(&self) -> BTreeMap<usize, Vec<u8>> {
        let bytes = |stored: &Stored| stored.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensors.iter().map(bytes).enumerate().collect()
    }

    /// Returns the tensors as a computation reads them, with other values.
    pub(super) fn weights<'b>(&self, bytes: &'b HashMap<String, Vec<u8>>) -> MemoryWeights<'b> {
        let named = |(at, stored): (usize, &Stored)| (stored.tensor.key.clone(), stored.tensor.meta(at));
        MemoryWeights {
            names: self.tensors.iter().enumerate().map(named).collect(),
            read: Box::new(|meta: &TensorMeta| bytes.get(&meta.key).map(Vec::as_slice)),
        }
    }
}

/// Converts the setting's first layout to its second and returns both sides, the second as it was written.
pub(super) fn convert(setting: &Setting<'_>) -> Result<[Checkpoint; 2], Failure> {
    let [from, to] = setting.layouts;
    let source = Checkpoint::of(Model { setting, side: 0 })?;
    let wanted = Checkpoint::of(Model { setting, side: 1 })?;
    let metas: Vec<TensorMeta> =
        source.tensors.iter().enumerate().map(|(at, stored)| stored.tensor.meta(at)).collect();
    let files = metas.iter().map(|meta| (meta.key.clone().into(), meta.bytes())).collect();
    let catalog = Catalog::new(format!("a model in the layout `{}`", from.name).into(), files, metas);
    let options = BindOptions {
        axes: setting.told(),
        provenance: setting.provenance(),
        // What a rule does to one module it does to all.
        modules: Modules::all(),
        ..BindOptions::default()
    };
    let bound = bind(setting.mapping, from, to, &catalog, &options)?;
    let plan = build(&bound, &catalog, &options)?;
    prove(&plan, &catalog)?;
    let (placements, output) = in_memory(&plan, &catalog, &source.bytes(), 2 << 20)?;
    let written: BTreeMap<&str, (&[u64], &[u8])> = plan
        .targets
        .iter()
        .zip(&placements)
        .filter_map(|(target, place)| {
            let bytes = output.get(place.offset as usize..(place.offset + target.bytes()) as usize)?;
            Some((target.key.as_str(), (target.shape.as_slice(), bytes)))
        })
        .collect();
    let target = compare(setting, wanted, &written)?;
    Ok([source, target])
}

/// Compares what was written with what the naive reading of the second layout says.
fn compare(
    setting: &Setting<'_>,
    wanted: Checkpoint,
    written: &BTreeMap<&str, (&[u64], &[u8])>,
) -> Result<Checkpoint, Failure> {
    let to = setting.layouts[1];
    let mut errors = Vec::new();
    let mut compared = Checkpoint::default();
    for mut stored in wanted.tensors {
        let rule = &to.rules[stored.tensor.rule];
        let error = |message: &str| {
            Diagnostic::error(LintCode::Target, message).rule(&rule.template.span).tensor(&stored.tensor.key)
        };
        let Some((shape, bytes)) = written.get(stored.tensor.key.as_str()) else {
            if !rule.optional {
                errors.push(error("this tensor is not written"));
            }
            continue;
        };
        if *shape != stored.tensor.shape.as_slice() {
            let shapes = (format!("{:?}", stored.tensor.shape), format!("{shape:?}"));
            errors.push(error("this tensor is written in another shape").expected(shapes.0).found(shapes.1));
            continue;
        }
        let found: Vec<f64> = bytes
            .chunks_exact(8)
            .map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap_or_default()))
            .collect();
        let agrees =
            |(wanted, found): (&f64, &f64)| (wanted - found).abs() <= ROUNDING * wanted.abs().max(1.0);
        let wrong = stored.values.iter().zip(&found).position(|pair| !agrees(pair));
        stored.values = found;
        if let Some(at) = wrong {
            return Err(Failure::Misplaced(Box::new(Misplaced { stored, at })));
        }
        compared.tensors.push(stored);
    }
    for key in written.keys() {
        if !compared.tensors.iter().any(|stored| stored.tensor.key == *key) && errors.is_empty() {
            errors.push(
                Diagnostic::error(
                    LintCode::Target,
                    "a tensor is written that no rule of the layout should give",
                )
                .rule(&to.span)
                .tensor(*key),
            );
        }
    }
    if errors.is_empty() { Ok(compared) } else { Err(Failure::Refused(errors)) }
}

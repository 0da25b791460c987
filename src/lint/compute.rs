//! Attention computed from both sides of a trial, each as its layout's `forward` says, and the element that contradicts it.

use std::collections::{BTreeSet, HashMap};

use super::model::{Model, Place};
use super::setting::Setting;
use super::trial::Checkpoint;
use crate::mapping::Affine;
use crate::mapping::forward::{Forward, Rotary, RotaryStyle};
use crate::mapping::key::{Captures, Template};
use crate::verify::forward::{Differences, ForwardError, ForwardSide, compare_module};

/// The largest relative difference; only the order of sums differs.
const EXACT: f64 = 1e-9;

/// What a computation came to.
#[derive(Clone, Debug)]
pub(super) enum Computed {
    Agrees,
    Differs(Differences),
    /// A `forward` entry that does not fit the stored tensors, in words.
    Broken(String),
    /// The model has no such attention.
    Absent,
}

impl Computed {
    pub(super) fn is_wrong(&self) -> bool {
        matches!(self, Computed::Differs(_) | Computed::Broken(_))
    }
}

/// Bytes of tensors by name.
type Bytes = HashMap<String, Vec<u8>>;

/// One kind of attention of a setting.
pub(super) struct Attention<'s, 'a> {
    pub(super) setting: &'s Setting<'a>,
    sides: &'s [Checkpoint; 2],
    forwards: [Forward; 2],
}

impl<'s, 'a> Attention<'s, 'a> {
    /// Returns `None` where one of the two layouts does not say how it computes this kind.
    pub(super) fn new(
        setting: &'s Setting<'a>,
        sides: &'s [Checkpoint; 2],
        kind: &str,
    ) -> Option<Attention<'s, 'a>> {
        let [first, second] = setting.layouts.map(|layout| layout.forwards.get(kind).cloned());
        let mut forwards = [first?, second?];
        let rotaries = [0, 1].map(|side| forwards[side].rotary.clone());
        // One that leaves the rotation to the model around it holds heads half-split, and rotates as much as the other.
        for (side, other) in [(0, 1), (1, 0)] {
            if let (None, Some(rotary)) = (&rotaries[side], &rotaries[other]) {
                forwards[side].rotary = Some(Rotary { style: RotaryStyle::Half, dims: rotary.dims.clone() });
            }
        }
        Some(Attention { setting, sides, forwards })
    }

    /// Computes and compares the last module of the last layer.
    pub(super) fn compute(&self) -> Computed {
        if !(0..2).all(|side| self.is_there(side)) {
            return Computed::Absent;
        }
        let bytes =
            [0, 1].map(|side| self.bytes(side, &|at, flat| self.sides[side].tensors[at].values[flat]));
        match self.differences([&bytes[0], &bytes[1]]) {
            Ok(differences) if differences.largest() <= EXACT => Computed::Agrees,
            Ok(differences) => Computed::Differs(differences),
            Err(error) => Computed::Broken(error.to_string()),
        }
    }

    /// Returns whether the tensors that a side cannot do without are there.
    fn is_there(&self, side: usize) -> bool {
        let (layout, forward) = (self.setting.layouts[side], &self.forwards[side]);
        forward.all_projections().map(|projection| &projection.weight).all(|template| {
            let rules = layout.rules_of(template);
            rules.is_empty() || rules.iter().any(|(at, _)| self.setting.takes_part[side][*at])
        })
    }

    fn bytes(&self, side: usize, value: &dyn Fn(usize, usize) -> f64) -> Bytes {
        let of = |(at, stored): (usize, &super::trial::Stored)| {
            let values = (0..stored.values.len()).flat_map(|flat| value(at, flat).to_le_bytes());
            (stored.tensor.key.clone(), values.collect())
        };
        self.sides[side].tensors.iter().enumerate().map(of).collect()
    }

    fn differences(&self, bytes: [&Bytes; 2]) -> Result<Differences, ForwardError> {
        let weights = [self.sides[0].weights(bytes[0]), self.sides[1].weights(bytes[1])];
        let side = |at: usize| ForwardSide { forward: &self.forwards[at], weights: &weights[at] };
        compare_module(side(0), side(1), &self.captures(), &self.setting.sizes, 11)
    }

    fn captures(&self) -> Captures {
        let setting = self.setting;
        let last = setting.modules.len() - 1;
        let mut captures = Captures::default();
        for (path, segments) in &setting.modules[last] {
            captures.bind_path(&path.as_str().into(), &segments.as_slice().into());
        }
        for axis in self.forwards.iter().flat_map(|forward| forward.module_axes()) {
            let size = setting.sizes.get(axis).copied().unwrap_or(1);
            captures = captures.with(axis, size.saturating_sub(1));
        }
        captures
    }

    /// Returns the parameters of some of a side's tensors.
    fn params(&self, side: usize, templates: &[&Template]) -> BTreeSet<usize> {
        let layout = self.setting.layouts[side];
        let rules = templates.iter().flat_map(|template| layout.rules_of(template));
        let params = rules.flat_map(|(_, rule)| rule.expr.params());
        params.filter_map(|name| self.setting.mapping.params.get_index_of(name)).collect()
    }

    /// Finds an element that the two computations use differently, and where the wrong side would have to store it.
    ///
    /// All weights of the products, or of the output projection, are zeros but one element: where the two then differ,
    /// it is not where one of the two computations reads it.
    pub(super) fn locate(&self, wrong: usize) -> Option<Located> {
        let forward = &self.forwards[wrong];
        let products: Vec<&Template> = forward
            .products
            .iter()
            .flat_map(|product| [Some(&product.projection.weight), product.projection.bias.as_ref()])
            .flatten()
            .chain(forward.biases.iter().map(|bias| &bias.tensor))
            .collect();
        let out: Vec<&Template> =
            forward.out.iter().flat_map(|out| [Some(&out.weight), out.bias.as_ref()]).flatten().collect();
        self.locate_in(wrong, &products, &|found| found.q.max(found.k).max(found.v))
            .or_else(|| self.locate_in(wrong, &out, &|found| found.out.max(found.projection)))
    }

    fn locate_in(
        &self,
        wrong: usize,
        templates: &[&Template],
        measure: &dyn Fn(&Differences) -> f64,
    ) -> Option<Located> {
        let params = self.params(wrong, templates);
        let affine = [0, 1].map(|side| -> Vec<Affine> {
            let model = Model { setting: self.setting, side };
            let tensors = self.sides[side].tensors.iter();
            tensors.map(|stored| model.affine(stored.tensor.rule).unwrap_or(Affine::IDENTITY)).collect()
        });
        let alone = |side: usize, is_it: &dyn Fn(usize, usize) -> bool| {
            self.bytes(side, &|at, flat| {
                let stored = &self.sides[side].tensors[at];
                let place = &stored.places[flat];
                let affine = affine[side][at];
                match place {
                    _ if is_it(at, flat) => affine.apply(1.0),
                    Some(place) if params.contains(&place.param) => affine.apply(0.0),
                    _ => stored.values[flat],
                }
            })
        };
        let differs = |bytes: [&Bytes; 2]| {
            self.differences(bytes).map_or(true, |found| measure(&found).is_nan() || measure(&found) > EXACT)
        };
        let other = 1 - wrong;
        let of_element = |side: usize, element: Place| {
            alone(side, &|at, flat| self.sides[side].tensors[at].places[flat] == Some(element))
        };
        let check =
            |mine: &Bytes, theirs: &Bytes| differs(if wrong == 0 { [mine, theirs] } else { [theirs, mine] });
        let elements = |side: usize| {
            let tensors = self.sides[side].tensors.iter().enumerate();
            tensors.flat_map(|(at, stored)| (0..stored.places.len()).map(move |flat| (at, flat)))
        };
        let is_candidate = |at: usize, flat: usize| {
            let place = self.sides[wrong].tensors[at].places[flat];
            place.filter(|place| params.contains(&place.param))
        };
        let found = elements(wrong).find_map(|(at, flat)| {
            let element = is_candidate(at, flat)?;
            check(&of_element(wrong, element), &of_element(other, element)).then_some((at, flat, element))
        });
        let (at, flat, element) = found?;
        let theirs = of_element(other, element);
        let expected = elements(wrong)
            .filter(|(at, flat)| is_candidate(*at, *flat).is_some())
            .find(|place| !check(&alone(wrong, &|at, flat| (at, flat) == *place), &theirs));
        Some(Located { element, found: (at, flat), expected })
    }
}

/// An element that contradicts a `forward` entry.
pub(super) struct Located {
    pub(super) element: Place,
    /// Where the expression has it: a tensor of the wrong side, and the element row by row.
    pub(super) found: (usize, usize),
    /// Where the computation reads it.
    pub(super) expected: Option<(usize, usize)>,
}

//! The tensors that a layout stores of a model, and what each of their elements is, read naively from the expressions.

use std::collections::HashMap;

use super::setting::Setting;
use crate::bind::AxisSizes;
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Diagnostic, LintCode};
use crate::dtype::Dtype;
use crate::inspect::product;
use crate::mapping::Affine;
use crate::mapping::forward::stored_name;
use crate::mapping::key::Captures;
use crate::random::Random;
use crate::verify::naive::{Found, Reader, Sizes, Values};

/// The most elements of a tensor, and the most tensors of a rule.
const MOST: u64 = 1 << 21;

/// An element of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// The parameter, an index into [`crate::mapping::Mapping::params`].
    pub(super) param: usize,
    /// The module; 0 for a parameter that all modules share.
    pub(super) module: usize,
    /// The index in it, in canonical order.
    pub(super) flat: u64,
}

/// A stored tensor.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) key: String,
    /// The rule, an index into the layout's.
    pub(super) rule: usize,
    pub(super) module: usize,
    pub(super) captures: Captures,
    pub(super) shape: Vec<u64>,
}

impl Tensor {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Returns what a header would say; each tensor lies in a file of its own.
    pub(super) fn meta(&self, file: usize) -> TensorMeta {
        TensorMeta {
            key: self.key.clone(),
            dtype: Dtype::F64,
            shape: self.shape.clone(),
            strides: row_major(&self.shape),
            file,
            offset: 0,
            extents: Vec::new(),
        }
    }

    /// Returns the index of an element along each stored axis.
    pub(super) fn index(&self, flat: u64) -> Vec<u64> {
        let mut rest = flat;
        let mut index = vec![0; self.shape.len()];
        for (at, size) in index.iter_mut().zip(&self.shape).rev() {
            *at = rest % size.max(&1);
            rest /= size.max(&1);
        }
        index
    }
}

/// A layout's side of a setting.
#[derive(Clone, Copy)]
pub(super) struct Model<'s, 'a> {
    pub(super) setting: &'s Setting<'a>,
    /// Which of the setting's layouts.
    pub(super) side: usize,
}

impl<'a> Model<'_, 'a> {
    pub(super) fn layout(&self) -> &'a crate::mapping::Layout {
        self.setting.layouts[self.side]
    }

    /// Lists the tensors, in order of the rules.
    ///
    /// # Errors
    /// Returns two tensors of one name, names that their own template does not read, and axes without a size.
    pub(super) fn tensors(&self) -> Result<Vec<Tensor>, Vec<Diagnostic>> {
        let (layout, setting) = (self.layout(), self.setting);
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut names: HashMap<String, usize> = HashMap::default();
        let mut errors = Vec::new();
        let rules = layout.rules.iter().enumerate().zip(&setting.takes_part[self.side]);
        for (at, rule) in rules.filter(|(_, takes_part)| **takes_part).map(|(rule, _)| rule) {
            let paths: Vec<&str> = rule.template.paths().collect();
            let modules =
                if setting.is_per_module(paths.iter().copied()) { setting.modules.len() } else { 1 };
            let Some(first) = rule.expr.params().first().map(|param| setting.sizes_of(param)) else {
                continue;
            };
            let open = |axis: &str| {
                Diagnostic::error(LintCode::OpenSize, format!("nothing gives the axis `{axis}` a size"))
                    .rule(&rule.expr.span)
            };
            let mut axes: Vec<(&str, u64)> = Vec::new();
            for axis in rule.template.axes() {
                match first.get(axis) {
                    None => errors.push(open(axis)),
                    Some(size) if axes.iter().all(|(known, _)| *known != axis) => axes.push((axis, *size)),
                    Some(_) => {}
                }
            }
            let Some(shape) = self.shape(at) else {
                errors.push(open(&rule.expr.to_string()));
                continue;
            };
            let counts = rule.template.counts().filter_map(|axis| Some((axis.into(), *first.get(axis)?)));
            let counts: Vec<_> = counts.collect();
            let of = |sizes: &[u64]| {
                let product = sizes.iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
                product.filter(|product| *product <= MOST)
            };
            let total = of(&axes.iter().map(|(_, size)| *size).collect::<Vec<u64>>());
            let (Some(total), Some(_)) = (total, of(&shape)) else {
                errors.push(
                    Diagnostic::error(
                        LintCode::TooLarge,
                        "sizes that the mapping fixes make this too large to try",
                    )
                    .rule(&rule.expr.span)
                    .expected(format!("at most {MOST} elements, and as many tensors")),
                );
                continue;
            };
            for number in 0..modules as u64 * total {
                let module = (number / total) as usize;
                let mut rest = number % total;
                let mut captures = setting.paths(module, &paths);
                captures.counts.clone_from(&counts);
                for (axis, size) in &axes {
                    captures = captures.with(axis, rest % size);
                    rest /= size;
                }
                let key = match stored_name(&rule.template, &captures) {
                    Ok(key) => key,
                    Err(message) => {
                        errors.push(Diagnostic::error(LintCode::Name, message).rule(&rule.template.span));
                        break;
                    }
                };
                let (file, name) =
                    key.split_once("::").filter(|_| rule.template.file.is_some()).unwrap_or(("", &key));
                if rule.template.matches(file, name).as_ref() != Some(&captures) {
                    errors.push(
                        Diagnostic::error(
                            LintCode::Name,
                            "the template does not read the name that it writes",
                        )
                        .rule(&rule.template.span)
                        .tensor(&key)
                        .help("part indices and paths by text that cannot belong to them"),
                    );
                    break;
                }
                if let Some(other) = names.insert(key.clone(), at) {
                    errors.push(
                        Diagnostic::error(LintCode::SameName, "two tensors of the layout have one name")
                            .rule(&rule.template.span)
                            .related(&layout.rules[other].template.span, "the other one")
                            .tensor(&key),
                    );
                    break;
                }
                tensors.push(Tensor { key, rule: at, module, captures, shape: shape.clone() });
            }
        }
        if errors.is_empty() { Ok(tensors) } else { Err(errors) }
    }

    /// Returns the sizes that hold outside the labels of a rule's expression.
    fn outer(&self, rule: usize) -> Option<&AxisSizes> {
        Some(self.setting.sizes_of(self.layout().rules[rule].expr.params().first()?))
    }

    fn shape(&self, rule: usize) -> Option<Vec<u64>> {
        let outer = self.outer(rule)?;
        // The naive reading does not count what overflows.
        product(&self.layout().rules[rule].expr.dims, outer)?;
        let of = |param: &str| Some(self.setting.sizes_of(param));
        let sizes = Sizes { outer, of: &of };
        self.layout().rules[rule].expr.dims.iter().map(|dim| sizes.length(dim, outer)).collect()
    }

    /// Returns what each element of a tensor is, row by row; `None` for padding and the zeros of a block diagonal.
    pub(super) fn places(&self, tensor: &Tensor) -> Option<Vec<Option<Place>>> {
        let outer = self.outer(tensor.rule)?;
        let of = |param: &str| Some(self.setting.sizes_of(param));
        let sizes = Sizes { outer, of: &of };
        let expr = &self.layout().rules[tensor.rule].expr;
        let mut tables: Vec<Vec<Found>> = Vec::new();
        for (dim, size) in expr.dims.iter().zip(&tensor.shape) {
            let found = (0..*size).map(|index| {
                let mut found = Found::default();
                sizes.decode(dim, index, outer, &mut found)?;
                Some(found)
            });
            tables.push(found.collect::<Option<_>>()?);
        }
        let label = expr.label.as_ref().map(|label| label.param.clone());
        let place = |flat: u64| -> Option<Option<Place>> {
            let index = tensor.index(flat);
            let mut label = label.clone();
            let mut values: Values = tensor.captures.by_axis();
            for (found, at) in tables.iter().zip(&index) {
                let found = &found[*at as usize];
                match (&label, &found.label) {
                    // Unlike labels of two axes: the zeros of a block diagonal.
                    (Some(one), Some(other)) if one != other && expr.label.is_none() => return Some(None),
                    (_, Some(other)) => label = Some(other.clone()),
                    (_, None) => {}
                }
                values.extend(found.values.iter().map(|(axis, value)| (axis.clone(), *value)));
            }
            let Some(param) = label.flatten() else { return Some(None) };
            Some(Some(self.place(&param, &values, tensor.module)?))
        };
        (0..tensor.elements()).map(place).collect()
    }

    /// Returns the element of a parameter at which its axes have these values.
    fn place(&self, param: &str, values: &Values, module: usize) -> Option<Place> {
        let (mapping, layout) = (self.setting.mapping, self.layout());
        let sizes = self.setting.sizes_of(param);
        let (number, _, declared) = mapping.params.get_full(param)?;
        let values = Reader { mapping, layout }.declared(param, values, sizes)?;
        let mut flat = 0;
        for axis in &declared.axes {
            flat = flat * sizes.get(axis)? + values.get(axis)?;
        }
        Some(Place { param: number, module, flat })
    }

    /// Returns how a rule's values follow from its parameters'.
    pub(super) fn affine(&self, rule: usize) -> Option<Affine> {
        let outer = self.outer(rule)?;
        let rule = &self.layout().rules[rule];
        let size = |axis: &str| outer.get(axis).copied();
        let value = |formula: &Option<crate::mapping::arith::Formula>, plain: f64| match formula {
            Some(formula) => formula.eval(&size),
            None => Some(plain),
        };
        Some(Affine { scale: value(&rule.scale, 1.0)?, offset: value(&rule.offset, 0.0)? })
    }
}

impl Setting<'_> {
    /// Returns the value of an element: another one for each, below 2 in size; zero where one of the layouts has no
    /// place for the parameter.
    pub(super) fn value(&self, place: &Place) -> f64 {
        let known = self.mapping.params.get_index(place.param);
        if known.is_none_or(|(name, _)| !self.present.contains(name)) {
            return 0.0;
        }
        let seed = (place.param as u64) << 40 ^ (place.module as u64) << 32 ^ place.flat;
        // The first bits of neighbouring seeds are as unlike as any.
        let bits = Random(seed).bits();
        let size = 0.25 + (bits >> 12) as f64 / (1_u64 << 52) as f64;
        if bits & 1 == 0 { size } else { -size }
    }

    /// Writes an element in words, `q.weight [1 0 3]`.
    pub(super) fn name(&self, place: &Place) -> String {
        let Some((name, param)) = self.mapping.params.get_index(place.param) else { return String::new() };
        let sizes = self.sizes_of(name);
        let mut rest = place.flat;
        let mut indices = Vec::new();
        for axis in param.axes.iter().rev() {
            let size = sizes.get(axis).copied().unwrap_or(1).max(1);
            indices.push(format!("{axis}={}", rest % size));
            rest /= size;
        }
        indices.reverse();
        let index = if indices.is_empty() { String::new() } else { format!("[{}]", indices.join(" ")) };
        format!("{name}{index}")
    }
}

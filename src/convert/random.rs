//! Random weights of a module's shapes, put through the plan in memory: trained biases may be zero and hide a fault.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use super::attention::{Computation, MOST_RANDOM, Module};
use super::tensor::Output;
use crate::catalog::{Catalog, TensorMeta};
use crate::diag::Errors;
use crate::dtype::Dtype;
use crate::exec::{Limits, Placement, execute};
use crate::mapping::forward::{Forward, stored_name};
use crate::plan::{Check, Plan, Step, TensorPlan, unit};
use crate::random::Random;
use crate::read::{ReadAt, read_memory};
use crate::verify::forward::{Differences, ForwardError, ForwardSide, Weights, compare_module};

impl Computation<'_> {
    /// Makes random weights for a module, puts them through the plan and compares; or says why there are none.
    pub(super) fn random(
        &self,
        module: &Module,
        a: &Forward,
        b: &Forward,
        seed: u64,
    ) -> Result<Result<Differences, String>, ForwardError> {
        let (sources, targets) = self.closure(&module.tensors);
        let catalog = self.isolated.get_or_init(|| isolated(self.source.catalog()));
        let bytes: u64 = sources.iter().map(|tensor| extent(&catalog.tensors[*tensor])).sum();
        if bytes > MOST_RANDOM {
            return Ok(Err(format!("no random weights for modules of over {} MiB", MOST_RANDOM >> 20)));
        }
        // The plan reads each extent where it lies, and replicas and fills are no free choice.
        if sources.iter().any(|tensor| !catalog.tensors[*tensor].extents.is_empty()) {
            return Ok(Err("no random weights for tensors that lie in several extents".to_owned()));
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
        let failed = |errors: Errors| {
            ForwardError::Read("random weights".into(), io::Error::other(errors.to_string()))
        };
        let (placements, written) = in_memory(&part, catalog, &made, 8 << 20).map_err(failed)?;
        let source = MemoryWeights {
            names: self.source_names_of(catalog, &sources),
            read: Box::new(|meta: &TensorMeta| {
                catalog.find(&meta.key).and_then(|at| made.get(&at)).map(Vec::as_slice)
            }),
        };
        let metas = self.target_metas(&part.targets, &placements);
        let places: HashMap<String, (usize, usize)> = part
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
        compare_module(sides.0, sides.1, &module.captures, &module.sizes, seed).map(Ok)
    }

    /// Returns the source tensors that any target tensor of the module needs, and these target tensors.
    fn closure(&self, tensors: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut sources: HashSet<usize> = tensors.iter().copied().collect();
        let mut targets: HashSet<usize> = HashSet::default();
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
        let sorted = |set: HashSet<usize>| {
            let mut list: Vec<usize> = set.into_iter().collect();
            list.sort_unstable();
            list
        };
        (sorted(sources), sorted(targets))
    }

    fn source_names_of(&self, catalog: &Catalog, sources: &[usize]) -> HashMap<String, TensorMeta> {
        let names = self.source_names(self.selection.source());
        let chosen = names.into_iter().filter(|(_, tensor)| sources.contains(tensor));
        chosen.map(|(name, tensor)| (name, catalog.tensors[tensor].clone())).collect()
    }

    fn target_metas(&self, targets: &[TensorPlan], placements: &[Placement]) -> HashMap<String, TensorMeta> {
        let by_key: HashMap<&str, (&TensorPlan, &Placement)> = targets
            .iter()
            .zip(placements)
            .map(|(target, place)| (target.key.as_str(), (target, place)))
            .collect();
        let layout = self.selection.target();
        let named = self.bound.targets.iter().filter_map(|tensor| {
            let (target, place) = by_key.get(tensor.key.as_str())?;
            let template = &layout.rules[tensor.reading.rule].template;
            let name = stored_name(template, &tensor.reading.captures).ok()?;
            let meta = TensorMeta {
                key: target.key.clone(),
                dtype: target.dtype,
                shape: target.shape.clone(),
                strides: target.strides(),
                file: 0,
                offset: place.offset,
                extents: Vec::new(),
            };
            Some((name, meta))
        });
        named.collect()
    }
}

/// Returns a catalog in which each tensor lies in a file of its own, so that random weights of one do not meet another's:
/// views of one storage overlap.
fn isolated(catalog: &Catalog) -> Catalog {
    let mut alone = catalog.clone();
    for (at, tensor) in alone.tensors.iter_mut().enumerate() {
        (tensor.file, tensor.offset) = (at, 0);
    }
    alone
}

/// Returns the bytes from a tensor's first to behind its last element, gaps included.
fn extent(tensor: &TensorMeta) -> u64 {
    let reach = tensor
        .shape
        .iter()
        .zip(&tensor.strides)
        .map(|(size, stride)| size.saturating_sub(1) * stride)
        .sum::<u64>();
    tensor.dtype.byte_len(reach + 1).unwrap_or(0)
}

fn sources_of(target: &TensorPlan) -> Vec<usize> {
    let copies = target.steps.iter().filter_map(|step| match step {
        Step::Copy(copy) => Some(copy.source.tensor),
        Step::Zero(_) => None,
    });
    copies.collect()
}

/// Makes a tensor's random bytes, biases and norms included: normally distributed in steps of 1/16, which all types
/// of floating point hold exactly, so that a cast changes none of them.
fn random_bytes(tensor: &TensorMeta, random: &mut Random) -> Vec<u8> {
    let size = extent(tensor);
    let mut bytes = Vec::with_capacity(size as usize);
    let count = size / tensor.dtype.byte_width().unwrap_or(1);
    let mut next = || ((random.normal() * 16.0).round() / 16.0).clamp(-7.0, 7.0);
    match tensor.dtype {
        Dtype::F64 => (0..count).for_each(|_| bytes.extend(next().to_le_bytes())),
        Dtype::F32 => (0..count).for_each(|_| bytes.extend((next() as f32).to_le_bytes())),
        Dtype::F16 => (0..count).for_each(|_| bytes.extend(half::f16::from_f32(next() as f32).to_le_bytes())),
        Dtype::BF16 => {
            (0..count).for_each(|_| bytes.extend(half::bf16::from_f32(next() as f32).to_le_bytes()))
        }
        // Nothing is computed with these; the caller abstains.
        _ => bytes.resize(size as usize, 0),
    }
    bytes
}

/// Makes random data what the plan requires: copies equal, fillers zero.
fn fulfil(check: &Check, catalog: &Catalog, made: &mut BTreeMap<usize, Vec<u8>>) {
    let width = |tensor: usize| unit(catalog.tensors[tensor].dtype) as usize;
    match check {
        Check::Equal { first, second, loops } => {
            if !made.contains_key(&first.0.tensor) || !made.contains_key(&second.0.tensor) {
                return;
            }
            let mut places = vec![(first.1, second.1)];
            for (count, a, b) in loops {
                places = places
                    .iter()
                    .flat_map(|(x, y)| (0..*count).map(move |i| (x + i * a, y + i * b)))
                    .collect();
            }
            let width = width(first.0.tensor);
            for (from, to) in places {
                let from = from as usize * width;
                let element = made[&first.0.tensor][from..from + width].to_vec();
                if let Some(bytes) = made.get_mut(&second.0.tensor) {
                    bytes[to as usize * width..][..width].copy_from_slice(&element);
                }
            }
        }
        Check::Zero { source, region } => {
            let width = width(source.tensor);
            let Some(bytes) = made.get_mut(&source.tensor) else { return };
            let mut places = vec![region.offset];
            for (count, step) in &region.loops {
                places = places.iter().flat_map(|place| (0..*count).map(move |i| place + i * step)).collect();
            }
            places.iter().for_each(|place| bytes[*place as usize * width..][..width].fill(0));
        }
    }
}

/// Executes a plan in memory: sources by number, each a file of its own; returns the output and where each target lies.
///
/// # Errors
/// As [`execute`].
pub(crate) fn in_memory(
    plan: &Plan,
    catalog: &Catalog,
    sources: &BTreeMap<usize, Vec<u8>>,
    memory: u64,
) -> Result<(Vec<Placement>, Vec<u8>), Errors> {
    let mut placements = Vec::new();
    let mut size = 0;
    for target in &plan.targets {
        placements.push(Placement { file: 0, offset: size });
        size += target.bytes();
    }
    let output = Output::new(vec![0; size as usize]);
    let limits = Limits { threads: 1, memory };
    execute(plan, catalog, &Memory(sources), &output, &placements, &limits, &())?;
    Ok((placements, output.into_bytes()))
}

/// Finds a tensor's bytes.
pub(crate) type Find<'a> = Box<dyn Fn(&TensorMeta) -> Option<&'a [u8]> + Sync + 'a>;

/// Tensors in memory.
pub(crate) struct MemoryWeights<'a> {
    /// By the names that the layout's templates write.
    pub(crate) names: HashMap<String, TensorMeta>,
    /// Their bytes.
    pub(crate) read: Find<'a>,
}

impl Weights for MemoryWeights<'_> {
    fn find(&self, name: &str) -> Option<&TensorMeta> {
        self.names.get(name)
    }

    fn read(&self, tensor: &TensorMeta, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        read_memory((self.read)(tensor).ok_or(io::ErrorKind::UnexpectedEof)?, offset, buffer)
    }
}

/// Random source tensors, as the execution reads them: each is a file of its own.
struct Memory<'a>(&'a BTreeMap<usize, Vec<u8>>);

impl ReadAt for Memory<'_> {
    fn read_exact_at(&self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        read_memory(self.0.get(&file).ok_or(io::ErrorKind::InvalidInput)?, offset, buffer)
    }
}

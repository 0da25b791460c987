//! Reading strided parts of source tensors with few reads.

use std::ops::Range;

use super::buffer::Buffer;
use super::copy::{fill, permute};
use super::part::{Part, elements, merged, walk};
use crate::catalog::{Catalog, ExtentContent, ExtentId, Place};
use crate::diag::{Diagnostic, Errors, ExecCode};
use crate::plan::{Loop, unit};
use crate::read::ReadAt;

/// What a positioned read costs beside its bytes, in nanoseconds. These three need only be about right: they choose
/// between ways that give the same bytes.
const READ: f64 = 400.0;
/// Nanoseconds per byte that is read from the page cache.
const READ_BYTE: f64 = 1.0 / 8.0;
/// Nanoseconds per byte that is permuted in memory.
const PERMUTE_BYTE: f64 = 1.0 / 4.0;

/// The most bytes that are read before they are permuted, where more reads cost nothing: so many stay in a core's cache.
const STRIP: u64 = 1 << 20;

/// Reads parts of source tensors into memory.
pub(super) struct Gather<'a> {
    catalog: &'a Catalog,
    source: &'a dyn ReadAt,
    scratch: Buffer,
    scratch_bytes: u64,
    /// Which units of which tensor the scratch buffer holds from its start, where it holds an unbroken range.
    cached: Option<(ExtentId, Range<u64>)>,
    /// A tensor, and how many of its units are wanted one after the other.
    wanted: Option<(ExtentId, u64)>,
    /// Bytes read.
    pub(super) bytes_read: u64,
}

/// A way to read a part.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Way {
    /// Nanoseconds, by estimate.
    cost: f64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Each stretch goes straight to its place in the target; the number of source loops inside a stretch.
    Direct(usize),
    /// Each stretch, gaps included, goes to the scratch buffer; the number of source loops inside a stretch.
    Stretches(usize),
    /// The whole tensor goes to the scratch buffer and stays there for the parts that follow.
    Whole,
}

/// A part with its loops in source order.
struct Reading<'a> {
    tensor: ExtentId,
    unit: u64,
    part: Part<'a>,
    /// The loops that move in the source, by ascending source step.
    moving: Vec<Loop>,
    /// The loops that repeat.
    repeating: Vec<Loop>,
}

impl<'a> Reading<'a> {
    fn new(tensor: ExtentId, unit: u64, part: Part<'a>) -> Reading<'a> {
        let (mut moving, repeating): (Vec<Loop>, Vec<Loop>) =
            part.loops.iter().partition(|l| l.source_step != 0);
        moving.sort_by_key(|l| l.source_step);
        Reading { tensor, unit, part, moving, repeating }
    }

    /// Returns the units from the first to behind the last one of a stretch over the innermost `inside` loops.
    fn stretch(&self, inside: usize) -> u64 {
        1 + self.moving[..inside].iter().map(|l| (l.count - 1) * l.source_step).sum::<u64>()
    }

    /// Returns the number of loops inside the longest stretch that needs no permuting, where there is one.
    fn direct(&self) -> usize {
        let mut run = 1;
        self.moving
            .iter()
            .take_while(|l| {
                let goes_on = l.source_step == run && l.target_step == run;
                run *= l.count;
                goes_on
            })
            .count()
    }

    /// Returns the scratch bytes that stretches take.
    fn scratch(&self, inside: usize) -> u64 {
        elements(&self.moving[inside..]) * self.stretch(inside) * self.unit
    }

    fn hull(&self) -> Range<u64> {
        self.part.source_offset..self.part.source_offset + self.stretch(self.moving.len())
    }

    /// Returns the cheapest way, whether or not it fits the scratch buffer; the whole tensor only where it fits.
    /// `wanted` is how many units of the tensor this and the parts that follow take together, where it is known.
    fn cheapest(&self, tensor_bytes: u64, scratch_bytes: u64, wanted: Option<u64>) -> Way {
        let direct = self.direct();
        let stretches = elements(&self.moving[direct..]) * elements(&self.repeating);
        let moved = (self.part.elements() * self.unit) as f64;
        let mut best = Way { cost: stretches as f64 * READ + moved * READ_BYTE, kind: Kind::Direct(direct) };
        let mut consider = |cost: f64, kind: Kind| {
            if cost < best.cost {
                best = Way { cost, kind };
            }
        };
        for inside in 0..=self.moving.len() {
            let reads = elements(&self.moving[inside..]) as f64;
            let cost = reads * READ + self.scratch(inside) as f64 * READ_BYTE + moved * PERMUTE_BYTE;
            consider(cost, Kind::Stretches(inside));
        }
        let used = elements(&self.moving) as f64;
        // The parts that follow pay for the rest.
        let share = match wanted {
            Some(wanted) => Some(used / wanted as f64),
            None => Some(used * self.unit as f64 / tensor_bytes as f64).filter(|share| *share > 0.3),
        };
        if let Some(share) = share.filter(|_| tensor_bytes <= scratch_bytes) {
            let whole = READ + tensor_bytes as f64 * READ_BYTE;
            consider(whole * share.min(1.0) + moved * PERMUTE_BYTE, Kind::Whole);
        }
        best
    }
}

impl<'a> Gather<'a> {
    /// Makes one with a scratch buffer of that many bytes, at least 8.
    pub(super) fn new(catalog: &'a Catalog, source: &'a dyn ReadAt, scratch_bytes: u64) -> Gather<'a> {
        Gather {
            catalog,
            source,
            scratch: Buffer::new(scratch_bytes),
            scratch_bytes,
            cached: None,
            wanted: None,
            bytes_read: 0,
        }
    }

    /// Returns about how many nanoseconds a part will take.
    pub(super) fn estimate(catalog: &Catalog, scratch_bytes: u64, tensor: ExtentId, part: Part<'_>) -> f64 {
        let place = catalog.place(tensor);
        if let ExtentContent::Fill(_) = place.content {
            return (part.elements() * unit(place.dtype)) as f64 * PERMUTE_BYTE;
        }
        let unit = unit(place.dtype);
        let loops = merged(part.loops);
        let reading = Reading::new(tensor, unit, Part { loops: &loops, ..part });
        reading.cheapest(stored_units(&place) * unit, scratch_bytes, None).cost
    }

    /// Says that the parts that are gathered next take so many units of a tensor together, or that nothing is known.
    pub(super) fn want(&mut self, wanted: Option<(ExtentId, u64)>) {
        self.wanted = wanted;
    }

    /// Copies a part of a source tensor into `target`; target offsets count the source's units from the buffer's start.
    pub(super) fn gather(
        &mut self,
        tensor: ExtentId,
        part: Part<'_>,
        target: &mut [u8],
    ) -> Result<(), Errors> {
        let place = self.catalog.place(tensor);
        let unit = unit(place.dtype);
        if let ExtentContent::Fill(bits) = place.content {
            fill(bits, unit, target, part);
            return Ok(());
        }
        let loops = merged(part.loops);
        let reading = Reading::new(tensor, unit, Part { loops: &loops, ..part });
        if self.holds(tensor, &reading.hull()) {
            self.permute_cached(&reading, target);
            return Ok(());
        }
        let units = stored_units(&place);
        let wanted = self.wanted.filter(|(of, _)| *of == tensor).map(|(_, units)| units);
        match reading.cheapest(units * unit, self.scratch_bytes, wanted).kind {
            Kind::Direct(inside) => self.read_direct(&reading, inside, target),
            Kind::Whole => {
                self.cached = None;
                self.read_scratch(tensor, unit, 0, 0, units)?;
                self.cached = Some((tensor, 0..units));
                self.permute_cached(&reading, target);
                Ok(())
            }
            // One stretch is read in strips, each permuted while it is in the cache.
            Kind::Stretches(inside)
                if inside == reading.moving.len() && inside > 1 && reading.scratch(inside) > STRIP =>
            {
                self.gather_halves(&reading, target)
            }
            Kind::Stretches(inside) if reading.scratch(inside) <= self.scratch_bytes => {
                self.read_stretches(&reading, inside, target)
            }
            Kind::Stretches(_) => self.gather_halves(&reading, target),
        }
    }

    fn holds(&self, tensor: ExtentId, hull: &Range<u64>) -> bool {
        let cached = self.cached.as_ref();
        cached.is_some_and(|(held, range)| {
            *held == tensor && range.start <= hull.start && hull.end <= range.end
        })
    }

    fn permute_cached(&self, reading: &Reading<'_>, target: &mut [u8]) {
        let start = self.cached.as_ref().map_or(0, |(_, range)| range.start);
        let part = Part { source_offset: reading.part.source_offset - start, ..reading.part };
        permute(reading.unit, self.scratch.bytes(), target, part);
    }

    /// Splits the loop with the largest source step.
    fn gather_halves(&mut self, reading: &Reading<'_>, target: &mut [u8]) -> Result<(), Errors> {
        let mut loops = reading.part.loops.to_vec();
        let widest = (0..loops.len()).max_by_key(|&at| loops[at].source_step).unwrap_or(0);
        let Loop { count, source_step, target_step } = loops[widest];
        let half = count / 2;
        loops[widest].count = half;
        self.gather(reading.tensor, Part { loops: &loops, ..reading.part }, target)?;
        loops[widest].count = count - half;
        let source_offset = reading.part.source_offset + half * source_step;
        let target_offset = reading.part.target_offset + half * target_step;
        self.gather(reading.tensor, Part { source_offset, target_offset, loops: &loops }, target)
    }

    fn read_direct(&mut self, reading: &Reading<'_>, inside: usize, target: &mut [u8]) -> Result<(), Errors> {
        let (tensor, unit) = (reading.tensor, reading.unit);
        let run = reading.stretch(inside);
        let outer: Vec<Loop> =
            reading.moving[inside..].iter().rev().chain(&reading.repeating).copied().collect();
        walk(&outer, reading.part.source_offset, reading.part.target_offset, &mut |from, to| {
            let target = &mut target[(to * unit) as usize..((to + run) * unit) as usize];
            read(self.catalog, self.source, tensor, from * unit, target)?;
            self.bytes_read += run * unit;
            Ok(())
        })
    }

    fn read_stretches(
        &mut self,
        reading: &Reading<'_>,
        inside: usize,
        target: &mut [u8],
    ) -> Result<(), Errors> {
        self.cached = None;
        let length = reading.stretch(inside);
        // The same loops with the steps that the compact scratch buffer has.
        let mut loops = reading.moving.clone();
        let mut step = length;
        for l in &mut loops[inside..] {
            l.source_step = step;
            step *= l.count;
        }
        let outer: Vec<Loop> = reading.moving[inside..].iter().rev().copied().collect();
        let mut to = 0;
        walk(&outer, reading.part.source_offset, 0, &mut |from, _| {
            self.read_scratch(reading.tensor, reading.unit, from, to, length)?;
            to += length;
            Ok::<(), Errors>(())
        })?;
        if inside == loops.len() {
            self.cached = Some((reading.tensor, reading.hull()));
        }
        loops.extend(&reading.repeating);
        loops.sort_by_key(|l| std::cmp::Reverse(l.target_step));
        let part = Part { source_offset: 0, target_offset: reading.part.target_offset, loops: &loops };
        permute(reading.unit, self.scratch.bytes(), target, part);
        Ok(())
    }

    fn read_scratch(
        &mut self,
        tensor: ExtentId,
        unit: u64,
        from: u64,
        to: u64,
        units: u64,
    ) -> Result<(), Errors> {
        let target = &mut self.scratch.bytes_mut()[(to * unit) as usize..((to + units) * unit) as usize];
        read(self.catalog, self.source, tensor, from * unit, target)?;
        self.bytes_read += units * unit;
        Ok(())
    }
}

/// Returns the units from a stored extent's first to behind its last one.
fn stored_units(place: &Place<'_>) -> u64 {
    let elements =
        1 + place.lengths.iter().zip(place.strides).map(|(n, step)| n.saturating_sub(1) * step).sum::<u64>();
    let (of_block, bytes) = place.dtype.block();
    if of_block == 1 { elements } else { elements.div_ceil(of_block) * bytes }
}

fn read(
    catalog: &Catalog,
    source: &dyn ReadAt,
    tensor: ExtentId,
    offset: u64,
    target: &mut [u8],
) -> Result<(), Errors> {
    // What is filled is not read.
    let ExtentContent::Stored { file, offset: first } = catalog.place(tensor).content else { return Ok(()) };
    source.read_exact_at(file, first + offset, target).map_err(|error| {
        let key = &catalog.tensors[tensor.tensor].key;
        let diagnostic =
            Diagnostic::error(ExecCode::Read, format!("cannot read the weights: {error}")).tensor(key);
        Errors::from(match catalog.files.get(file) {
            Some(path) => diagnostic.file(path),
            None => diagnostic,
        })
    })
}

//! Writing an output so that a later run can go on with it (`--resume`).

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::SystemTime;

use super::Conversion;
use crate::diag::Errors;
use crate::exec::publish::{Fingerprint, Kept, Staging};
use crate::exec::{ExecStats, Limits, Rounded, WriteAt, execute_by_file};
use crate::format::output::OutputLayout;
use crate::progress::Progress;

/// The output, one file after the other; each is sealed and recorded when it is whole.
struct ByFile<'a> {
    staging: &'a Staging,
    layout: &'a OutputLayout,
    threads: usize,
    progress: &'a dyn Progress,
}

impl WriteAt for ByFile<'_> {
    fn write_all_at(&self, file: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.staging.write_all_at(file, offset, bytes)
    }

    fn is_whole(&self, file: usize) -> bool {
        self.staging.is_kept(file)
    }

    fn finished(&self, file: usize, rounded: &[Rounded]) -> Result<(), Errors> {
        self.staging.seal(self.layout, file..file + 1, self.threads, self.progress)?;
        self.staging.finished(file, rounded, self.progress)
    }
}

impl Conversion<'_> {
    /// Writes the files that an earlier run has not finished.
    pub(super) fn write_by_file(
        &self,
        staging: &mut Staging,
        limits: &Limits,
        progress: &dyn Progress,
    ) -> Result<(ExecStats, Option<Kept>), Errors> {
        let threads = limits.threads;
        let (layout, places) = (&self.layout, &self.layout.placements);
        let kept = staging.check_kept(layout, threads, progress)?;
        let targets = self.plan.targets.iter().zip(places);
        let whole = targets.filter(|(_, place)| staging.is_kept(place.file));
        progress.advance(whole.map(|(target, _)| target.bytes()).sum());
        let (catalog, source) = (self.reader.catalog(), self.reader.as_ref());
        let target = ByFile { staging, layout, threads, progress };
        let mut stats = execute_by_file(&self.plan, catalog, source, &target, places, limits, progress)?;
        stats.rounded.extend(staging.rounded_in_kept());
        let order: HashMap<&str, usize> =
            self.plan.targets.iter().enumerate().map(|(at, target)| (target.key.as_str(), at)).collect();
        stats.rounded.sort_by_key(|rounded| order.get(rounded.key.as_str()).copied());
        Ok((stats, Some(kept)))
    }

    /// Returns what tells whether two runs write the same bytes; only headers are looked at.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let catalog = self.reader.catalog();
        let mut sources = Text(blake3::Hasher::new());
        // Of the open files, not of what has their names by now.
        let stamps = self.reader.stamps();
        sources.add(&stamps);
        if stamps.is_empty() {
            // Nothing would tell that such a source has changed: no other run is alike.
            sources.add(&(std::process::id(), SystemTime::now()));
        }
        for tensor in &catalog.tensors {
            sources.add(tensor);
        }
        let mut plan = Text(blake3::Hasher::new());
        let layouts = (&self.selection.source().name, &self.selection.target().name);
        plan.add(&(env!("CARGO_PKG_VERSION"), &self.selection.mapping().hash, layouts));
        for target in &self.plan.targets {
            plan.add(&(&target.key, target.dtype, &target.shape, &target.steps));
        }
        plan.add(&self.layout.placements);
        for file in &self.layout.files {
            plan.add(&(&file.name, file.size, &file.checksums));
            for (offset, bytes) in &file.pieces {
                plan.add(&(offset, bytes.len()));
                plan.0.update(bytes);
            }
        }
        let hex = |text: Text| text.0.finalize().to_hex().to_string();
        Fingerprint { sources: hex(sources), plan: hex(plan) }
    }
}

/// Hashes what things look like to a programmer, which shows every field.
struct Text(blake3::Hasher);

impl Text {
    fn add(&mut self, thing: &impl std::fmt::Debug) {
        // A hasher takes everything.
        let _ = writeln!(self.0, "{thing:?}");
    }
}

//! What `--resume` keeps of a run that does not come to its end: the output files that are finished.
//!
//! `plan.json` says of which conversion they are, and `done/FILE.json` that a file is whole: it is written when all of the
//! file is on the disk, with its size and its BLAKE3. A later run of the same conversion compares both again.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::{read_json, write_json};
use super::system::{is_there, sync_folder};
use super::work::{Leave, Work};
use super::{PublishOptions, Staged, Staging, io_error};
use crate::diag::{Diagnostic, Errors, ExecCode, ResumeCode};
use crate::exec::Rounded;
use crate::format::output::OutputLayout;
use crate::parallel::in_parallel;
use crate::positioned::read_exact_at;
use crate::progress::Progress;

/// How much is read at once, in bytes.
const CHUNK: u64 = 1 << 20;

/// What tells whether two runs write the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Of the source files: what they hold, as far as it shows without reading them.
    pub sources: String,
    /// Of all else: the mapping, the layouts, the plan and the output's headers.
    pub plan: String,
}

/// What a run with `--resume` found of an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The files that need not be written again.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Why nothing was kept although there was something, one clause.
    pub refused: Option<&'static str>,
}

/// Says that a file is whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Whole {
    /// In bytes.
    size: u64,
    /// Of the whole file.
    blake3: String,
    /// What conversion rounded in it.
    rounded: Vec<Loss>,
}

/// As [`Rounded`]; the error as bits, which JSON holds exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Loss {
    key: String,
    error: u64,
    underflows: u64,
}

/// Makes ready for a conversion of that fingerprint: keeps what is of the same one and begins anew where it is of
/// another; returns why, if so.
pub(super) fn begin(work: &Work, fingerprint: &Fingerprint) -> Result<Option<&'static str>, Errors> {
    let earlier: Option<Fingerprint> = read_json(work, &work.plan());
    if earlier.as_ref() == Some(fingerprint) && is_there(&work.new_folder()) {
        return Ok(None);
    }
    work.begin_anew()?;
    let done = work.done_folder();
    fs::create_dir(&done).map_err(|error| io_error(&done, "create it", &error))?;
    write_json(work, &work.plan(), fingerprint, true)?;
    Ok(earlier.map(|earlier| {
        if earlier.sources == fingerprint.sources {
            "it is of another conversion of this source"
        } else {
            "the source has changed, or is another one"
        }
    }))
}

/// Reads the record of a file that an earlier run has finished.
pub(super) fn whole(work: &Work, name: &OsStr, size: u64) -> Option<Whole> {
    let whole: Whole = read_json(work, &work.done(name.to_str()?))?;
    let there = work.new_folder().join(name).symlink_metadata().ok()?;
    (whole.size == size && there.is_file() && there.len() == size).then_some(whole)
}

impl Staging {
    /// Compares the files that an earlier run has finished with their checksums; what differs is to be written again.
    ///
    /// # Errors
    /// Returns `publish/io` for what the system reports, and cancellation.
    pub fn check_kept(
        &mut self,
        layout: &OutputLayout,
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<Kept, Errors> {
        let mut kept = Kept { refused: self.refused, ..Kept::default() };
        let files = &self.files;
        let agrees = |at: usize| match &files[at].whole {
            Some(whole) => Ok(hash(&files[at], progress)? == whole.blake3),
            None => Ok(false),
        };
        let agree = in_parallel(files.len(), threads, progress, &agrees)?;
        for ((staged, output), agrees) in self.files.iter_mut().zip(&layout.files).zip(agree) {
            if agrees {
                kept.files += 1;
                kept.bytes += staged.size;
            } else if staged.whole.take().is_some() {
                let name = staged.path.file_name().unwrap_or_default().to_string_lossy();
                let path = self.work.done(&name);
                fs::remove_file(&path).map_err(|error| io_error(&path, "remove it", &error))?;
                staged.fill(output)?;
            }
        }
        Ok(kept)
    }

    /// Adds to the errors that end a run what the next one will find of it.
    pub fn with_kept(&self, errors: Errors) -> Errors {
        let names = self.files.iter().filter_map(|staged| staged.path.file_name()?.to_str());
        let finished = names.filter(|name| is_there(&self.work.done(name))).count();
        if self.work.leave != Leave::Finished || finished == 0 {
            return errors;
        }
        let message = format!("{finished} of {} files are finished and stay for --resume", self.files.len());
        let warning = Diagnostic::warning(ResumeCode::Kept, message).file(self.work.path());
        errors.and(warning.help("give the same command again to go on from them"))
    }

    /// Returns whether an earlier run has finished a file, counted as in [`Staging::write_all_at`].
    pub fn is_kept(&self, file: usize) -> bool {
        self.files.get(file).is_some_and(|staged| staged.whole.is_some())
    }

    /// Returns what conversion rounded in the files that are kept.
    pub fn rounded_in_kept(&self) -> Vec<Rounded> {
        let losses = self.files.iter().filter_map(|staged| staged.whole.as_ref()).flat_map(|w| &w.rounded);
        let rounded = |loss: &Loss| Rounded {
            key: loss.key.clone(),
            error: f64::from_bits(loss.error),
            underflows: loss.underflows,
        };
        losses.map(rounded).collect()
    }

    /// Takes note that a file is whole, once it is on the disk; a later run of the same conversion keeps it.
    ///
    /// # Errors
    /// Returns `publish/io` for what the system reports, and cancellation.
    pub fn finished(&self, file: usize, rounded: &[Rounded], progress: &dyn Progress) -> Result<(), Errors> {
        let Some(staged) = self.files.get(file) else { return Ok(()) };
        let always = PublishOptions { sync: true, ..self.options };
        let synced = staged.file.file().and_then(|file| file.sync_all());
        synced.map_err(|error| io_error(&staged.target, "write it to the disk", &error))?;
        sync_folder(&self.work.new_folder(), always)?;
        let blake3 = hash(staged, progress)?;
        let loss = |rounded: &Rounded| Loss {
            key: rounded.key.clone(),
            error: rounded.error.to_bits(),
            underflows: rounded.underflows,
        };
        let whole = Whole { size: staged.size, blake3, rounded: rounded.iter().map(loss).collect() };
        let name = staged.path.file_name().unwrap_or_default().to_string_lossy();
        write_json(&self.work, &self.work.done(&name), &whole, true)
    }
}

/// Removes from `new/` what is none of these: of an earlier run's output, or links to files of the destination.
pub(super) fn remove_others(work: &Work, staged: &[&Path]) -> Result<(), Errors> {
    let new = work.new_folder();
    let fail =
        |error: io::Error| Errors::from(io_error(&new, "remove what an earlier run left in it", &error));
    for entry in fs::read_dir(&new).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if staged.contains(&path.as_path()) {
            continue;
        }
        // A folder of files that were about to be published.
        let is_folder = path.symlink_metadata().map_err(fail)?.is_dir();
        let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(fail)?;
    }
    Ok(())
}

/// Returns the BLAKE3 of a file.
fn hash(staged: &Staged, progress: &dyn Progress) -> Result<String, Errors> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = Vec::new();
    for at in (0..staged.size).step_by(CHUNK as usize) {
        if progress.cancelled() {
            return Err(
                Diagnostic::error(ExecCode::Cancelled, "stopped while reading what was written").into()
            );
        }
        buffer.resize(CHUNK.min(staged.size - at) as usize, 0);
        let read = staged.file.file().and_then(|file| read_exact_at(&file, at, &mut buffer));
        read.map_err(|error| io_error(&staged.target, "read it back", &error))?;
        hasher.update(&buffer);
    }
    Ok(hasher.finalize().to_hex().to_string())
}

//! What a caller may ask, built step by step; what follows from the destination.

use std::path::PathBuf;

use super::ConvertOptions;
use crate::bind::BindOptions;
use crate::diag::{Diagnostic, Errors, UsageCode};
use crate::exec::publish::Destination;
use crate::format::{Format, OpenOptions};

/// The most bytes in a shard where nothing else is said, as huggingface_hub has it
/// (`src/huggingface_hub/serialization/_base.py`, MAX_SHARD_SIZE).
const SHARD_SIZE: u64 = 5_000_000_000;

impl ConvertOptions {
    /// Sets how the source is opened.
    pub fn open(mut self, open: OpenOptions) -> ConvertOptions {
        self.open = open;
        self
    }

    /// Sets how the source is bound.
    pub fn bind(mut self, bind: BindOptions) -> ConvertOptions {
        self.bind = bind;
        self
    }

    /// Names the source's config, instead of those beside it.
    pub fn config(mut self, config: impl Into<Option<PathBuf>>) -> ConvertOptions {
        self.config = config.into();
        self
    }

    /// Sets whether the caller vouches for the source layout (`--trust-layout`).
    pub fn trust_layout(mut self, trust: bool) -> ConvertOptions {
        self.trust_layout = trust;
        self
    }

    /// Sets the format of the output.
    pub fn format(mut self, format: impl Into<Option<Format>>) -> ConvertOptions {
        self.format = format.into();
        self
    }

    /// Sets the most bytes of tensors in one output file.
    pub fn max_shard_size(mut self, bytes: impl Into<Option<u64>>) -> ConvertOptions {
        self.max_shard_size = bytes.into();
        self
    }

    /// Names a file in the output's format whose other content is taken over (`--template`).
    pub fn template(mut self, template: impl Into<Option<PathBuf>>) -> ConvertOptions {
        self.template = template.into();
        self
    }

    /// Names what else is read and is never written: mapping files.
    pub fn inputs(mut self, inputs: impl IntoIterator<Item = PathBuf>) -> ConvertOptions {
        self.inputs = inputs.into_iter().collect();
        self
    }

    /// Sets whether configs, vocabularies and the like go beside the output, which is a folder then.
    pub fn companions(mut self, companions: bool) -> ConvertOptions {
        self.companions = companions;
        self
    }

    /// Sets the most bytes of one of these files (`--max-companion-size`).
    pub fn max_companion(mut self, bytes: impl Into<Option<u64>>) -> ConvertOptions {
        self.max_companion = bytes.into();
        self
    }

    /// Sets whether finished files stay when the run does not come to its end, and are used by the next (`--resume`).
    pub fn resume(mut self, resume: bool) -> ConvertOptions {
        self.resume = resume;
        self
    }

    /// Fills in what follows from the destination and was not set, as the command line does: a file's format from its
    /// ending; into a folder shards of 5 GB, where the format has an index, and the files beside the source.
    ///
    /// # Errors
    /// Returns `usage/resume` where a single file is to be resumed.
    ///
    /// ```
    /// use qkvconv::{ConvertOptions, Destination, Format};
    ///
    /// let file = ConvertOptions::default().for_destination(&Destination::resolve("out.npz".as_ref()))?;
    /// assert_eq!((file.format, file.max_shard_size), (Some(Format::Npz), None));
    /// let folder = ConvertOptions::default().for_destination(&Destination::resolve("out".as_ref()))?;
    /// assert_eq!((folder.companions, folder.max_shard_size), (true, Some(5_000_000_000)));
    /// # Ok::<(), qkvconv::Errors>(())
    /// ```
    pub fn for_destination(mut self, destination: &Destination) -> Result<ConvertOptions, Errors> {
        match destination {
            // A file is asked for by name: it is one, whatever its size, unless shards are asked for too.
            Destination::File(path) => {
                check_resume(self.resume, destination)?;
                self.format = self.format.or_else(|| Format::of_ending(path));
            }
            Destination::Folder(_) => {
                self.companions = true;
                // What cannot be cut, or whose parts no index holds together, is whole where nobody asks for shards.
                if self.format.is_none_or(Format::has_index) {
                    self.max_shard_size = self.max_shard_size.or(Some(SHARD_SIZE));
                }
            }
        }
        Ok(self)
    }
}

/// Makes sure that there can be finished files to go on from.
///
/// # Errors
/// Returns `usage/resume` for a single file.
pub(super) fn check_resume(resume: bool, destination: &Destination) -> Result<(), Errors> {
    if !resume || matches!(destination, Destination::Folder(_)) {
        return Ok(());
    }
    let message = "--resume is for a destination folder: it keeps whole files, and here there is only one";
    let help = "name a folder, with `--max-shard-size` for several files, or leave out `--resume`";
    Err(Diagnostic::error(UsageCode::Resume, message).help(help).into())
}

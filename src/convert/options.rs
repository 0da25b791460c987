//! What a caller may ask, built step by step; what follows from the destination.

use std::path::{Path, PathBuf};

use super::ConvertOptions;
use crate::bind::BindOptions;
use crate::catalog::Catalog;
use crate::diag::{Diagnostic, Errors, UsageCode};
use crate::exec::publish::Destination;
use crate::format::{Format, OpenOptions};
use crate::mapping::Layout;
use crate::provenance::Provenance;

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
    /// ending; into a folder the files beside the source go too, and the target's framework says by which name it looks
    /// for the weights there, in shards of 5 GB where it is the one that has an index.
    ///
    /// # Errors
    /// Returns `usage/resume` where a single file is to be resumed, and `usage/destination` for a name that says another
    /// format than is asked for, or none that is written.
    ///
    /// ```
    /// use qkvconv::{ConvertOptions, Destination, Format};
    ///
    /// let file = ConvertOptions::default().for_destination(&Destination::resolve("out.npz".as_ref()))?;
    /// assert_eq!((file.format, file.max_shard_size), (Some(Format::Npz), None));
    /// let folder = ConvertOptions::default().for_destination(&Destination::resolve("out".as_ref()))?;
    /// assert_eq!((folder.companions, folder.format), (true, None));
    /// # Ok::<(), qkvconv::Errors>(())
    /// ```
    pub fn for_destination(mut self, destination: &Destination) -> Result<ConvertOptions, Errors> {
        check_name(self.format, destination)?;
        match destination {
            // A file is asked for by name: it is one, whatever its size, unless shards are asked for too.
            Destination::File(path) => {
                check_resume(self.resume, destination)?;
                self.format = self.format.or_else(|| Format::of_ending(path));
            }
            Destination::Folder(_) => {
                self.companions = true;
            }
        }
        Ok(self)
    }

    /// Returns the format of the output: the one that is asked for, else the one that the layout's names of files say
    /// (`of_set`), else in a folder that of the file in which the target's framework looks for weights.
    pub(super) fn output_format(&self, file: Option<&str>, of_set: Option<Format>) -> Format {
        let own = || file.filter(|_| self.companions).and_then(|file| Format::of_ending(Path::new(file)));
        self.format.or(of_set).or_else(own).unwrap_or_default()
    }

    /// Returns the name of the file in which the target's framework looks for weights, where it is of the format.
    pub(super) fn output_name(&self, file: Option<&str>, format: Format) -> Option<String> {
        let file = file.filter(|file| self.companions && Format::of_ending(Path::new(file)) == Some(format));
        file.map(str::to_owned)
    }

    /// Returns the most bytes of tensors in one file. What cannot be cut, whose parts no index holds together, or whose
    /// framework looks for a file of its own is whole where nobody asks for shards.
    pub(super) fn output_shard_size(&self, file: Option<&str>, format: Format) -> Option<u64> {
        let is_usual = file.is_none_or(|file| {
            self.output_name(Some(file), format).is_none() || file == format.single_name()
        });
        let cut = self.companions && format.has_index() && is_usual;
        self.max_shard_size.or(cut.then_some(SHARD_SIZE))
    }

    /// Returns what a checkpoint says of itself: what `bind` tells, else the config that the caller names, else those
    /// beside the checkpoint under the usual names and the given ones; and what its files hold.
    ///
    /// # Errors
    /// Returns every config that cannot be read or is not JSON.
    pub fn provenance<'n>(
        &self,
        source: &Path,
        config_files: impl IntoIterator<Item = &'n str>,
        catalog: &Catalog,
    ) -> Result<Provenance, Errors> {
        let mut provenance = match &self.bind.provenance {
            given if given.is_named() => given.clone(),
            _ => Provenance::read(source, self.config.as_deref(), config_files, self.open.max_config)?,
        };
        provenance.add_inside(catalog);
        Ok(provenance)
    }
}

/// Makes sure that a reader who goes by the destination's name finds what the name says.
fn check_name(format: Option<Format>, destination: &Destination) -> Result<(), Errors> {
    let path = destination.path();
    let error = |message: String| Diagnostic::error(UsageCode::Destination, message).file(path);
    match destination {
        Destination::File(_) => {
            let named = Format::of_ending(path);
            if let Some(format) = format.or(named).filter(|format| format.is_folder()) {
                let message = format!("a {format} checkpoint is several files, and the destination is one");
                let help = format!("name a folder, and give `--format {format}`");
                return Err(error(message).help(help).into());
            }
            let (Some(wanted), Some(named)) = (format, named) else { return Ok(()) };
            if wanted == named {
                return Ok(());
            }
            let message = format!(
                "the destination is named as {named} files are, and `--format {wanted}` is asked for"
            );
            Err(error(message).help("give it the ending of the format, or leave out `--format`").into())
        }
        Destination::Folder(_) => {
            let Some(suffix) =
                file_suffix(path).filter(|_| format.is_none() && !destination.is_plainly_folder())
            else {
                return Ok(());
            };
            let known: Vec<String> = Format::written_endings().map(|ending| format!(".{ending}")).collect();
            let message =
                format!("the destination ends in `.{suffix}`, and no format with that ending is written");
            let help = format!(
                "end the name in one of {}; for a folder of that name put `/` behind it, or give `--format`",
                known.join(", ")
            );
            Err(error(message).help(help).into())
        }
    }
}

/// Makes sure that a file's name does not say the format of the target's framework where the file is of another: `.ckpt`
/// is a pickle of PyTorch, and the prefix of a TensorFlow checkpoint.
///
/// # Errors
/// Returns `usage/destination`.
pub fn check_ending(layout: &Layout, destination: &Destination) -> Result<(), Errors> {
    let Destination::File(path) = destination else { return Ok(()) };
    let framework = layout.file.as_deref().and_then(|file| Format::of_ending(Path::new(file)));
    if framework != Some(Format::TensorFlow) || path.extension().is_none_or(|ending| ending != "ckpt") {
        return Ok(());
    }
    let message = format!(
        "`.ckpt` would be a pickle of PyTorch, and the layout `{}` is that of a TensorFlow checkpoint, which is called so too",
        layout.name
    );
    let help = "name a folder for a TensorFlow checkpoint, or end the name in `.pt` for a pickle";
    Err(Diagnostic::error(UsageCode::Destination, message).file(path).help(help).into())
}

/// Returns what a name ends in where that looks like the ending of a file: a letter first, so that the version in
/// `Llama-3.1-8B` is none.
fn file_suffix(path: &Path) -> Option<&str> {
    let suffix = path.extension()?.to_str()?;
    let is_word = suffix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_word && suffix.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(suffix)
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

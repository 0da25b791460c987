//! A checkpoint that anything has converted, held against its source.

use std::path::{Path, PathBuf};

use super::{Checked, Conversion, ConvertOptions, Verify, open_as};
use crate::diag::{Diagnostic, Errors, Stage};
use crate::exec::Limits;
use crate::format::{OpenOptions, Reader};
use crate::identity::Identity;
use crate::mapping::Layout;
use crate::mapping::select::Selection;
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::verify::config::config_differences;

/// What a caller may ask of a verification beyond the layouts and the two checkpoints.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// How the source is opened and bound, and whether the caller vouches for both layouts.
    pub source: ConvertOptions,
    /// The container that holds the target's weights, of a file that nests them (`--to-root`).
    pub target_root: Option<String>,
}

impl VerifyOptions {
    /// Sets how the source is opened and bound.
    pub fn source(mut self, source: ConvertOptions) -> VerifyOptions {
        self.source = source;
        self
    }

    /// Names the container that holds the target's weights, of a file that nests them.
    pub fn target_root(mut self, root: impl Into<Option<String>>) -> VerifyOptions {
        self.target_root = root.into();
        self
    }
}

/// Two checkpoints that are to hold the same in two layouts, opened and bound.
///
/// ```no_run
/// use qkvconv::{Limits, Verification, VerifyOptions, select};
///
/// let layouts = select("llama/hf", "llama/meta", &[])?;
/// let (source, target) = ("hf/".as_ref(), "consolidated.safetensors".as_ref());
/// let verification = Verification::prepare(&layouts, source, target, &VerifyOptions::default())?;
/// let checked = verification.run(&Limits::default(), &())?;
/// println!("{} elements were compared", checked.read_back.elements);
/// // An error for everything that differs.
/// checked.verdict()?;
/// # Ok::<(), qkvconv::Errors>(())
/// ```
pub struct Verification<'a> {
    /// The conversion that would make the target.
    pub conversion: Conversion<'a>,
    /// The target.
    pub target: Box<dyn Reader>,
    /// The config beside the target, under the name that its framework gives it.
    pub config: Option<PathBuf>,
    /// What the caller named.
    path: PathBuf,
    /// The most bytes of that config.
    max_config: Option<u64>,
}

impl std::fmt::Debug for Verification<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Verification");
        shown.field("conversion", &self.conversion).field("target", &self.path).finish_non_exhaustive()
    }
}

impl<'a> Verification<'a> {
    /// Opens both checkpoints and binds the source; reads headers alone.
    ///
    /// # Errors
    /// Returns everything that headers can tell is wrong, and a target that records another layout.
    pub fn prepare(
        selection: &'a Selection,
        source: &Path,
        target: &Path,
        options: &VerifyOptions,
    ) -> Result<Verification<'a>, Errors> {
        let open = OpenOptions { root: options.target_root.clone(), ..options.source.open.clone() };
        let reader = open_as(selection.target(), target, &open)?;
        let mut convert = options.source.clone();
        if reader.format().is_written() {
            // What another format cannot hold is no fault of this target.
            convert.format = Some(reader.format());
        }
        let conversion = Conversion::prepare(selection, source, &convert)?;
        if let Some(identity) = Identity::read(&reader.catalog().metadata)
            && !convert.trust_layout
        {
            let agrees = identity.check(&selection.mapping().family, &selection.target().name, "--to", &[]);
            agrees.map_err(|errors| errors.in_file(Stage::Identity, target))?;
        }
        let config = config_path(selection.target(), target);
        let (path, max_config) = (target.to_owned(), open.max_config);
        Ok(Verification { conversion, target: reader, config, path, max_config })
    }

    /// Reads every element back, computes the attention modules from both files, and holds the config beside the target
    /// against its weights.
    ///
    /// # Errors
    /// Returns what the system refuses, weights that contradict the source layout, a config that is not JSON, and
    /// cancellation; what differs is part of the result, and [`Checked::verdict`] makes it an error.
    pub fn run(&self, limits: &Limits, progress: &dyn Progress) -> Result<Checked, Errors> {
        let mut checked = self.conversion.check(self.target.as_ref(), Verify::Full, limits, progress)?;
        checked.config = self.config_differences()?;
        Ok(checked)
    }

    fn config_differences(&self) -> Result<Vec<Diagnostic>, Errors> {
        let Some(path) = &self.config else { return Ok(Vec::new()) };
        let beside = Provenance::read(&self.path, Some(path), [], self.max_config)?;
        let bound = &self.conversion.bound;
        let target = bound.target_layout.as_ref().unwrap_or(self.conversion.selection.target());
        Ok(config_differences(target, bound, &beside, path))
    }
}

/// Returns where the config of a layout's framework lies beside a checkpoint, if it is there.
fn config_path(layout: &Layout, checkpoint: &Path) -> Option<PathBuf> {
    let folder = if checkpoint.is_dir() { checkpoint } else { checkpoint.parent()? };
    Some(folder.join(layout.config_file())).filter(|path| path.is_file())
}

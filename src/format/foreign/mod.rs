//! What is not read: files and folders of other formats, each recognised by what is in it and named with what helps.
//!
//! [`table`] lists the kinds; a new one is one entry there. What can be looked at of a file is in [`sample`].

mod looks;
mod sample;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use super::listing::names_in;
use super::store::OpenFile;
use super::{OpenOptions, shown};
use crate::diag::{Diagnostic, Errors, FormatCode};
use sample::{Field, Sample};
pub(super) use table::{SEVERAL_ARCHIVES, SLICES, TENSORFLOW_V1};

/// A kind of file or folder that is not read.
#[derive(Debug)]
pub(super) struct Kind {
    /// The code of the error.
    code: FormatCode,
    /// What it is, completing "it is …".
    is: &'static str,
    /// What tells it; one of them is enough.
    signs: &'static [Sign],
    /// What to do.
    help: &'static str,
}

/// What tells a kind.
#[derive(Debug)]
enum Sign {
    /// All of these bytes, each at that place from the start.
    Bytes(&'static [(usize, &'static [u8])]),
    /// The text that the file begins with; white space before it and the case of its letters do not count.
    Text(&'static str),
    /// An archive, zip or tar, with an entry for each pattern; a pattern is of the last part of a name, or of all of it
    /// where it has a `/`.
    Members(&'static [&'static str]),
    /// A tar archive, whatever is in it.
    Tar,
    /// A JSON text whose outermost map has all of these keys.
    Json(&'static [&'static str]),
    /// The name of a file, whatever is in it: such files are parts, and what is in one does not tell that.
    Name(&'static str),
    /// As [`Sign::Name`], where an entry of the file's folder fits the second pattern.
    Beside(&'static str, &'static str),
    /// The name of a file whose content tells nothing.
    Ending(&'static str),
    /// The fields of the one protocol buffer message that the whole file is.
    Message(fn(&[Field]) -> bool),
    /// A closer look at a file whose beginning tells nothing.
    Look(fn(&Sample<'_>) -> bool),
    /// A folder that has an entry for each pattern.
    Holds(&'static [&'static str]),
    /// As [`Sign::Holds`], and files in the folder that could be read by themselves are parts all the same.
    Parts(&'static [&'static str]),
}

impl Kind {
    /// Returns the error that says what a file or folder is.
    pub(super) fn error(&self, path: &Path) -> Diagnostic {
        Diagnostic::error(self.code, format!("it is {}", self.is)).file(path).help(self.help)
    }
}

/// Returns the first kind with a sign that the test takes.
fn find(test: impl Fn(&Sign) -> bool) -> Option<&'static Kind> {
    table::KINDS.iter().copied().find(|kind| kind.signs.iter().any(&test))
}

/// Tells what a file is by its name, its first bytes, or its entries where it is a tar archive.
///
/// # Errors
/// Returns what the system refuses.
pub(super) fn of_file(
    file: &Arc<OpenFile>,
    head: &[u8],
    options: &OpenOptions,
) -> Result<Option<Diagnostic>, Errors> {
    let name = name_of(&file.path);
    if !options.allow_incomplete
        && let Some(kind) = find(|sign| match sign {
            Sign::Name(pattern) => fits(pattern, &name),
            Sign::Beside(pattern, other) => fits(pattern, &name) && is_beside(&file.path, other),
            _ => false,
        })
    {
        return Ok(Some(kind.error(&file.path)));
    }
    let text = head.trim_ascii_start();
    let begins =
        |start: &str| text.get(..start.len()).is_some_and(|text| text.eq_ignore_ascii_case(start.as_bytes()));
    let has = |&(at, bytes): &(usize, &[u8])| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let found = find(|sign| match sign {
        Sign::Bytes(places) => places.iter().all(has),
        Sign::Text(start) => begins(start),
        _ => false,
    });
    if let Some(kind) = found {
        let mut diagnostic = kind.error(&file.path);
        if let Some(size) = lfs_size(head) {
            diagnostic.message.push_str(&format!("; the real file has {size} bytes"));
        }
        return Ok(Some(diagnostic));
    }
    if !sample::is_tar(head) {
        return Ok(None);
    }
    let members = sample::tar_members(file)?;
    let kind = of_members(&members).or_else(|| find(|sign| matches!(sign, Sign::Tar)));
    Ok(kind.map(|kind| kind.error(&file.path).found(listed(&members))))
}

/// Tells what a zip archive is by the names of its entries.
pub(super) fn of_archive(path: &Path, members: &[String]) -> Option<Diagnostic> {
    of_members(members).map(|kind| kind.error(path).found(listed(members)))
}

/// Returns whether an entry of a file's folder fits a pattern.
fn is_beside(path: &Path, pattern: &str) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    names_in(folder).iter().any(|name| fits(pattern, name))
}

fn of_members(members: &[String]) -> Option<&'static Kind> {
    let has = |pattern: &&str| {
        members.iter().any(|member| {
            let name =
                if pattern.contains('/') { member } else { member.rsplit('/').next().unwrap_or(member) };
            fits(pattern, name)
        })
    };
    find(|sign| matches!(sign, Sign::Members(patterns) if patterns.iter().all(has)))
}

/// Tells what a file is whose beginning is that of no format that is read.
pub(super) fn of_unknown(file: &Arc<OpenFile>, head: &[u8]) -> Option<Diagnostic> {
    let sample = Sample { file, head };
    let fields = sample.fields().unwrap_or_default();
    let name = name_of(&file.path);
    let found = find(|sign| match sign {
        Sign::Message(test) => !fields.is_empty() && test(&fields),
        Sign::Look(test) => test(&sample),
        Sign::Ending(pattern) => fits(pattern, &name),
        _ => false,
    });
    found.map(|kind| kind.error(&file.path))
}

/// Tells what a JSON text is by the keys of its outermost map.
pub(super) fn of_json<'k>(path: &Path, keys: impl Iterator<Item = &'k str> + Clone) -> Option<Diagnostic> {
    let has = |key: &&str| keys.clone().any(|other| other == *key);
    find(|sign| matches!(sign, Sign::Json(wanted) if wanted.iter().all(has))).map(|kind| kind.error(path))
}

/// Tells what a folder is by the names in it, where those that could be read by themselves are parts.
pub(super) fn of_parts(folder: &Path) -> Option<Diagnostic> {
    told_of(folder, &|sign| matches!(sign, Sign::Parts(_)))
}

/// Tells what a folder is in which nothing can be read, by the names in it.
pub(super) fn of_folder(folder: &Path) -> Option<Diagnostic> {
    told_of(folder, &|_| true)
}

fn told_of(folder: &Path, counts: &dyn Fn(&Sign) -> bool) -> Option<Diagnostic> {
    let kind = kind_of_folder(folder, counts)?;
    let inside = weights_below(folder);
    let diagnostic = kind.error(folder);
    Some(if inside.is_empty() { diagnostic } else { diagnostic.found(listed(&inside)) })
}

fn kind_of_folder(folder: &Path, counts: &dyn Fn(&Sign) -> bool) -> Option<&'static Kind> {
    let names = names_in(folder);
    let has = |pattern: &&str| names.iter().any(|name| fits(pattern, name));
    find(|sign| {
        let (Sign::Holds(patterns) | Sign::Parts(patterns)) = sign else { return false };
        counts(sign) && patterns.iter().all(has)
    })
}

/// Returns what lies in the folders of a folder and may be weights, for a message: a folder of a known kind, or a file
/// with an ending of weights.
pub(super) fn weights_below(folder: &Path) -> Vec<String> {
    const MOST: usize = 8;
    const DEEPEST: usize = 3;
    // Bounded, whatever lies there.
    let mut left = 2000_usize;
    let mut found = Vec::new();
    let mut open = vec![(String::new(), 0)];
    while let Some((path, depth)) = open.pop() {
        let inner = folder.join(&path);
        let kind = if depth > 0 { kind_of_folder(&inner, &|_| true) } else { None };
        if kind.is_some_and(|kind| kind.signs.iter().all(Sign::is_of_whole)) {
            found.push(path);
        } else {
            let mut below = Vec::new();
            for name in names_in(&inner).into_iter().filter(|name| !name.starts_with('.')) {
                left = left.saturating_sub(1);
                let entry = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                if inner.join(&name).is_dir() {
                    below.push((entry, depth + 1));
                } else if depth > 0 && table::WEIGHTS.iter().any(|pattern| fits(pattern, &name)) {
                    found.push(entry);
                }
            }
            if depth < DEEPEST {
                open.extend(below.into_iter().rev());
            }
        }
        if left == 0 || found.len() >= MOST {
            break;
        }
    }
    found.truncate(MOST);
    found
}

impl Sign {
    /// Whether what it tells is a checkpoint as a whole, not a folder of such.
    fn is_of_whole(&self) -> bool {
        !matches!(self, Sign::Holds(patterns) if patterns.iter().any(|pattern| table::OUTER.contains(pattern)))
    }
}

/// Returns the error for a file of which nothing is known.
pub(super) fn unknown(path: &Path, head: &[u8]) -> Diagnostic {
    let start = head.get(..head.len().min(16)).unwrap_or_default();
    let hex: Vec<String> = start.iter().map(|byte| format!("{byte:02x}")).collect();
    let text: String =
        start.iter().map(|&byte| if matches!(byte, 0x20..=0x7e) { char::from(byte) } else { '.' }).collect();
    Diagnostic::error(FormatCode::Unknown, "it is in none of the formats that are read")
        .file(path)
        .expected("safetensors, PyTorch, NumPy, HDF5, Keras, TensorFlow, msgpack of Flax, or GGUF")
        .found(format!("a file that begins with {} (`{text}`)", hex.join(" ")))
        .help("name the file or folder that holds the weights, or save them in one of these formats")
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the first few of many names, for a message.
pub(super) fn listed(names: &[String]) -> String {
    const MOST: usize = 6;
    let mut texts: Vec<String> = names.iter().take(MOST).map(|name| format!("`{}`", shown(name))).collect();
    if names.len() > MOST {
        texts.push(format!("and {} more", names.len() - MOST));
    }
    texts.join(", ")
}

/// Returns whether a name fits a pattern, in which `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, behind)) = name.split_once(part) else { return false };
        name = behind;
    }
    name.ends_with(end)
}

/// Returns the `size` line of a Git LFS pointer.
fn lfs_size(head: &[u8]) -> Option<u64> {
    let text = str::from_utf8(head).ok().filter(|text| text.starts_with(table::LFS))?;
    text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok())
}

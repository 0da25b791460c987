//! Key templates, `encoder.layers.{l}.heads.{h:02}.{*m}.weight`: matching names and making them.

mod file;
mod parse;

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use crate::diag::{Diagnostic, MappingCode};
use crate::notation::Text;
use crate::span::Span;
use file::file_problem;
use parse::pieces;

/// A pattern for the names of stored tensors.
#[derive(Clone, Debug)]
pub struct Template {
    /// The pattern for the file's name, where the template is written `FILE::KEY`.
    pub file: Option<Vec<Piece>>,
    /// The pattern for the tensor's name.
    pub key: Vec<Piece>,
    /// Where it stands.
    pub span: Span,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// Text that stands as it is.
    Literal(String),
    /// `{l}`, `{l+4}`, `{l:03}`, `{_l}`: an index along an axis.
    Axis {
        /// The axis.
        name: Arc<str>,
        /// What the name's number is above the index.
        offset: u64,
        /// Digits at least, filled up with zeros; 0 for none.
        width: usize,
        /// `{_l}`: nothing for 0, `_1` for 1, as Keras names the layers of one class.
        suffix: bool,
    },
    /// `{l.count+3}`, `{p.count-1}`: a number that is an axis's size, and what is added to it; `-1` is the last index.
    Count {
        /// The axis.
        name: Arc<str>,
        /// What the name's number is above the size; below 0 where it is less.
        offset: i64,
        /// Digits at least, filled up with zeros; 0 for none.
        width: usize,
    },
    /// `{*m}`: a path of any length, also an empty one.
    Path {
        /// Its name.
        name: Arc<str>,
        /// What separates its segments: the character behind it in the template, or before it where it stands last.
        separator: char,
    },
}

/// What a template found in a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Captures {
    /// Captured paths, by name, as segments; in order of the name.
    pub paths: Paths,
    /// Indices by axis, in order of the name.
    pub indices: Vec<(Arc<str>, u64)>,
    /// Sizes of axes that the name tells or needs, by axis. They tell no tensor from another.
    pub counts: Vec<(Arc<str>, u64)>,
}

/// Paths by name, as segments; names and segments are shared, since many tensors stand under one path.
pub type Paths = Vec<(Arc<str>, Arc<[String]>)>;

impl Captures {
    /// Returns the index along that axis.
    pub fn index(&self, axis: &str) -> Option<u64> {
        self.indices.iter().find(|(name, _)| **name == *axis).map(|(_, index)| *index)
    }

    /// Returns the captures with another index.
    pub fn with(&self, axis: &str, index: u64) -> Captures {
        let mut captures = self.clone();
        captures.bind_index(&axis.into(), index);
        captures
    }

    /// Returns the indices by axis.
    pub(crate) fn by_axis(&self) -> BTreeMap<String, u64> {
        self.indices.iter().map(|(axis, index)| (axis.to_string(), *index)).collect()
    }

    fn bind_index(&mut self, axis: &Arc<str>, index: u64) -> bool {
        bind(&mut self.indices, axis, index)
    }

    /// Notes the segments of a path; returns false where others are known.
    pub(crate) fn bind_path(&mut self, path: &Arc<str>, segments: &Arc<[String]>) -> bool {
        bind(&mut self.paths, path, Arc::clone(segments))
    }
}

/// Notes a value under a name, in order of the names; returns false where another one is known.
fn bind<T: PartialEq>(known: &mut Vec<(Arc<str>, T)>, name: &Arc<str>, value: T) -> bool {
    match known.binary_search_by(|(other, _)| other.cmp(name)) {
        Ok(at) => known[at].1 == value,
        Err(at) => {
            known.insert(at, (Arc::clone(name), value));
            true
        }
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Returns the first thing that is not of the grammar, with its place.
    pub fn parse(text: Text<'_>) -> Result<Template, Diagnostic> {
        let (file, key) = match text.text.find("::") {
            Some(at) => (Some(pieces(&text, 0, at)?), pieces(&text, at + 2, text.text.len())?),
            None => (None, pieces(&text, 0, text.text.len())?),
        };
        if let Some(problem) = file.as_deref().and_then(file_problem) {
            return Err(Diagnostic::error(MappingCode::Template, format!("the name of the file {problem}"))
                .rule(&text.at(0, text.text.find("::").unwrap_or(0)))
                .expected("the path of a file below the checkpoint's folder, `mp_rank_{t:02}/model.pt`")
                .found(format!("`{}`", text.text.split("::").next().unwrap_or_default()))
                .help("write plain names with `/` between them"));
        }
        if key.is_empty() {
            return Err(Diagnostic::error(MappingCode::Template, "an empty template")
                .rule(text.span)
                .expected("the name of a tensor")
                .found(if file.is_some() { "nothing behind `::`" } else { "nothing" })
                .help("write a name with captures for its indices, `layers.{l}.q.weight`"));
        }
        Ok(Template { file, key, span: text.span.clone() })
    }

    /// Returns all its pieces, the file's first.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.file.iter().flatten().chain(&self.key)
    }

    /// Returns the axes that it enumerates.
    pub fn axes(&self) -> impl Iterator<Item = &str> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Axis { name, .. } => Some(&**name),
            _ => None,
        })
    }

    /// Returns the axes whose sizes stand in it.
    pub fn counts(&self) -> impl Iterator<Item = &str> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Count { name, .. } => Some(&**name),
            _ => None,
        })
    }

    /// Returns whether every name that this template matches is also one of another template, and not the other way
    /// round: `{*m}.encoder.norm` beside `{*m}.norm`. Each is tried with a name that is made of what only the other's
    /// captures take.
    pub fn is_within(&self, other: &Template) -> bool {
        let matched = |by: &Template, made: &Template| {
            let mut captures = Captures::default();
            for path in made.paths() {
                captures.bind_path(&path.into(), &["\u{1}".to_owned()].into());
            }
            for axis in made.axes() {
                captures.bind_index(&axis.into(), 777_777);
            }
            for axis in made.counts() {
                bind(&mut captures.counts, &axis.into(), 888_888);
            }
            let name = made.print(&captures).ok();
            name.is_some_and(|(file, key)| by.matches(file.as_deref().unwrap_or_default(), &key).is_some())
        };
        self.paths().chain(other.paths()).next().is_some() && matched(other, self) && !matched(self, other)
    }

    /// Returns the paths that it captures.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Path { name, .. } => Some(&**name),
            _ => None,
        })
    }

    /// Matches a name as a whole. A name that can be read in two ways is read with the longest first path.
    pub fn matches(&self, file: &str, key: &str) -> Option<Captures> {
        let captures = match &self.file {
            // A template may leave the ending to the format.
            Some(pieces) => matches(pieces, file, Captures::default())
                .or_else(|| matches(pieces, file.rsplit_once('.')?.0, Captures::default()))?,
            None => Captures::default(),
        };
        matches(&self.key, key, captures)
    }

    /// Makes a name.
    ///
    /// # Errors
    /// Returns what cannot be written: a path segment that holds the template's separator, or a missing capture.
    pub fn print(&self, captures: &Captures) -> Result<(Option<String>, String), String> {
        Ok((self.print_file(captures)?, print(&self.key, captures)?))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.file.iter().flatten() {
            piece.fmt(f)?;
        }
        if self.file.is_some() {
            f.write_str("::")?;
        }
        self.key.iter().try_for_each(|piece| piece.fmt(f))
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = |width: usize| if width > 0 { format!(":0{width}") } else { String::new() };
        match self {
            Piece::Literal(text) => f.write_str(text),
            Piece::Axis { name, suffix: true, .. } => write!(f, "{{_{name}}}"),
            Piece::Axis { name, offset, width, .. } => {
                let above = if *offset > 0 { format!("+{offset}") } else { String::new() };
                write!(f, "{{{name}{above}{}}}", filled(*width))
            }
            Piece::Count { name, offset, width } => {
                let above = if *offset != 0 { format!("{offset:+}") } else { String::new() };
                write!(f, "{{{name}.count{above}{}}}", filled(*width))
            }
            Piece::Path { name, .. } => write!(f, "{{*{name}}}"),
        }
    }
}

/// Matches a text as a whole; what it captures is added to what is known.
pub(super) fn matches(pieces: &[Piece], text: &str, captures: Captures) -> Option<Captures> {
    let Some((piece, rest)) = pieces.split_first() else { return text.is_empty().then_some(captures) };
    match piece {
        Piece::Literal(literal) => {
            // An empty path at the end swallows the separator before it.
            if let [Piece::Path { name, separator }] = rest
                && literal.strip_suffix(*separator) == Some(text)
            {
                let mut captures = captures;
                return captures.bind_path(name, &[].into()).then_some(captures);
            }
            matches(rest, text.strip_prefix(literal.as_str())?, captures)
        }
        Piece::Axis { name, suffix: true, .. } => {
            let with = |captures: &Captures, index: u64, behind: &str| {
                let mut captures = captures.clone();
                captures.bind_index(name, index).then(|| matches(rest, behind, captures)).flatten()
            };
            let numbered = text.strip_prefix('_').and_then(|text| {
                let digits = text.bytes().take_while(u8::is_ascii_digit).count();
                let (number, behind) = text.split_at(digits);
                let index = number.parse().ok().filter(|_| !number.starts_with('0'))?;
                with(&captures, index, behind)
            });
            numbered.or_else(|| with(&captures, 0, text))
        }
        Piece::Axis { name, offset, width, .. } => {
            let (number, behind) = number(text, *width)?;
            let index = number.checked_sub(*offset)?;
            let mut captures = captures;
            captures.bind_index(name, index).then(|| matches(rest, behind, captures)).flatten()
        }
        Piece::Count { name, offset, width } => {
            let (number, behind) = number(text, *width)?;
            let count = number.checked_add_signed(offset.checked_neg()?)?;
            let mut captures = captures;
            bind(&mut captures.counts, name, count).then(|| matches(rest, behind, captures)).flatten()
        }
        Piece::Path { name, separator } => {
            // What does not end as the template ends is not tried at each of a long name's separators.
            let ends = match pieces.last() {
                // An empty path may swallow the separator before it.
                Some(Piece::Literal(literal)) => {
                    text.ends_with(literal.trim_start_matches(|c: char| !c.is_alphanumeric()))
                }
                Some(Piece::Axis { suffix: false, .. } | Piece::Count { .. }) => {
                    text.ends_with(|c: char| c.is_ascii_digit())
                }
                _ => true,
            };
            if !ends {
                return None;
            }
            let try_path = |path: &str, rest: &[Piece], behind: &str| {
                // Most places where a path could end are told apart by what follows, and long names have many.
                matches(rest, behind, captures.clone())?;
                let mut captures = captures.clone();
                let segments = if path.is_empty() { [].into() } else { segments(path, *separator)? };
                captures.bind_path(name, &segments).then(|| matches(rest, behind, captures)).flatten()
            };
            match rest.split_first() {
                Some((Piece::Literal(literal), tail)) => {
                    // Where no path follows, what follows is short, and long names have many other places.
                    let longest = longest(tail).unwrap_or(usize::MAX);
                    let mut first = text.len().saturating_sub(longest.saturating_add(literal.len()));
                    while !text.is_char_boundary(first) {
                        first -= 1;
                    }
                    let from_the_end = text[first..].rmatch_indices(literal.as_str());
                    from_the_end
                        .map(|(at, _)| first + at)
                        .filter(|at| *at > 0)
                        .find_map(|at| try_path(&text[..at], tail, &text[at + literal.len()..]))
                        .or_else(|| {
                            // The empty path swallows its separator.
                            let literal = literal.strip_prefix(*separator)?;
                            try_path("", tail, text.strip_prefix(literal)?)
                        })
                }
                _ => try_path(text, rest, ""),
            }
        }
    }
}

/// Returns the most bytes of a text that the pieces match; `None` where a path among them takes any number.
fn longest(pieces: &[Piece]) -> Option<usize> {
    /// The digits of the largest number of 64 bits, which no width exceeds, and `_` before it.
    const NUMBER: usize = 21;
    pieces.iter().try_fold(0_usize, |sum, piece| match piece {
        Piece::Literal(text) => Some(sum.saturating_add(text.len())),
        Piece::Axis { .. } | Piece::Count { .. } => Some(sum.saturating_add(NUMBER)),
        Piece::Path { .. } => None,
    })
}

/// Takes the number that a text begins with; returns it, and what stands behind it.
fn number(text: &str, width: usize) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, behind) = text.split_at(digits);
    // `01` is no way to write 1 without a width, and two names for one index would be one too many.
    let canonical =
        number.len() == width || (number.len() > width && !number.starts_with('0')) || number == "0";
    let value = number.parse::<u64>().ok()?;
    canonical.then_some((value, behind))
}

fn segments(path: &str, separator: char) -> Option<Arc<[String]>> {
    let (mut found, mut start) = (Vec::new(), 0);
    for at in separators(path, separator).chain([path.len()]) {
        found.push(path[start..at].to_owned());
        start = at + separator.len_utf8();
    }
    found.iter().all(|segment| !segment.is_empty()).then(|| found.into())
}

/// Returns where a path is parted. The dot in `layer_._0`, as Hugging Face's TensorFlow classes name the layers of a
/// list, parts nothing (huggingface/transformers v4.46.3 src/transformers/modeling_tf_pytorch_utils.py).
fn separators(path: &str, separator: char) -> impl Iterator<Item = usize> {
    let parts =
        move |at: usize| separator != '.' || !(path[..at].ends_with('_') && path[at + 1..].starts_with('_'));
    path.match_indices(separator).map(|(at, _)| at).filter(move |at| parts(*at))
}

/// Makes a text of the captures.
pub(super) fn print(pieces: &[Piece], captures: &Captures) -> Result<String, String> {
    // Writing to a string does not fail.
    let mut text = String::new();
    let mut swallow = None;
    for (position, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Literal(literal) => {
                text.push_str(swallow.take().and_then(|c: char| literal.strip_prefix(c)).unwrap_or(literal));
            }
            Piece::Axis { name, offset, width, suffix } => {
                let index =
                    captures.index(name).ok_or_else(|| format!("nothing gives the index `{{{name}}}`"))?;
                if *suffix {
                    if index > 0 {
                        let _ = write!(text, "_{index}");
                    }
                    continue;
                }
                let number = index.checked_add(*offset).ok_or_else(|| {
                    format!("the index {index} of `{{{name}+{offset}}}` makes a number above 64 bits")
                })?;
                let _ = write!(text, "{number:0width$}");
            }
            Piece::Count { name, offset, width } => {
                let found = captures.counts.iter().find(|(axis, _)| axis == name);
                let (_, count) = found.ok_or_else(|| format!("nothing gives the size `{{{name}.count}}`"))?;
                let number = count.checked_add_signed(*offset).ok_or_else(|| {
                    format!("the size {count} of `{name}` makes no number of `{{{name}.count{offset:+}}}`")
                })?;
                let _ = write!(text, "{number:0width$}");
            }
            Piece::Path { name, separator } => {
                let found = captures.paths.iter().find(|(path, _)| path == name);
                let (_, segments) = found.ok_or_else(|| format!("nothing gives the path `{{*{name}}}`"))?;
                if let Some(segment) =
                    segments.iter().find(|text| separators(text, *separator).next().is_some())
                {
                    return Err(format!("the path segment `{segment}` holds the separator `{separator}`"));
                }
                if segments.is_empty() && position + 1 < pieces.len() {
                    swallow = Some(*separator);
                } else if segments.is_empty() {
                    text.truncate(text.trim_end_matches(*separator).len());
                }
                text.push_str(&segments.join(&separator.to_string()));
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::Source;

    fn template(text: &str) -> Result<Template, Diagnostic> {
        let source = Arc::new(Source { name: "t".into(), text: text.into() });
        let span = Span::new(&source, 0, text.len());
        Template::parse(Text { text, span: &span, verbatim: true })
    }

    fn captured(pattern: &str, key: &str) -> Option<Captures> {
        template(pattern).expect("a template").matches("", key)
    }

    #[test]
    fn a_path_is_re_joined_with_the_new_separator() {
        let captures = captured("{*m}.q_proj.weight", "enc.layers.0.attn.q_proj.weight").expect("matches");
        assert_eq!(*captures.paths[0].1, ["enc", "layers", "0", "attn"]);
        let flax = template("{*m}/query/kernel").expect("a template");
        assert_eq!(flax.print(&captures).expect("prints").1, "enc/layers/0/attn/query/kernel");
    }

    #[test]
    fn an_empty_path_swallows_its_separator() {
        let captures = captured("{*m}.in_proj_weight", "in_proj_weight").expect("matches");
        assert_eq!(captures.paths, [("m".into(), [].into())]);
        assert_eq!(template("{*m}/query").expect("a template").print(&captures).expect("prints").1, "query");
        assert_eq!(captured("{*m}.in_proj_weight", ".in_proj_weight"), None);
        assert_eq!(captured("{*m}.in_proj_weight", "xin_proj_weight"), None);
    }

    #[test]
    fn a_segment_that_holds_the_separator_is_an_error() {
        let captures = captured("{*m}/query/kernel", "a/b.c/query/kernel").expect("matches");
        let error =
            template("{*m}.query.weight").expect("a template").print(&captures).expect_err("ambiguous");
        assert!(error.contains("`b.c`"), "{error}");
    }

    #[test]
    fn the_dot_of_a_numbered_layer_in_tensorflow_parts_no_path() {
        let captures = captured("{*m}/query/kernel", "a/layer_._0/b/query/kernel").expect("matches");
        let name = template("{*m}.query").expect("a template").print(&captures).expect("prints").1;
        assert_eq!(name, "a.layer_._0.b.query");
        assert_eq!(captured("{*m}.query", &name).expect("matches").paths, captures.paths);
        // Without underscores on both sides it is a separator as any other.
        assert_eq!(*captured("{*m}.query", "a_.0.query").expect("matches").paths[0].1, ["a_", "0"]);
    }

    #[test]
    fn indices_have_offsets_and_zeros() {
        let file = template("l{l+4}.h{h:03}.w").expect("a template");
        let captures = file.matches("", "l6.h012.w").expect("matches");
        assert_eq!((captures.index("l"), captures.index("h")), (Some(2), Some(12)));
        assert_eq!(file.print(&captures).expect("prints").1, "l6.h012.w");
        for other in ["l3.h012.w", "l6.h12.w", "l06.h012.w", "l6.h0012.w", "l6.h.w", "l.h012.w"] {
            assert_eq!(file.matches("", other), None, "{other}");
        }
        assert!(file.matches("", "l6.h1234.w").is_some());
    }

    #[test]
    fn a_number_that_does_not_fit_is_an_error() {
        let captures = captured("l.{l}.w", &format!("l.{}.w", u64::MAX)).expect("matches");
        assert!(template("l{l}").expect("a template").print(&captures).is_ok());
        let error = template("l{l+1}").expect("a template").print(&captures).expect_err("too large");
        assert!(error.contains("18446744073709551615"), "{error}");
    }

    #[test]
    fn no_name_takes_long_to_match() {
        let start = std::time::Instant::now();
        let name = ".q.weight".repeat(20_000) + ".x";
        assert_eq!(captured("{*m}.q.weight", &name), None);
        assert_eq!(captured("{*m}.q.weight.{*n}.y", &name[..20_000]), None);
        assert_eq!(captured("a{_a}_1{_b}_1{_c}_1{_d}_1x", &format!("a{}", "_1".repeat(5_000))), None);
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }

    #[test]
    fn the_first_of_a_list_may_have_no_number() {
        let keras = template("layers/block{_l}/query/vars/0").expect("a template");
        for (key, index) in [
            ("layers/block/query/vars/0", 0),
            ("layers/block_1/query/vars/0", 1),
            ("layers/block_12/query/vars/0", 12),
        ] {
            let captures = keras.matches("", key).expect(key);
            assert_eq!(captures.index("l"), Some(index));
            assert_eq!(keras.print(&captures).expect("prints").1, key);
        }
        for other in
            ["layers/block_0/query/vars/0", "layers/block_01/query/vars/0", "layers/block_/query/vars/0"]
        {
            assert_eq!(keras.matches("", other), None, "{other}");
        }
    }

    #[test]
    fn a_number_can_be_the_size_of_an_axis() {
        let norm = template("layer_{l.count+3:02}-{t}.pt::norm.weight").expect("a template");
        let captures = norm.matches("layer_15-0.pt", "norm.weight").expect("matches");
        assert_eq!((captures.counts.as_slice(), captures.index("l")), (&[("l".into(), 12)][..], None));
        assert_eq!(norm.counts().collect::<Vec<_>>(), ["l"]);
        assert_eq!(norm.axes().collect::<Vec<_>>(), ["t"]);
        let printed = norm.print(&captures).expect("prints");
        assert_eq!(printed, (Some("layer_15-0.pt".to_owned()), "norm.weight".to_owned()));
        assert_eq!(norm.matches("layer_2-0.pt", "norm.weight"), None);
        let error = norm.print(&Captures { counts: Vec::new(), ..captures }).expect_err("no size");
        assert!(error.contains("l.count"), "{error}");
    }

    #[test]
    fn a_number_can_be_the_last_index_of_an_axis() {
        let norm = template("mp_rank_{t:02}_{p.count-1:03}/model_optim_rng.pt::norm").expect("a template");
        let captures = norm.matches("mp_rank_01_003/model_optim_rng.pt", "norm").expect("matches");
        assert_eq!((captures.counts.as_slice(), captures.index("t")), (&[("p".into(), 4)][..], Some(1)));
        let (file, _) = norm.print(&captures).expect("prints");
        assert_eq!(file.as_deref(), Some("mp_rank_01_003/model_optim_rng.pt"));
        let none = Captures { counts: vec![("p".into(), 0)], ..captures };
        assert!(norm.print(&none).expect_err("no last one").contains("p.count-1"));
        assert_eq!(norm.matches("mp_rank_01_3/model_optim_rng.pt", "norm"), None);
    }

    #[test]
    fn a_template_is_within_another_that_takes_its_names() {
        let within = |a: &str, b: &str| {
            let (a, b) = (template(a).expect("a template"), template(b).expect("a template"));
            (a.is_within(&b), b.is_within(&a))
        };
        assert_eq!(within("{*m}.encoder.norm", "{*m}.norm"), (true, false));
        assert_eq!(within("encoder.{l}.norm", "{*m}.norm"), (true, false));
        assert_eq!(within("{*m}.{l}.norm", "{*m}.norm"), (true, false));
        // Neither takes all names of the other.
        assert_eq!(within("a.{*m}.norm", "{*m}.b.norm"), (false, false));
        assert_eq!(within("{*m}.norm", "{*n}.norm"), (false, false));
        // Without a path there is nothing that a name could be the more special case of.
        assert_eq!(within("a.0.b", "a.{l}.b"), (false, false));
    }

    #[test]
    fn a_file_name_carries_an_axis() {
        let shard = template("consolidated.{t:02}.pth::layers.{l}.w").expect("a template");
        let captures = shard.matches("consolidated.03.pth", "layers.7.w").expect("matches");
        assert_eq!((captures.index("t"), captures.index("l")), (Some(3), Some(7)));
        assert_eq!(
            shard.print(&captures).expect("prints"),
            (Some("consolidated.03.pth".to_owned()), "layers.7.w".to_owned())
        );
    }

    #[test]
    fn matches_are_of_the_whole_name() {
        assert_eq!(captured("{*m}.kernel", "a.kernel/adam_m"), None);
        assert_eq!(
            *captured("encoder.{*m}.w", "encoder.encoder.x.w").expect("matches").paths[0].1,
            ["encoder", "x"]
        );
        assert_eq!(captured("l.{l}.w", "l.99999999999999999999999.w"), None);
        assert!(captured("{*m}.w", &format!("{}.w", "a.".repeat(5_000) + "b")).is_some());
    }

    #[test]
    fn bad_templates_are_refused() {
        for text in [
            "",
            "a{",
            "a}",
            "{l}{h}",
            "{*m}{l}",
            "{*m}x",
            "{l:3}",
            "{l+x}",
            "{*}",
            "{1l}",
            "{l.size}",
            "{.count}",
            "{l}{h.count}",
            "{l-1}",
            "{l.count--1}",
            "{l.count-}",
            "{l.count-+1}",
            "{l.count-x}",
            "/a::w",
            "../a::w",
            "a/../b::w",
            "a/..::w",
            "a//b::w",
            "a/::w",
            "./a::w",
            "::w",
            "a\\b::w",
            "c:/a::w",
            "a/{_l}/b::w",
            "{*a}.{*b}.{*c}.d",
            "a{_a}b{_b}c{_c}d{_d}e{_e}",
        ] {
            assert_eq!(template(text).expect_err(text).code, "mapping/template", "{text}");
        }
        assert!(template(&"a{l}".repeat(50)).is_ok());
        assert_eq!(template(&"a{l}".repeat(51)).expect_err("too long").code, "mapping/template");
    }
}

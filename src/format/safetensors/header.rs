//! The header's text: parsed, and checked before anything rests on it.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use crate::diag::{Collector, Diagnostic, FormatCode, nearest};
use crate::dtype::Dtype;
use crate::format::json::{self, Json, repeated};
use crate::format::shown;

/// The longest header in bytes, as in the reference implementation.
pub(crate) const LIMIT: u64 = 100_000_000;

/// The header's one key that is no tensor.
pub(crate) const METADATA: &str = "__metadata__";

/// What to do about a file that contradicts itself.
pub(super) const DAMAGED: &str =
    "download the file again, or save it again with another version of its writer";

/// One tensor of a header; `end - begin` is its size.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) key: String,
    /// Its type.
    pub(crate) dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub(crate) shape: Vec<u64>,
    /// Where it begins, in bytes from the start of the data.
    pub(crate) begin: u64,
    /// Where it ends, in bytes from the start of the data.
    pub(crate) end: u64,
}

/// A header; the tensors are sorted by where they lie.
#[derive(Debug, Default)]
pub(crate) struct Header {
    /// The tensors that are described without a fault.
    pub(crate) tensors: Vec<Entry>,
    /// The free-form metadata.
    pub(crate) metadata: BTreeMap<String, String>,
    /// The tensors of a type that is not known, each with the reason; their places are sound.
    pub(crate) unread: Vec<(String, Diagnostic)>,
}

/// The bytes that one entry claims, whether or not the rest of the entry is right.
struct Claim<'a> {
    key: &'a str,
    begin: u64,
    end: u64,
}

/// Parses a header's text and checks it against the number of bytes that follow it in the file.
pub(super) fn parse(text: &[u8], data_size: u64, path: &Path, out: &mut Collector) -> Header {
    let mut header = Header::default();
    let entries = match parse_map(text) {
        Ok(entries) => entries,
        Err(message) => {
            out.push(Diagnostic::error(FormatCode::BadHeader, message).file(path).help(DAMAGED));
            return header;
        }
    };
    let twice = repeated(&entries);
    for &key in &twice {
        let diagnostic =
            Diagnostic::error(FormatCode::DuplicateKey, format!("the header holds `{}` twice", shown(key)));
        let diagnostic = diagnostic.file(path).help(DAMAGED);
        out.push(if key == METADATA { diagnostic } else { diagnostic.tensor(key) });
    }
    let mut seen = HashSet::new();
    let mut is_first = |key| twice.is_empty() || seen.insert(key);
    let mut claims = Vec::with_capacity(entries.len());
    let mut all_claims_known = true;
    for (key, value) in entries.iter().filter(|(key, _)| is_first(&**key)) {
        if key == METADATA {
            header.metadata = metadata(value, path, out);
            continue;
        }
        let (entry, claim) = tensor(key, value, path, out);
        match entry {
            Some(Ok(entry)) => header.tensors.push(entry),
            Some(Err(reason)) => header.unread.push((key.to_string(), *reason)),
            None => {}
        }
        all_claims_known &= claim.is_some();
        claims.extend(claim);
    }
    // Where an entry's place is unknown or stands twice, every gap could be its doing.
    if all_claims_known && twice.is_empty() {
        check_tiling(claims, data_size, path, out);
    }
    header.tensors.sort_by_key(|entry| (entry.begin, entry.end));
    header
}

fn parse_map(text: &[u8]) -> Result<Vec<json::Entry<'_>>, String> {
    if text.first() != Some(&b'{') {
        let found = text.first().map_or("nothing".to_owned(), |byte| format!("`{}`", byte.escape_ascii()));
        return Err(format!("the header begins with {found} instead of `{{`"));
    }
    let text = str::from_utf8(text)
        .map_err(|error| format!("the header is not UTF-8 at its byte {}", error.valid_up_to()))?;
    Json::parse_map(text).map_err(|problem| format!("the header {problem}"))
}

fn metadata(value: &Json<'_>, path: &Path, out: &mut Collector) -> BTreeMap<String, String> {
    let fail = |message: String, found: &Json<'_>| {
        let diagnostic = Diagnostic::error(FormatCode::MetadataNotString, message).file(path);
        diagnostic.expected("a map of strings to strings").found(found.brief()).help(DAMAGED)
    };
    let Json::Map(entries) = value else {
        out.push(fail("`__metadata__` is not a map".to_owned(), value));
        return BTreeMap::new();
    };
    for key in repeated(entries) {
        let message = format!("`__metadata__` holds `{}` twice", shown(key));
        out.push(Diagnostic::error(FormatCode::DuplicateKey, message).file(path).help(DAMAGED));
    }
    let mut metadata = BTreeMap::new();
    for (key, value) in entries {
        match value {
            Json::Text(text) => {
                metadata.insert(key.to_string(), text.to_string());
            }
            other => out.push(fail(format!("`{}` in `__metadata__` is not a string", shown(key)), other)),
        }
    }
    metadata
}

/// Checks one entry on its own; unknown fields are left alone. Of a type that is not known there is the reason alone: its
/// bytes cannot be counted, but they are its own.
fn tensor<'a>(
    key: &'a str,
    value: &Json<'_>,
    path: &Path,
    out: &mut Collector,
) -> (Option<Result<Entry, Box<Diagnostic>>>, Option<Claim<'a>>) {
    let fail = |code, message: String| Diagnostic::error(code, message).file(path).tensor(key).help(DAMAGED);
    let Json::Map(fields) = value else {
        out.push(
            fail(FormatCode::BadEntry, "the tensor's entry is not a map".to_owned()).found(value.brief()),
        );
        return (None, None);
    };
    for field in repeated(fields) {
        let message = format!("the tensor's entry holds `{}` twice", shown(field));
        out.push(fail(FormatCode::DuplicateKey, message));
    }
    let mut find = |name: &str| {
        let field = fields.iter().find(|(field, _)| field == name).map(|(_, value)| value);
        if field.is_none() {
            out.push(fail(FormatCode::BadEntry, format!("the tensor's entry has no `{name}`")));
        }
        field
    };
    let (dtype, shape, offsets) = (find("dtype"), find("shape"), find("data_offsets"));
    let dtype = dtype.and_then(|value| check_dtype(value, &fail, out));
    let shape = shape.and_then(|value| check_shape(value, &fail, out));
    let offsets = offsets.and_then(|value| check_offsets(value, &fail, out));
    let claim = offsets.map(|(begin, end)| Claim { key, begin, end });
    let (dtype, (shape, elements), (begin, end)) = match (dtype, shape, offsets) {
        (Some(Ok(dtype)), Some(shape), Some(offsets)) => (dtype, shape, offsets),
        (Some(Err(reason)), Some(_), Some(_)) => return (Some(Err(reason)), claim),
        (dtype, ..) => {
            // Of an entry that is damaged all is told.
            dtype.into_iter().filter_map(Result::err).for_each(|reason| out.push(*reason));
            return (None, claim);
        }
    };
    match (dtype.byte_len(elements), elements.checked_mul(dtype.bits())) {
        (Some(bytes), _) if bytes == end - begin => {
            return (Some(Ok(Entry { key: key.to_owned(), dtype, shape, begin, end })), claim);
        }
        (Some(bytes), _) => {
            let message =
                format!("its offsets span {} bytes but its shape and type need {bytes}", end - begin);
            let found = format!("{dtype}, {shape:?}, bytes {begin} to {end}");
            out.push(fail(FormatCode::SizeMismatch, message).found(shown(&found)));
        }
        (None, Some(bits)) => {
            let message = format!("{elements} elements of {dtype} take {bits} bits and end inside a byte");
            out.push(fail(FormatCode::SubByte, message));
        }
        (None, None) => {
            let message = format!("the size of {elements} elements of {dtype} overflows 64 bits");
            out.push(fail(FormatCode::ShapeOverflow, message));
        }
    }
    (None, claim)
}

/// Returns the type, or what is to be said of one that is not known.
fn check_dtype(
    value: &Json<'_>,
    fail: &dyn Fn(FormatCode, String) -> Diagnostic,
    out: &mut Collector,
) -> Option<Result<Dtype, Box<Diagnostic>>> {
    let Json::Text(name) = value else {
        out.push(fail(FormatCode::BadEntry, "`dtype` is not a string".to_owned()).found(value.brief()));
        return None;
    };
    Some(Dtype::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Dtype::SAFETENSORS.iter().map(|dtype| dtype.name()).collect();
        let help = match nearest(&name.to_uppercase(), known.iter().copied()) {
            Some(near) => format!("the nearest known type is `{near}`"),
            None => "it may be newer than this program: save the tensor with a known type".to_owned(),
        };
        let diagnostic = fail(FormatCode::UnknownDtype, format!("the type `{}` is not known", shown(name)));
        Box::new(diagnostic.expected(format!("one of {}", known.join(", "))).help(help))
    }))
}

/// Returns the shape and its number of elements.
fn check_shape(
    value: &Json<'_>,
    fail: &dyn Fn(FormatCode, String) -> Diagnostic,
    out: &mut Collector,
) -> Option<(Vec<u64>, u64)> {
    let Some(shape) = value.as_u64_list() else {
        let diagnostic = fail(FormatCode::BadShape, "`shape` is not a list of sizes".to_owned());
        out.push(diagnostic.expected("non-negative integers").found(value.brief()));
        return None;
    };
    // Strides grow past a zero too, so a zero must not hide the overflow of the other sizes.
    let product = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
    let Some(product) = product else {
        let diagnostic =
            fail(FormatCode::ShapeOverflow, "the number of its elements overflows 64 bits".to_owned());
        out.push(diagnostic.found(value.brief()));
        return None;
    };
    let elements = if shape.contains(&0) { 0 } else { product };
    Some((shape, elements))
}

fn check_offsets(
    value: &Json<'_>,
    fail: &dyn Fn(FormatCode, String) -> Diagnostic,
    out: &mut Collector,
) -> Option<(u64, u64)> {
    let message = match value.as_u64_list().as_deref() {
        Some(&[begin, end]) if begin <= end => return Some((begin, end)),
        Some(&[begin, end]) => format!("`data_offsets` begin at {begin}, after their end at {end}"),
        _ => "`data_offsets` are not two offsets".to_owned(),
    };
    let diagnostic = fail(FormatCode::BadOffsets, message);
    out.push(diagnostic.expected("two non-negative integers, the first not the larger").found(value.brief()));
    None
}

/// Checks that the tensors cover the data exactly.
fn check_tiling(mut claims: Vec<Claim<'_>>, data_size: u64, path: &Path, out: &mut Collector) {
    claims.sort_by_key(|claim| (claim.begin, claim.end));
    let gaps = gaps(&claims, path);
    let (inside, beyond): (Vec<Claim<'_>>, Vec<Claim<'_>>) =
        claims.into_iter().partition(|claim| claim.end <= data_size);
    if let Some(end) = beyond.iter().map(|claim| claim.end).max() {
        if gaps.is_empty() {
            // The header is sound in itself, so it is the file that is cut.
            let message = format!("the file is cut short: missing {} bytes", end - data_size);
            let mut diagnostic = Diagnostic::error(FormatCode::Truncated, message).file(path).help(DAMAGED);
            diagnostic = diagnostic.expected(format!("{end} bytes of data")).found(data_size.to_string());
            out.push(beyond.iter().fold(diagnostic, |diagnostic, claim| diagnostic.tensor(claim.key)));
            return;
        }
        for claim in &beyond {
            let message =
                format!("`data_offsets` end at {}, past the end of the data at {data_size}", claim.end);
            let diagnostic = Diagnostic::error(FormatCode::BadOffsets, message).file(path);
            out.push(diagnostic.tensor(claim.key).help(DAMAGED));
        }
        self::gaps(&inside, path).into_iter().for_each(|diagnostic| out.push(diagnostic));
        return;
    }
    gaps.into_iter().for_each(|diagnostic| out.push(diagnostic));
    let end = inside.iter().map(|claim| claim.end).max().unwrap_or(0);
    if end < data_size {
        let message = format!("{} bytes follow the last tensor", data_size - end);
        let diagnostic = Diagnostic::error(FormatCode::TrailingBytes, message).file(path).help(DAMAGED);
        out.push(diagnostic.expected(format!("{end} bytes of data")).found(data_size.to_string()));
    }
}

/// Returns what is wrong between neighbours; the claims are sorted.
fn gaps(claims: &[Claim<'_>], path: &Path) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut last: Option<&Claim<'_>> = None;
    for claim in claims {
        let covered = last.map_or(0, |last| last.end);
        if let Some(last) = last.filter(|last| claim.begin < last.end) {
            let (first, second) = (shown(last.key), shown(claim.key));
            let message = format!(
                "`{first}` and `{second}` overlap: bytes {} to {} and {} to {}",
                last.begin, last.end, claim.begin, claim.end
            );
            let diagnostic = Diagnostic::error(FormatCode::Overlap, message).file(path);
            found.push(diagnostic.tensor(last.key).tensor(claim.key).help(DAMAGED));
        } else if claim.begin > covered {
            let place =
                last.map_or("before the first tensor".to_owned(), |l| format!("after `{}`", shown(l.key)));
            let message = format!("{} bytes {place} belong to no tensor", claim.begin - covered);
            let diagnostic = Diagnostic::error(FormatCode::Hole, message).file(path);
            found.push(diagnostic.tensor(last.unwrap_or(claim).key).help(DAMAGED));
        }
        if claim.end >= covered {
            last = Some(claim);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(header: &str, data: u64) -> Result<Header, Vec<Diagnostic>> {
        let mut out = Collector::default();
        let header = parse(header.as_bytes(), data, Path::new("a"), &mut out);
        out.finish(header).map(|(header, _)| header).map_err(|errors| errors.diagnostics().to_vec())
    }

    /// Returns the codes of what is wrong, and all of its texts.
    fn wrong(header: &str, data: u64) -> (Vec<&'static str>, String) {
        let found = parsed(header, data).expect_err(header);
        (found.iter().map(|diagnostic| diagnostic.code.as_str()).collect(), format!("{found:?}"))
    }

    fn entry(dtype: &str, shape: &str, offsets: &str) -> String {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    }

    fn one(dtype: &str, shape: &str, offsets: &str) -> String {
        format!(r#"{{"t":{}}}"#, entry(dtype, shape, offsets))
    }

    #[test]
    fn sf_01_a_key_stands_once_however_it_is_written() {
        for second in ["w", r"\u0077"] {
            let (a, b) = (entry("F32", "[1]", "[0,4]"), entry("F32", "[1]", "[4,8]"));
            let (codes, text) = wrong(&format!(r#"{{"w":{a},"{second}":{b}}}"#), 8);
            assert_eq!(codes, ["format/duplicate-key"]);
            assert!(text.contains("`w`"));
        }
        let (codes, _) = wrong(r#"{"__metadata__":{},"__metadata__":{}}"#, 0);
        assert_eq!(codes, ["format/duplicate-key"]);
        let (codes, _) = wrong(r#"{"__metadata__":{"a":"1","a":"1"}}"#, 0);
        assert_eq!(codes, ["format/duplicate-key"]);
        let twice = r#"{"t":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#;
        assert_eq!(wrong(twice, 1).0, ["format/duplicate-key"]);
    }

    #[test]
    fn sf_02_a_shape_must_fit_its_offsets() {
        let (codes, text) = wrong(&one("F32", "[1000,1000]", "[0,4]"), 4);
        assert_eq!(codes, ["format/size-mismatch"]);
        assert!(text.contains("span 4 bytes") && text.contains("need 4000000"));
    }

    #[test]
    fn sf_03_offsets_stay_inside_the_data() {
        for (shape, offsets) in [
            ("[4]", "[-16,0]"),
            ("[1]", "[8,4]"),
            ("[4]", "[1099511627776,1099511627792]"),
            ("[4]", "[0,16,32]"),
            ("[4]", "[0]"),
            ("[4]", "[0,16.0]"),
            ("[4]", "[0,18446744073709551616]"),
            ("[4]", "\"0\""),
        ] {
            let (codes, text) = wrong(&one("F32", shape, offsets), 16);
            assert_eq!(codes, ["format/bad-offsets"], "{offsets}");
            assert!(text.contains("tensor: t"));
        }
    }

    #[test]
    fn sf_05_tensors_tile_the_data() {
        let two = |k: &str, v: &str, n: u32| {
            format!(
                r#"{{"k":{},"v":{}}}"#,
                entry("F32", &format!("[{n}]"), k),
                entry("F32", &format!("[{n}]"), v)
            )
        };
        let (codes, text) = wrong(&two("[0,8]", "[0,8]", 2), 8);
        assert_eq!(codes, ["format/overlap"]);
        assert!(text.contains("`k` and `v`"));
        assert_eq!(wrong(&two("[0,8]", "[4,12]", 2), 12).0, ["format/overlap"]);
        let (codes, text) = wrong(&two("[0,4]", "[8,12]", 1), 12);
        assert_eq!(codes, ["format/hole"]);
        assert!(text.contains("4 bytes after `k`"));
        assert!(wrong(&one("U8", "[4]", "[4,8]"), 8).1.contains("4 bytes before the first tensor"));
        let header = parsed(&two("[4,8]", "[0,4]", 1), 8).expect("tiles");
        assert_eq!(header.tensors.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["v", "k"]);
    }

    #[test]
    fn a_small_tensor_inside_a_large_one_does_not_hide_the_next_overlap() {
        let header = format!(
            r#"{{"a":{},"b":{},"c":{}}}"#,
            entry("U8", "[8]", "[0,8]"),
            entry("U8", "[1]", "[1,2]"),
            entry("U8", "[4]", "[4,8]")
        );
        let (codes, text) = wrong(&header, 8);
        assert_eq!(codes, ["format/overlap", "format/overlap"]);
        assert!(text.contains("`a` and `b`") && text.contains("`a` and `c`"));
    }

    #[test]
    fn sf_09_metadata_is_strings() {
        let tensor = entry("U8", "[1]", "[0,1]");
        assert!(parsed(&format!(r#"{{"__metadata__":{{}},"t":{tensor}}}"#), 1).is_ok());
        let header = parsed(&format!(r#"{{"__metadata__":{{"a":"b"}},"t":{tensor}}}"#), 1).expect("fine");
        assert_eq!(header.metadata["a"], "b");
        for bad in ["{\"n\":1}", "[]", "null"] {
            let (codes, _) = wrong(&format!(r#"{{"__metadata__":{bad},"t":{tensor}}}"#), 1);
            assert_eq!(codes, ["format/metadata-not-string"], "{bad}");
        }
    }

    #[test]
    fn sf_10_the_file_ends_where_the_tensors_end() {
        let header = one("F32", "[4]", "[0,16]");
        let (codes, text) = wrong(&header, 12);
        assert_eq!(codes, ["format/truncated"]);
        assert!(text.contains("missing 4 bytes"));
        let (codes, text) = wrong(&header, 19);
        assert_eq!(codes, ["format/trailing-bytes"]);
        assert!(text.contains("3 bytes follow"));
        assert_eq!(wrong("{}", 3).0, ["format/trailing-bytes"]);
    }

    #[test]
    fn st_07_empty_tensors_and_scalars_are_fine() {
        let header = format!(
            r#"{{"a":{},"b":{},"c":{},"n":{},"alpha":{}}}"#,
            entry("F32", "[0]", "[0,0]"),
            entry("F32", "[2,0]", "[0,0]"),
            entry("F16", "[0,5]", "[12,12]"),
            entry("I64", "[]", "[0,8]"),
            entry("F32", "[]", "[8,12]")
        );
        let header = parsed(&header, 12).expect("fine");
        let lengths: Vec<u64> = header.tensors.iter().map(|entry| entry.end - entry.begin).collect();
        assert_eq!(lengths, [0, 0, 8, 4, 0]);
        assert!(parsed("{}", 0).expect("fine").tensors.is_empty());
    }

    #[test]
    fn types_and_shapes_are_checked() {
        let header =
            parsed(&one("bf_16", "[1]", "[0,4]"), 4).expect("the type of one tensor says nothing of others");
        let text = format!("{:?}", header.unread);
        assert!(header.tensors.is_empty() && text.contains("format/unknown-dtype"), "{text}");
        // Its bytes are its own all the same.
        assert_eq!(wrong(&one("bf_16", "[1]", "[0,3]"), 4).0, ["format/trailing-bytes"]);
        let both = format!(r#"{{"a":{},"b":{}}}"#, entry("U8", "[3]", "[0,3]"), entry("X9", "[3]", "[2,4]"));
        assert_eq!(wrong(&both, 4).0, ["format/overlap"]);
        assert_eq!(wrong(&one("X9", "[3]", "[0,9]"), 4).0, ["format/truncated"]);
        assert!(text.contains("`bf_16`") && text.contains("nearest known type is `BF16`"), "{text}");
        for shape in ["[-1]", "[1.5]", "4", "[null]", "[\"1\"]"] {
            assert_eq!(wrong(&one("F32", shape, "[0,4]"), 4).0, ["format/bad-shape"], "{shape}");
        }
        let huge = "1099511627776";
        for shape in
            [format!("[{huge},{huge}]"), format!("[0,{huge},{huge}]"), "[4611686018427387904]".into()]
        {
            assert_eq!(wrong(&one("F32", &shape, "[0,0]"), 0).0, ["format/shape-overflow"], "{shape}");
        }
        assert_eq!(wrong(&one("F4", "[3]", "[0,2]"), 2).0, ["format/sub-byte"]);
        assert!(parsed(&one("F4", "[4]", "[0,2]"), 2).is_ok());
    }

    #[test]
    fn everything_wrong_is_told_at_once_and_extra_fields_are_none_of_it() {
        assert_eq!(wrong(r#"{"t":{}}"#, 0).0, ["format/bad-entry"; 3]);
        assert_eq!(wrong(r#"{"t":[]}"#, 0).0, ["format/bad-entry"]);
        let (codes, _) = wrong(&one("X", "[-1]", "[1,0]"), 0);
        assert_eq!(codes, ["format/bad-shape", "format/bad-offsets", "format/unknown-dtype"]);
        assert!(parsed(r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":{"y":[]}}}"#, 1).is_ok());
    }

    #[test]
    fn a_header_is_a_json_map() {
        for text in ["", " {}", "[]", "{", "{}x", "{\"a\":\"\\ud800\"}"] {
            assert_eq!(wrong(text, 0).0, ["format/bad-header"], "{text}");
        }
        let nested = format!("{{\"a\":{}", "[".repeat(100_000));
        assert_eq!(wrong(&nested, 0).0, ["format/bad-header"]);
        let mut out = Collector::default();
        parse(b"{\"\xff\":1}", 0, Path::new("a"), &mut out);
        assert!(out.has_errors());
        assert!(parsed("{}    \n", 0).is_ok());
    }

    proptest! {
        /// Whatever is done to a sound header, it is parsed without a panic and taken only where the
        /// reference implementation takes it.
        #[test]
        fn damaged_headers_are_taken_only_where_the_reference_takes_them(
            edits in prop::collection::vec((any::<prop::sample::Index>(), "[0-9a-zA-F\\[\\]{},:\"\\\\-]{0,2}"), 0..3),
            data in prop_oneof![Just(16_u64), 0..32_u64],
        ) {
            let mut text = format!(
                r#"{{"__metadata__":{{"a":"b"}},"u":{},"v":{},"w":{}}}"#,
                entry("F32", "[1,2]", "[0,8]"),
                entry("F4", "[2,3]", "[8,11]"),
                entry("U8", "[5,1]", "[11,16]")
            );
            for (place, edit) in edits {
                let at = place.index(text.len());
                text.replace_range(at..=at, &edit);
            }
            let theirs = serde_json::from_str::<::safetensors::tensor::Metadata>(&text);
            let theirs = theirs.is_ok_and(|metadata| metadata.data_len() as u64 == data);
            let ours = parsed(&text, data);
            // A type that is not known is no reason to refuse the other tensors; theirs does.
            let is_read = ours.as_ref().is_ok_and(|header| header.unread.is_empty());
            prop_assert!(!is_read || theirs, "{text}");
            let stricter = ["format/duplicate-key", "format/bad-header"];
            if let Err(found) = ours {
                prop_assert!(!theirs || found.iter().all(|d| stricter.contains(&d.code.as_str())), "{text}");
            }
        }
    }
}

//! NumPy's files: one array (`.npy`), and an archive of arrays (`.npz`).

mod header;
mod literal;
pub(super) mod write;

pub(super) use header::Kind;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;

use header::{Header, MAGIC};

use super::part::Part;
use super::root::{self, Content, Descent, Leaf};
use super::spec::{Shards, Spec};
use super::store::{Decode, OpenFile, Spool, copy_swapped};
use super::zip::read::{Entry, comment, entries, reader};
use super::{Format, OpenOptions, shown};
use crate::catalog::TensorMeta;
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;

/// What an archive of arrays is.
pub(super) const NPZ: Spec = Spec {
    name: "npz",
    file_name: "model.npz",
    endings: &["npz"],
    shards: Shards::None,
    is_it: |probe| {
        let is_empty = probe.entries.is_some_and(<[Entry]>::is_empty);
        Ok(is_empty || probe.has_entry(|name| name.ends_with(".npy")))
    },
    may_be: Spec::NEVER,
    read: read_npz,
    write: Some(|contents, out| write::lay_out(contents.tensors, contents.sizes, contents.metadata, out)),
    find: None,
};

/// What one array is.
pub(super) const NPY: Spec = Spec {
    name: "npy",
    file_name: "model.npy",
    endings: &["npy"],
    shards: Shards::None,
    is_it: |probe| Ok(probe.starts(MAGIC)),
    may_be: Spec::NEVER,
    read: read_npy,
    write: None,
    find: None,
};

/// What this program keeps the metadata under: in the archive's comment, or in an entry where it is too long for that.
/// NumPy does not show the comment, so that everything that it lists is an array.
const METADATA: &str = "__metadata__";
/// The entry that holds metadata too long for a comment.
const METADATA_ENTRY: &str = "__metadata__.json";
/// The longest metadata that are read, in bytes.
const METADATA_LIMIT: u64 = 100_000_000;

/// Where an array's bytes are.
#[derive(Clone)]
enum Place {
    /// The whole file.
    File,
    /// An entry of the archive.
    Entry(Entry),
}

/// An array whose header could be read.
struct Array {
    header: Header,
    place: Place,
    /// The bytes of header and elements.
    size: u64,
}

/// An array, or why its header could not be read.
type Found = Result<Array, Box<Diagnostic>>;

/// Reads the headers of an archive's arrays. Those that are stored as they are get read where they lie.
///
/// # Errors
/// Returns `format/zip` where the archive is wrong. To the collector go `format/npy` for a header or a length that is
/// wrong, `format/opaque-dtype`, `format/object-array` and `format/unknown-dtype` for elements that cannot be held, and as
/// a warning what is passed over: text, dates, structured arrays and files that are no arrays.
fn read_npz(file: &Arc<OpenFile>, options: &OpenOptions, out: &mut Collector) -> Result<Part, Errors> {
    let mut part = Part::of(Format::Npz, file);
    part.metadata = metadata_of(&comment(file)?).unwrap_or_default();
    let mut leaves = Vec::new();
    for entry in entries(file)? {
        if entry.name == METADATA_ENTRY {
            let bytes = super::zip::read::bytes(file, &entry, METADATA_LIMIT)?;
            if let Some(metadata) = metadata_of(&bytes) {
                part.metadata.extend(metadata);
                continue;
            }
        }
        let key = entry.name.strip_suffix(".npy");
        if key.is_none() && !is_array(file, &entry) {
            leaves.push(leaf(&entry.name, Content::Other("not an array".to_owned())));
            continue;
        }
        let name = key.unwrap_or(&entry.name).to_owned();
        let content = match (entry.unread.clone(), Header::read(&mut reader(file, &entry), entry.size)) {
            (Some(method), _) => {
                let message = format!("it is compressed with {method}, which is not read");
                let diagnostic = Diagnostic::error(FormatCode::ZipMethod, message).file(&file.path);
                let help = "save the archive again with `numpy.savez` or `numpy.savez_compressed`";
                Content::Tensor(Err(Box::new(diagnostic.help(help))))
            }
            (None, Ok(header)) => {
                let size = entry.size;
                content(Array { header, place: Place::Entry(entry), size })
            }
            (None, Err(message)) => Content::Tensor(Err(Box::new(wrong(file, &name, &message)))),
        };
        leaves.push(leaf(&name, content));
    }
    let arrays = root::choose(&file.path, leaves, "/", Descent::Trained, options, out)?;
    take(&mut part, arrays, options, out);
    Ok(part)
}

/// Reads the header of one array; its key is the file's name without its ending.
///
/// # Errors
/// As [`read_npz`], to the collector.
fn read_npy(file: &Arc<OpenFile>, options: &OpenOptions, out: &mut Collector) -> Result<Part, Errors> {
    let mut part = Part::of(Format::Npy, file);
    let name = file.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let header = Header::read(&mut file.range(0, file.size), file.size);
    let header = header.map_err(|message| wrong(file, &name, &message))?;
    let leaves = vec![leaf(&name, content(Array { header, place: Place::File, size: file.size }))];
    let arrays = root::choose(&file.path, leaves, "/", Descent::Asked, options, out)?;
    take(&mut part, arrays, options, out);
    Ok(part)
}

/// Returns the metadata in a text that this program wrote.
fn metadata_of(text: &[u8]) -> Option<BTreeMap<String, String>> {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_slice(text).ok()?;
    let metadata = all.remove(METADATA)?;
    all.is_empty().then_some(metadata)
}

fn is_array(file: &Arc<OpenFile>, entry: &Entry) -> bool {
    let mut start = [0; MAGIC.len()];
    reader(file, entry).read_exact(&mut start).is_ok() && &start == MAGIC
}

fn leaf<T>(name: &str, content: Content<T>) -> Leaf<T> {
    Leaf { path: name.split('/').map(str::to_owned).collect(), content }
}

fn content(array: Array) -> Content<Found> {
    match array.header.kind {
        Kind::Other(what) => Content::Other(what),
        _ => Content::Tensor(Ok(array)),
    }
}

fn wrong(file: &OpenFile, name: &str, message: &str) -> Diagnostic {
    let message = format!("the array `{}` {message}", shown(name));
    let help = "the file is damaged or cut short: download or save it again";
    Diagnostic::error(FormatCode::Npy, message).file(&file.path).tensor(name).help(help)
}

/// Makes tensors of the arrays that are chosen.
fn take(part: &mut Part, arrays: Vec<(String, Found)>, options: &OpenOptions, out: &mut Collector) {
    let Some(file) = part.files.first().map(Arc::clone) else { return };
    let mut spool = Spool::new();
    // The spool becomes the store behind those that are there.
    let spooled = part.stores.len();
    for (key, array) in arrays {
        let found = array.and_then(|array| {
            let found = tensor(&file, &key, &array, options)?;
            Ok((found, array))
        });
        match found {
            Ok(((dtype, swapped, length), array)) => {
                let (shape, strides) = (array.header.shape.clone(), array.header.strides());
                let (store, offset) = match in_place(&array, swapped) {
                    Some(offset) => (0, offset),
                    None => (spooled, spool.push(length, decode(&file, array, swapped))),
                };
                part.tensors.push(TensorMeta {
                    key,
                    dtype,
                    shape,
                    strides,
                    file: store,
                    offset,
                    extents: Vec::new(),
                });
            }
            Err(diagnostic) => part.refuse(key, *diagnostic, out),
        }
    }
    if !spool.is_empty() {
        part.add_store(Arc::new(spool));
    }
}

/// Returns the type of an array's elements, what is to be swapped and the bytes that they take.
fn tensor(
    file: &OpenFile,
    key: &str,
    array: &Array,
    options: &OpenOptions,
) -> Result<(Dtype, Option<usize>, u64), Box<Diagnostic>> {
    let fail = |code, message: String| Diagnostic::error(code, message).file(&file.path).tensor(key);
    let (dtype, swapped) = match &array.header.kind {
        Kind::Known { dtype, swapped } => (*dtype, *swapped),
        Kind::Void { width, descr } => {
            let named = options.void_as.iter().copied().find(|dtype| dtype.byte_width() == Some(*width));
            (named.ok_or_else(|| Box::new(opaque(fail, *width, descr)))?, None)
        }
        Kind::Object => {
            let message = "its elements are Python objects (`|O`): a pickle, which is never run".to_owned();
            let help = "save the array again with elements of a number type, or leave it out";
            return Err(Box::new(fail(FormatCode::ObjectArray, message).help(help)));
        }
        Kind::Unheld(descr) | Kind::Other(descr) => {
            let message = format!("no type here holds its elements, `{}`", shown(descr));
            let help = "save the array again with another type, as with `array.astype('f4')`";
            return Err(Box::new(fail(FormatCode::UnknownDtype, message).help(help)));
        }
    };
    let Some(length) = dtype.byte_width().and_then(|width| array.header.bytes(width)) else {
        let message = format!("the size of {:?} {dtype} overflows", array.header.shape);
        return Err(Box::new(fail(FormatCode::ShapeOverflow, message)));
    };
    let found = array.size.saturating_sub(array.header.start);
    if found != length {
        let shape = &array.header.shape;
        let diagnostic = wrong(file, key, "has another length than its shape says");
        let expected = format!("{length} bytes for {shape:?} {dtype}");
        return Err(Box::new(diagnostic.expected(expected).found(format!("{found} bytes"))));
    }
    Ok((dtype, swapped, length))
}

fn opaque(fail: impl Fn(FormatCode, String) -> Diagnostic, width: u64, descr: &str) -> Diagnostic {
    let (guess, help) = if width == 2 {
        ("bfloat16, for which NumPy has no type", "if so, add `--void-as bf16`")
    } else {
        ("8-bit floats, for which NumPy has no type", "if so, add `--void-as f8-e4m3` or `--void-as f8-e5m2`")
    };
    let message = format!("its elements are raw bytes without a type (`{}`), probably {guess}", shown(descr));
    fail(FormatCode::OpaqueDtype, message).help(help)
}

/// Returns where the elements lie in the file as they are.
fn in_place(array: &Array, swapped: Option<usize>) -> Option<u64> {
    match &array.place {
        _ if swapped.is_some() => None,
        Place::File => Some(array.header.start),
        Place::Entry(entry) => (!entry.deflated).then(|| entry.start + array.header.start),
    }
}

/// Returns what writes the elements little-endian and not compressed.
fn decode(file: &Arc<OpenFile>, array: Array, swapped: Option<usize>) -> Decode {
    let file = Arc::clone(file);
    Box::new(move |to| {
        let mut from: Box<dyn Read> = match &array.place {
            Place::File => Box::new(file.range(0, file.size)),
            Place::Entry(entry) => Box::new(reader(&file, entry)),
        };
        io::copy(&mut (&mut from).take(array.header.start), &mut io::sink())?;
        match swapped {
            Some(width) => copy_swapped(&mut from, to, width),
            None => io::copy(&mut from, to).map(|_| ()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::row_major;
    use crate::format::testing::*;
    use crate::format::zip::write::{NewEntry, lay_out};
    use crate::format::{Reader, open};

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let length = (header.len() as u16).to_le_bytes();
        [&MAGIC[..], &[1, 0], &length, header.as_bytes(), data].concat()
    }

    fn array(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        npy(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}  \n"), data)
    }

    fn npz(entries: &[(&str, Vec<u8>)], comment: &[u8]) -> Vec<u8> {
        let entries = entries.iter().map(|(name, bytes)| NewEntry {
            name: (*name).to_owned(),
            head: bytes.clone(),
            hole: 0,
        });
        lay_out(entries.collect(), comment).pieces.remove(0).1
    }

    fn opened(name: &str, bytes: &[u8], options: &OpenOptions) -> Result<Box<dyn Reader>, Errors> {
        let folder = tempfile::tempdir().expect("folder");
        open(&put(folder.path(), name, bytes), options)
    }

    fn plain(bytes: &[u8]) -> Result<Box<dyn Reader>, Errors> {
        opened("arr.npy", bytes, &OpenOptions::default())
    }

    /// Returns the only tensor's type, shape, strides and the bytes that it spans.
    fn only(reader: &dyn Reader) -> (Dtype, Vec<u64>, Vec<u64>, Vec<u8>) {
        let [tensor] = &reader.catalog().tensors[..] else { panic!("one tensor") };
        let mut bytes = vec![0; tensor.bytes() as usize];
        reader.read_exact_at(tensor.file, tensor.offset, &mut bytes).expect("reads");
        (tensor.dtype, tensor.shape.clone(), tensor.strides.clone(), bytes)
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn st_06_column_major_arrays_have_other_strides() {
        let data = floats(&[0., 3., 1., 4., 2., 5.]);
        for header in [
            "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n",
            "{'shape':(2,3),'fortran_order':True,'descr':'<f4'}",
            "   { \"fortran_order\" :  True , \"shape\" : (2L, 3L) , \"descr\" : \"=f4\" }   ",
        ] {
            let reader = plain(&npy(header, &data)).expect("opens");
            assert_eq!(only(&*reader), (Dtype::F32, vec![2, 3], vec![1, 2], data.clone()), "{header}");
            assert_eq!(reader.catalog().tensors[0].key, "arr");
        }
        let header = "{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3, 5), }";
        let reader = plain(&npy(header, &[0; 60])).expect("opens");
        assert_eq!(reader.catalog().tensors[0].strides, [1, 2, 6]);
    }

    #[test]
    fn dt_13_big_endian_elements_are_swapped_each_by_itself() {
        for (descr, data, dtype, expected) in [
            (">f4", &[0x3f, 0x80, 0, 0][..], Dtype::F32, &[0, 0, 0x80, 0x3f][..]),
            (">i2", &[1, 2], Dtype::I16, &[2, 1]),
            (">u8", &[1, 2, 3, 4, 5, 6, 7, 8], Dtype::U64, &[8, 7, 6, 5, 4, 3, 2, 1]),
            (">c8", &[1, 2, 3, 4, 5, 6, 7, 8], Dtype::C64, &[4, 3, 2, 1, 8, 7, 6, 5]),
            ("<i2", &[1, 2], Dtype::I16, &[1, 2]),
            (">b1", &[1], Dtype::Bool, &[1]),
            (">u1", &[9], Dtype::U8, &[9]),
        ] {
            let bytes = array(descr, "(1,)", data);
            let expected = (dtype, vec![1], vec![1], expected.to_vec());
            assert_eq!(only(&*plain(&bytes).expect("opens")), expected, "{descr}");
            assert_eq!(only(&*plain(&npz(&[("a.npy", bytes)], b"")).expect("opens")), expected, "{descr}");
        }
    }

    #[test]
    fn dt_02_raw_bytes_need_a_name() {
        let bytes = npz(&[("arr.npy", array("|V2", "(2,)", &[0x80, 0x3f, 0, 0x40]))], b"");
        let result = plain(&bytes);
        assert_eq!(codes(&result), ["format/opaque-dtype"]);
        let text = text(&result);
        assert!(
            text.contains("`|V2`") && text.contains("bfloat16") && text.contains("--void-as bf16"),
            "{text}"
        );
        let options = OpenOptions { void_as: vec![Dtype::F8E5M2, Dtype::BF16], ..OpenOptions::default() };
        let reader = opened("a.npz", &bytes, &options).expect("opens");
        assert_eq!(only(&*reader), (Dtype::BF16, vec![2], vec![1], vec![0x80, 0x3f, 0, 0x40]));
        for descr in ["|V1", "<V1", "<f1"] {
            let bytes = array(descr, "(2,)", &[1, 2]);
            assert_eq!(codes(&plain(&bytes)), ["format/opaque-dtype"], "{descr}");
            assert_eq!(only(&*opened("a", &bytes, &options).expect("opens")).0, Dtype::F8E5M2, "{descr}");
        }
    }

    #[test]
    fn key_13_objects_are_never_unpickled() {
        let bytes =
            npz(&[("w.npy", array("<f4", "()", &[0; 4])), ("o.npy", array("|O", "()", b"\x80\x02."))], b"");
        let result = plain(&bytes);
        assert_eq!(codes(&result), ["format/object-array"]);
        assert!(text(&result).contains("tensor: o"));
    }

    #[test]
    fn what_is_no_tensor_is_passed_over_and_told() {
        let structured =
            npy("{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (1,)}", b"");
        let bytes = npz(
            &[
                ("w.npy", array("<f4", "()", &[0; 4])),
                ("names.npy", array("<U5", "(3,)", b"")),
                ("when.npy", array("<M8[ns]", "(3,)", b"")),
                ("all.npy", structured),
                ("README", b"text".to_vec()),
                ("raw", array("|u1", "()", &[1])),
            ],
            b"",
        );
        let reader = plain(&bytes).expect("opens");
        let keys: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
        assert_eq!(keys, ["w", "raw"]);
        let [warning] = &reader.catalog().warnings[..] else { panic!("one warning") };
        assert_eq!(
            (warning.code.as_str(), &warning.tensors[..]),
            ("format/skipped", &["names", "when", "all", "README"].map(String::from)[..])
        );
    }

    #[test]
    fn a_root_is_a_folder_of_the_archive() {
        let one = || array("|u1", "()", &[1]);
        let bytes = npz(
            &[("opt/target/w.npy", one()), ("opt/state/w.npy", array("|O", "()", b"")), ("a.b/c.npy", one())],
            b"",
        );
        let options = OpenOptions { root: Some("opt/target".to_owned()), ..OpenOptions::default() };
        let reader = opened("a", &bytes, &options).expect("opens");
        assert_eq!(reader.catalog().tensors[0].key, "w");
        let options = OpenOptions { root: Some("nothing".to_owned()), ..OpenOptions::default() };
        assert_eq!(codes(&opened("a", &bytes, &options)), ["format/no-root"]);
        // The state of an optimizer beside other arrays.
        assert_eq!(codes(&plain(&bytes)), ["format/ambiguous-root"]);
        let options = OpenOptions { root: Some("/".to_owned()), ..OpenOptions::default() };
        assert_eq!(codes(&opened("a", &bytes, &options)), ["format/object-array"]);
    }

    #[test]
    fn a_method_that_is_not_read_stops_nothing_else() {
        let mut bytes = npz(&[("a.npy", array("|u1", "()", &[1])), ("b.npy", array("|u1", "()", &[2]))], b"");
        // The method in the local header of the first entry and in the directory.
        for magic in [&b"PK\x03\x04"[..], b"PK\x01\x02"] {
            let at = bytes.windows(4).position(|window| window == magic).expect("is there");
            bytes[at + if magic[2] == 3 { 8 } else { 10 }] = 12;
        }
        let result = plain(&bytes);
        assert!(
            codes(&result) == ["format/zip-method"] && text(&result).contains("bzip2"),
            "{}",
            text(&result)
        );
        let tensors = &result.expect("opens").catalog().tensors.clone();
        assert_eq!((tensors.len(), tensors[0].key.as_str()), (1, "b"));
    }

    #[test]
    fn types_that_are_not_held_are_named() {
        for descr in ["<f16", "<c16", "<f12", "<x4", "f", "", "<f4x"] {
            let result = plain(&array(descr, "()", &[0; 16]));
            assert_eq!(codes(&result), ["format/unknown-dtype"], "{descr}");
            assert!(text(&result).contains(&format!("`{descr}`")), "{descr}");
        }
    }

    #[test]
    fn the_length_is_exactly_that_of_the_shape() {
        for (shape, data, fine) in [
            ("(2, 3)", 24, true),
            ("(2, 3)", 23, false),
            ("(2, 3)", 25, false),
            ("()", 4, true),
            ("()", 0, false),
            ("(0, 3)", 0, true),
            ("(0, 3)", 4, false),
            ("(3)", 12, false),
            ("(-3,)", 12, false),
            ("(3.0,)", 12, false),
            ("[3]", 12, true),
        ] {
            let bytes = array("<f4", shape, &vec![0; data]);
            assert_eq!(plain(&bytes).is_ok(), fine, "{shape} {data}");
            assert_eq!(plain(&npz(&[("a.npy", bytes)], b"")).is_ok(), fine, "{shape} {data}");
        }
        for shape in ["(4294967296, 4294967296)", "(18446744073709551615,)", "(4294967296, 4294967296, 0)"] {
            assert_eq!(codes(&plain(&array("<f4", shape, b""))), ["format/shape-overflow"], "{shape}");
        }
        let reader = plain(&array("<f4", "(3, 0, 5)", b"")).expect("opens");
        assert_eq!(reader.catalog().tensors[0].strides, row_major(&[3, 0, 5]));
    }

    #[test]
    fn a_header_is_checked_before_it_is_used() {
        let good = array("<f4", "(2,)", &[0; 8]);
        for length in 6..good.len() {
            assert_eq!(codes(&plain(&good[..length])), ["format/npy"], "{length}");
        }
        let version = |major, minor| [&MAGIC[..], &[major, minor], &good[8..]].concat();
        for (major, minor) in [(0, 9), (1, 1), (4, 0)] {
            assert_eq!(codes(&plain(&version(major, minor))), ["format/npy"]);
        }
        let huge = [&MAGIC[..], &[2, 0, 0xff, 0xff, 0xff, 0xff], &good[10..]].concat();
        assert_eq!(codes(&plain(&huge)), ["format/npy"]);
        for header in [
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'x': 1}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'shape': (1,)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}",
            "{'descr': 4, 'fortran_order': False, 'shape': ()}",
            "",
        ] {
            let result = plain(&npy(header, &[0; 4]));
            assert_eq!(codes(&result), ["format/npy"], "{header}");
        }
        assert_eq!(codes(&plain(&npz(&[("a.npy", b"no array".to_vec())], b""))), ["format/npy"]);
        assert_eq!(
            codes(&plain(&npz(&[("a.npy", good.clone()), ("a", good)], b""))),
            ["format/duplicate-key"]
        );
    }

    #[test]
    fn later_versions_have_longer_headers_and_other_letters() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}";
        for major in [2, 3] {
            let length = (header.len() as u32).to_le_bytes();
            let bytes = [&MAGIC[..], &[major, 0], &length, header.as_bytes(), &[1, 2, 3, 4]].concat();
            assert_eq!(only(&*plain(&bytes).expect("opens")).3, [1, 2, 3, 4]);
        }
        let bytes = |major| [&MAGIC[..], &[major, 0, 1, 0, 0, 0, 0xff]].concat();
        assert!(text(&plain(&bytes(3))).contains("UTF-8"));
        assert!(text(&plain(&bytes(2))).contains("`ÿ`"));
    }

    #[test]
    fn metadata_come_from_the_comment_or_an_entry() {
        let text = br#"{"__metadata__":{"a":"1"}}"#;
        let w = ("w.npy", array("|u1", "()", &[1]));
        let metadata = |bytes: &[u8]| plain(bytes).expect("opens").catalog().metadata.clone();
        let expected = BTreeMap::from([("a".to_owned(), "1".to_owned())]);
        assert_eq!(metadata(&npz(std::slice::from_ref(&w), text)), expected);
        assert_eq!(metadata(&npz(&[w.clone(), (METADATA_ENTRY, text.to_vec())], b"")), expected);
        for other in [
            &b"a comment"[..],
            br#"{"a":"1"}"#,
            br#"{"__metadata__":{"a":1}}"#,
            br#"{"__metadata__":{},"b":{}}"#,
        ] {
            assert!(metadata(&npz(std::slice::from_ref(&w), other)).is_empty());
        }
        let reader = plain(&npz(&[w, (METADATA_ENTRY, b"{}".to_vec())], b"")).expect("opens");
        assert_eq!(reader.catalog().warnings[0].tensors, [METADATA_ENTRY]);
    }
}

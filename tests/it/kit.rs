//! What the tests share: checkpoints written and read by hand, never by the library, and runs of the binary.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use qkvconv::convert::{Conversion, ConvertOptions, Verify};
use qkvconv::diag::Errors;
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Destination, PublishOptions};
use qkvconv::format::{OpenOptions, open};
use qkvconv::mapping::select::select;
use qkvconv::progress::Progress;
use qkvconv::span::Source;
use serde_json::{Value, json};

/// A tensor with its bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let head = &self.bytes[..self.bytes.len().min(32)];
        write!(f, "{} {:?} {} bytes {head:02x?}", self.dtype, self.shape, self.bytes.len())
    }
}

/// A checkpoint's tensors by name.
pub(crate) type Tensors = BTreeMap<String, Tensor>;

pub(crate) fn width(dtype: &str) -> usize {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => 1,
        "F16" | "BF16" | "I16" | "U16" => 2,
        "F32" | "I32" | "U32" => 4,
        "F64" | "I64" | "U64" => 8,
        other => panic!("the tests have no width for {other}"),
    }
}

impl Tensor {
    pub(crate) fn new(dtype: &str, shape: &[u64], bytes: Vec<u8>) -> Tensor {
        assert_eq!(shape.iter().product::<u64>() as usize * width(dtype), bytes.len(), "{shape:?}");
        Tensor { dtype: dtype.to_owned(), shape: shape.to_vec(), bytes }
    }

    /// A single-precision tensor of these values.
    pub(crate) fn f32(shape: &[u64], values: impl IntoIterator<Item = f32>) -> Tensor {
        Tensor::new("F32", shape, values.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    /// A single-precision tensor of `base`, `base + 1`, ….
    pub(crate) fn index(shape: &[u64], base: u64) -> Tensor {
        let count = shape.iter().product::<u64>();
        Tensor::f32(shape, (0..count).map(|at| (base + at) as f32))
    }

    /// The values of a single-precision tensor.
    pub(crate) fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "F32");
        self.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }
}

/// Writes a safetensors file: its header's bytes and its data, both made here.
pub(crate) fn write(path: &Path, tensors: &Tensors, metadata: &[(&str, &str)]) {
    let mut order: Vec<(&String, &Tensor)> = tensors.iter().collect();
    order.sort_by_key(|(_, tensor)| std::cmp::Reverse(width(&tensor.dtype)));
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), metadata.iter().copied().collect());
    }
    let mut data = Vec::new();
    for (key, tensor) in order {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry =
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()] });
        header.insert(key.clone(), entry);
    }
    write_raw(path, &Value::Object(header).to_string(), &data);
}

/// Writes a safetensors file of that header text, padded to a multiple of 8.
pub(crate) fn write_raw(path: &Path, header: &str, data: &[u8]) {
    let mut text = header.to_owned();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(data);
    std::fs::write(path, bytes).expect("writable");
}

/// Reads a safetensors file, with its metadata.
pub(crate) fn read_all(path: &Path) -> (Tensors, BTreeMap<String, String>) {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    assert!(length.is_multiple_of(8), "the header is aligned");
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let data = &bytes[8 + length..];
    let mut tensors = Tensors::new();
    let mut metadata = BTreeMap::new();
    let mut end = 0;
    for (key, entry) in header.as_object().expect("a map") {
        if key == "__metadata__" {
            metadata = serde_json::from_value(entry.clone()).expect("strings");
            continue;
        }
        let numbers =
            |name: &str| -> Vec<u64> { serde_json::from_value(entry[name].clone()).expect("numbers") };
        let offsets = numbers("data_offsets");
        let part = data[offsets[0] as usize..offsets[1] as usize].to_vec();
        let dtype = entry["dtype"].as_str().expect("a type");
        assert!((offsets[0] as usize).is_multiple_of(width(dtype)), "{key} is aligned");
        end = end.max(offsets[1] as usize);
        tensors.insert(key.clone(), Tensor::new(dtype, &numbers("shape"), part));
    }
    assert_eq!(end, data.len(), "the data ends where the last tensor ends");
    (tensors, metadata)
}

pub(crate) fn read(path: &Path) -> Tensors {
    read_all(path).0
}

/// Reads all files of an output folder.
pub(crate) fn read_folder(path: &Path) -> Tensors {
    let mut all = Tensors::new();
    for entry in std::fs::read_dir(path).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            all.extend(read(&path));
        }
    }
    all
}

/// A run of the binary that ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Demands that it went well.
    #[track_caller]
    pub(crate) fn ok(self) -> Run {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Demands that it failed, with each of these texts in its messages.
    #[track_caller]
    pub(crate) fn fails(self, texts: &[&str]) -> Run {
        assert_eq!(self.code, 1, "{}\n{}", self.stdout, self.stderr);
        for text in texts {
            assert!(self.stderr.contains(text), "`{text}` is not in:\n{}", self.stderr);
        }
        self
    }
}

/// A temporary folder in which the binary runs.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, text).expect("writable");
        path
    }

    /// Writes a checkpoint.
    pub(crate) fn tensors(&self, name: &str, tensors: &Tensors) -> PathBuf {
        let path = self.join(name);
        write(&path, tensors, &[]);
        path
    }

    /// Runs the binary here.
    pub(crate) fn run<S: AsRef<str>>(&self, args: &[S]) -> Run {
        let args = args.iter().map(AsRef::as_ref);
        let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_qkvconv"))
            .current_dir(self.path())
            .args(args)
            .output()
            .expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let stderr = text(output.stderr);
        assert!(!stderr.contains("panicked"), "{stderr}");
        Run { code: output.status.code().expect("an exit code"), stdout: text(output.stdout), stderr }
    }

    /// Converts in.safetensors to out.safetensors, both here.
    pub(crate) fn convert(&self, from: &str, to: &str, more: &[&str]) -> Run {
        let mut args = vec!["--from", from, "--to", to, "in.safetensors", "out.safetensors"];
        args.extend(more);
        self.run(&args)
    }

    /// Lists the names of what is here.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).expect("a folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("UTF-8")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

/// Makes a mapping file's text of parts that are JSON already.
pub(crate) fn mapping(family: &str, axes: Value, params: Value, layouts: Value) -> String {
    json!({
        "format": 1, "family": family, "about": "a test's", "unmapped": "error",
        "axes": axes, "params": params, "layouts": layouts,
    })
    .to_string()
}

/// Converts with the library.
pub(crate) fn convert(
    mapping: Option<&str>,
    (from, to): (&str, &str),
    source: &Path,
    destination: &Path,
    options: &ConvertOptions,
) -> Result<(), Errors> {
    let source_of = |text: &str| Arc::new(Source { name: "mapping.json".into(), text: text.into() });
    // Without a mapping of its own a test is about single attention modules.
    let name =
        |layout: &str| if mapping.is_none() { format!("attention/{layout}") } else { layout.to_owned() };
    let files = mapping.map(source_of).into_iter().collect::<Vec<_>>();
    let selection = select(&name(from), &name(to), &files)?;
    let conversion = Conversion::prepare(&selection, source, options)?;
    let limits = Limits { threads: 1, ..Limits::default() };
    let publish = PublishOptions { force: true, sync: false };
    let destination = Destination::resolve(destination);
    conversion.run(&destination, publish, Verify::Readback, &limits, &Nobody)?.verdict()
}

/// Nobody watches.
pub(crate) struct Nobody;

impl Progress for Nobody {
    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        false
    }
}

/// Asserts that a checkpoint in any format holds exactly what a safetensors file beside it holds, bit for bit; both are
/// read index by index.
pub(crate) fn assert_holds(source: &Path, options: &OpenOptions, expected: &Path) {
    let found = open(source, options).unwrap_or_else(|errors| panic!("{}: {errors}", source.display()));
    let wanted = read(expected);
    let keys: BTreeSet<&str> = found.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    let wanted_keys: BTreeSet<&str> = wanted.keys().map(String::as_str).collect();
    assert_eq!(keys, wanted_keys, "{}", source.display());
    for tensor in &found.catalog().tensors {
        let wanted = &wanted[&tensor.key];
        let place = format!("{} of {}", tensor.key, source.display());
        assert_eq!((tensor.dtype.name(), &tensor.shape), (wanted.dtype.as_str(), &wanted.shape), "{place}");
        let width = width(&wanted.dtype);
        let count: u64 = tensor.shape.iter().product();
        let mut bytes = vec![0; count as usize * width];
        for (number, element) in bytes.chunks_mut(width).enumerate() {
            let (mut rest, mut at) = (number as u64, 0);
            for (size, stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
                at += rest % size * stride;
                rest /= size;
            }
            let offset = tensor.offset + at * width as u64;
            found
                .read_exact_at(tensor.file, offset, element)
                .unwrap_or_else(|error| panic!("{place}: {error}"));
        }
        assert!(bytes == wanted.bytes, "{place}: other bytes");
    }
}

//! What the tests share: checkpoints written and read by hand, never by the library, in files and in memory; runs of the
//! binary and of the library; places in the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};

use qkvconv::catalog::Catalog;
use qkvconv::convert::{Conversion, ConvertOptions, Verify};
use qkvconv::diag::{Diagnostic, Errors};
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Destination, PublishOptions};
use qkvconv::format::{Format, OpenOptions, Reader, open};
use qkvconv::mapping::select::select;
use qkvconv::progress::Progress;
use qkvconv::read::{ReadAt, read_memory};
use qkvconv::span::Source;
use serde_json::{Value, json};

use crate::stored::elements;

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

/// Makes tensors of these shapes, each with values of its own: those of the first from 0, of the second from 1000, ….
pub(crate) fn numbered(list: &[(&str, &[u64])]) -> Tensors {
    let numbered = list.iter().enumerate();
    numbered.map(|(at, (key, shape))| ((*key).to_owned(), Tensor::index(shape, at as u64 * 1000))).collect()
}

/// Makes tensors of these shapes, for tests in which values do not matter.
pub(crate) fn of_shapes(list: &[(&str, &[u64])]) -> Tensors {
    list.iter().map(|(key, shape)| ((*key).to_owned(), Tensor::index(shape, 1))).collect()
}

/// Returns a list of names and shapes as [`numbered`] and [`of_shapes`] take it.
pub(crate) fn borrowed<K: AsRef<str>>(list: &[(K, Vec<u64>)]) -> Vec<(&str, &[u64])> {
    list.iter().map(|(key, shape)| (key.as_ref(), shape.as_slice())).collect()
}

/// Returns a source of numbers that look random, the same in every run: xorshift64 (Marsaglia 2003).
pub(crate) fn xorshift() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

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

/// Returns what is wrong with a checkpoint: why it does not open, or what in it cannot be read.
pub(crate) fn wrong(opened: &Result<Box<dyn Reader>, Errors>) -> Vec<Diagnostic> {
    match opened {
        Err(errors) => errors.diagnostics().to_vec(),
        Ok(reader) => reader.catalog().unread.iter().map(|(_, reason)| reason.clone()).collect(),
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

/// The repository's folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The checkpoint of `tests/data/digits`, whose attention was trained.
pub(crate) fn digits() -> PathBuf {
    root().join("tests/data/digits/model.safetensors")
}

/// Returns whether a test that demands the text of a file writes it instead.
pub(crate) fn rewrites() -> bool {
    std::env::var("QKVCONV_REWRITE").is_ok_and(|value| value == "1")
}

/// Returns the names of what is in a folder, in order.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// A run of the binary that ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Takes what a run left. Whatever the code is, it did not panic.
    pub(crate) fn of(output: Output, code: Option<i32>) -> Run {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let stderr = text(output.stderr);
        assert!(!stderr.contains("panicked"), "{stderr}");
        Run { code: code.expect("an exit code"), stdout: text(output.stdout), stderr }
    }

    /// Demands that it went well.
    #[track_caller]
    pub(crate) fn ok(self) -> Run {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Demands that it failed, with each of these texts in its messages.
    #[track_caller]
    pub(crate) fn fails(self, texts: &[&str]) -> Run {
        self.exits(1, texts)
    }

    /// Demands that the command line was refused, with each of these texts in its messages.
    #[track_caller]
    pub(crate) fn wrong_usage(self, texts: &[&str]) -> Run {
        self.exits(2, texts)
    }

    #[track_caller]
    fn exits(self, code: i32, texts: &[&str]) -> Run {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
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
        self.run_with(args, &[])
    }

    /// Runs the binary here with more variables in its environment.
    pub(crate) fn run_with<S: AsRef<str>>(&self, args: &[S], variables: &[(&str, &str)]) -> Run {
        let args = args.iter().map(AsRef::as_ref);
        let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_qkvconv"))
            .current_dir(self.path())
            .args(args)
            .envs(variables.iter().copied())
            .output()
            .expect("the binary runs");
        let code = output.status.code();
        Run::of(output, code)
    }

    /// Converts in.safetensors to out.safetensors, both here.
    pub(crate) fn convert(&self, from: &str, to: &str, more: &[&str]) -> Run {
        let mut args = vec!["--from", from, "--to", to, "in.safetensors", "out.safetensors"];
        args.extend(more);
        self.run(&args)
    }

    /// Lists the names of what is here.
    pub(crate) fn names(&self) -> Vec<String> {
        names(self.path())
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
    let limits = Limits::default().threads(1);
    let publish = PublishOptions::default().force(true);
    let destination = Destination::resolve(destination);
    conversion.run(&destination, publish, Verify::Readback, &limits, &Nobody)?.verdict()
}

/// Does the same for every item, two at a time.
pub(crate) fn two_at_a_time<T: Send>(mut items: Vec<T>, run: &(dyn Fn(T) + Sync)) {
    items.reverse();
    let items = Mutex::new(items);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(item) = items.lock().expect("not poisoned").pop() else { return };
                    run(item);
                }
            });
        }
    });
}

/// A checkpoint in memory whose tensors lie as its catalog says.
pub(crate) struct Memory {
    pub(crate) format: Format,
    pub(crate) catalog: Catalog,
    pub(crate) bytes: Vec<u8>,
}

impl ReadAt for Memory {
    fn read_exact_at(&self, _: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        read_memory(&self.bytes, offset, buffer)
    }
}

impl Reader for Memory {
    fn format(&self) -> Format {
        self.format
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn unchanged(&self) -> Result<(), Errors> {
        Ok(())
    }
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
        let bytes = elements(&*found, tensor);
        assert!(bytes == wanted.bytes, "{place}: other bytes");
    }
}

/// Writes the rules of all layouts of a mapping file with whole names instead of under prefixes.
pub(crate) fn with_whole_names(family: &mut Value) {
    fn whole(prefix: &str, tensors: &Value) -> Vec<(String, Value)> {
        let each = |(name, value): (&String, &Value)| match value {
            Value::Object(_) if name.ends_with(['.', '/', ':']) => whole(&format!("{prefix}{name}"), value),
            _ => vec![(format!("{prefix}{name}"), value.clone())],
        };
        tensors.as_object().into_iter().flatten().flat_map(each).collect()
    }
    for entry in family["layouts"].as_object_mut().expect("a map").values_mut() {
        if let Some(tensors) = entry.get_mut("tensors") {
            *tensors = whole("", tensors).into_iter().collect::<serde_json::Map<_, _>>().into();
        }
    }
}

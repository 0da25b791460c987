//! What the fuzz targets do with their inputs. `cargo test` does the same with the seeds (`tests/it/corpus.rs`).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use qkvconv::dtype::Dtype;
use qkvconv::format::{OpenOptions, open};
use qkvconv::notation::{Text, parse_expr};
use qkvconv::span::{Source, Span};

mod bind;
mod inspect;
mod publish;

pub use bind::{bind, catalogue};
pub use inspect::inspect;
pub use publish::{Job, publish};

/// The most bytes that are read of one tensor; more would test the disk, not the reader.
const MOST: u64 = 1 << 20;

/// Lets panics of the crate `hdf5-pure` pass: it panics on some damaged files, and `src/format/hdf5` catches that and
/// makes an error of it. libfuzzer's own hook would end the run before anything is caught. All other panics go to that
/// hook as before, and one of the crate's that nothing catches still ends the run, in libfuzzer's `test_input_wrap`.
pub fn let_caught_panics_pass() {
    let fatal = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let in_hdf5 = panic.location().is_some_and(|place| place.file().contains("/hdf5-pure-"));
        if !in_hdf5 {
            fatal(panic);
        }
    }));
}

/// Opens the bytes as a file of that name, reads what its catalog describes, and inspects it.
pub fn read(name: &str, bytes: &[u8]) {
    with_file(name, bytes, read_path);
}

/// As [`read`] without inspecting it, which takes much longer than the rest.
pub fn read_only(name: &str, bytes: &[u8]) {
    with_file(name, bytes, read_tensors);
}

fn with_file(name: &str, bytes: &[u8], use_it: impl Fn(&Path)) {
    with_folder(|folder| {
        let path = folder.join(name);
        if std::fs::write(&path, bytes).is_ok() {
            use_it(&path);
        }
    });
}

/// Opens a TensorFlow checkpoint: the first two bytes say how long the index is; what follows it is the data.
pub fn tensorflow(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return };
    let at = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (index, data) = rest.split_at(at);
    with_folder(|folder| {
        let written = std::fs::write(folder.join("a.data-00000-of-00001"), data)
            .and_then(|()| std::fs::write(folder.join("a.index"), index));
        if written.is_ok() {
            read_path(&folder.join("a"));
        }
    });
}

/// Opens a folder of torch.distributed.checkpoint: the first two bytes say how long the list is; what follows it is the data.
pub fn dcp(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return };
    let at = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (list, data) = rest.split_at(at);
    with_folder(|folder| {
        let written = std::fs::write(folder.join("__0_0.distcp"), data)
            .and_then(|()| std::fs::write(folder.join(".metadata"), list));
        if written.is_ok() {
            read_path(folder);
        }
    });
}

/// The longest that a mapping file may take: those of 64 KiB take a few milliseconds, also where code is not optimised.
const SLOWEST: Duration = Duration::from_secs(5);

/// Reads a mapping file, in time.
pub fn mapping(text: &str) {
    let source = Arc::new(Source { name: "fuzz.json".to_owned(), text: text.to_owned() });
    let begun = Instant::now();
    let read = qkvconv::mapping::read(&source);
    if let Err(errors) = read {
        assert!(!errors.to_string().is_empty(), "refused without a word");
    }
    let took = begun.elapsed();
    assert!(took < SLOWEST, "{} bytes took {took:?}", text.len());
}

/// Inspects the checkpoint that an input of [`bind`] describes.
pub fn described(input: &[u8]) -> bool {
    let mut found = false;
    with_folder(|folder| found = catalogue(folder, input).is_some_and(|path| inspect(&path)));
    found
}

/// Parses a template, a line break, an expression, a line break, a name that the template may match.
pub fn template(text: &str) {
    let source = Arc::new(Source { name: "fuzz".to_owned(), text: text.to_owned() });
    let mut lines = text.splitn(3, '\n');
    let mut next = || lines.next().unwrap_or_default();
    let span = Span::new(&source, 0, text.len());
    let (template, expression, key) = (next(), next(), next());
    let _ = parse_expr(Text { text: expression, span: &span, verbatim: false });
    let text = Text { text: template, span: &span, verbatim: false };
    if let Ok(template) = qkvconv::mapping::key::Template::parse(text)
        && let Some(captures) = template.matches("", key)
    {
        // What was read is written again, one way or another.
        let _ = template.print(&captures);
    }
}

/// Calls `use_it` with a fresh folder.
fn with_folder(use_it: impl FnOnce(&Path)) {
    if let Ok(folder) = tempfile::tempdir() {
        use_it(folder.path());
    }
}

/// Opens a checkpoint, reads the beginning and the end of each tensor, and inspects it.
pub fn read_path(path: &Path) {
    read_tensors(path);
    inspect(path);
}

fn read_tensors(path: &Path) {
    let options = OpenOptions::default().void_as(vec![Dtype::BF16]);
    let reader = match open(path, &options) {
        Ok(reader) => reader,
        Err(errors) => {
            assert!(!errors.diagnostics().is_empty(), "refused without a word");
            return;
        }
    };
    for tensor in reader.catalog().tensors.iter().take(64) {
        let Some(width) = tensor.dtype.byte_width() else { continue };
        if tensor.elements() == 0 {
            continue;
        }
        let reach: u64 =
            tensor.shape.iter().zip(&tensor.strides).map(|(size, stride)| (size - 1) * stride).sum();
        let length = ((reach + 1) * width).min(MOST);
        let mut buffer = vec![0; length as usize];
        // A damaged file may be shorter than it says only where that shows when its data is decoded.
        let _ = reader.read_exact_at(tensor.file, tensor.offset, &mut buffer);
        let last = tensor.offset + reach * width;
        let _ = reader.read_exact_at(tensor.file, last, &mut buffer[..width as usize]);
    }
}

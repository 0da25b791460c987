//! Where a reader's bytes come from: a file as it lies, pieces of a file in another order, or tensors that are decoded.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use super::io_error;
use crate::diag::{Diagnostic, Errors, FormatCode};
use crate::positioned::{Handle, read_exact_at, write_all_at};

/// Bytes that are read at given places, by any number of threads at once.
pub(crate) trait Store: Send + Sync + std::fmt::Debug {
    /// Fills the buffer from that byte on; [`io::ErrorKind::UnexpectedEof`] where there are too few.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// A file as it was when its header was read.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// What the user or an index named.
    pub(crate) path: PathBuf,
    file: Arc<Handle>,
    /// Where it begins in the file on the disk: not at 0 where it is a part of that file.
    begin: u64,
    /// In bytes.
    pub(crate) size: u64,
    /// The bytes of the file on the disk.
    whole: u64,
    modified: Option<SystemTime>,
}

/// Opens a regular file and returns its size in bytes; anything else could block or never end.
pub(super) fn open_regular(path: &Path) -> Result<(File, std::fs::Metadata), Errors> {
    let fail = |error| io_error(path, "open it", &error);
    if !std::fs::metadata(path).map_err(fail)?.is_file() {
        return Err(Diagnostic::error(FormatCode::NotAFile, "it is not a regular file").file(path).into());
    }
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    Ok((file, metadata))
}

impl OpenFile {
    /// Opens a regular file.
    pub(crate) fn open(path: &Path) -> Result<Arc<OpenFile>, Errors> {
        let (file, metadata): (File, Metadata) = open_regular(path)?;
        let (size, modified) = (metadata.len(), metadata.modified().ok());
        let file = Handle::new(path, file, false).map_err(|error| io_error(path, "open it", &error))?;
        let (path, file) = (path.to_owned(), Arc::new(file));
        Ok(Arc::new(OpenFile { path, file, begin: 0, size, whole: size, modified }))
    }

    /// Returns a range of the file as if it were a file, such as an archive of several in one; `None` where the file ends
    /// before it does.
    pub(crate) fn part(&self, start: u64, length: u64) -> Option<Arc<OpenFile>> {
        start.checked_add(length).filter(|&end| end <= self.size)?;
        let (path, file) = (self.path.clone(), Arc::clone(&self.file));
        let (begin, modified) = (self.begin + start, self.modified);
        Some(Arc::new(OpenFile { path, file, begin, size: length, whole: self.whole, modified }))
    }

    /// Returns a reader of a range of the file with a position of its own.
    pub(crate) fn range(self: &Arc<OpenFile>, start: u64, length: u64) -> RangeReader {
        RangeReader { file: Arc::clone(self), start, length, position: 0 }
    }

    /// Reads a range into memory; the caller has bounded its length by the file's size.
    pub(crate) fn bytes(&self, start: u64, length: u64) -> Result<Vec<u8>, Errors> {
        let end = start.checked_add(length).filter(|&end| end <= self.size);
        let (Some(_), Ok(length)) = (end, usize::try_from(length)) else {
            let message = format!("the file ends at {}, inside {length} bytes at {start}", self.size);
            return Err(Diagnostic::error(FormatCode::Truncated, message).file(&self.path).into());
        };
        let mut bytes = vec![0; length];
        self.read_exact_at(start, &mut bytes).map_err(|error| io_error(&self.path, "read it", &error))?;
        Ok(bytes)
    }

    /// Returns what [`Reader::stamps`](super::Reader::stamps) tells of it: path, size, time of change and, where there is
    /// one, inode.
    pub(crate) fn stamp(&self) -> String {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        #[cfg(unix)]
        let inode = self
            .file
            .file()
            .and_then(|file| file.metadata())
            .ok()
            .map(|data| std::os::unix::fs::MetadataExt::ino(&data));
        #[cfg(not(unix))]
        let inode: Option<u64> = None;
        format!("{path:?} {} {:?} {inode:?}", self.size, self.modified)
    }

    /// Checks that the file is still the one that was opened.
    pub(crate) fn unchanged(&self) -> Result<(), Errors> {
        // The handle, not the path: a file that was replaced is still read whole through its handle.
        let now = self
            .file
            .file()
            .and_then(|file| file.metadata())
            .map_err(|error| io_error(&self.path, "look at it again", &error))?;
        if now.len() == self.whole && now.modified().ok() == self.modified {
            return Ok(());
        }
        let message = format!(
            "the file changed while it was read: it had {} bytes, now {}, or another time of change",
            self.whole,
            now.len()
        );
        let help = "run again when nothing writes to it";
        Err(Diagnostic::error(FormatCode::Changed, message).file(&self.path).help(help).into())
    }
}

impl Store for OpenFile {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|&end| end <= self.size);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        read_exact_at(&*self.file.file()?, self.begin + offset, buffer)
    }
}

/// A range of a file as a stream.
#[derive(Debug)]
pub(crate) struct RangeReader {
    file: Arc<OpenFile>,
    start: u64,
    length: u64,
    position: u64,
}

impl Read for RangeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.length.saturating_sub(self.position);
        let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        self.file.read_exact_at(self.start + self.position, &mut buffer[..count])?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for RangeReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// Pieces of a file that follow each other only here, such as the chunks of an array.
#[derive(Debug)]
pub(crate) struct Pieces {
    file: Arc<OpenFile>,
    /// Where each piece begins here, where it lies in the file, and its length, in order.
    pieces: Vec<(u64, u64, u64)>,
    end: u64,
}

impl Pieces {
    /// Makes a store without pieces.
    pub(crate) fn new(file: &Arc<OpenFile>) -> Pieces {
        Pieces { file: Arc::clone(file), pieces: Vec::new(), end: 0 }
    }

    /// Adds a piece of the file behind those before and returns where it begins here.
    pub(crate) fn push(&mut self, offset: u64, length: u64) -> u64 {
        let begin = self.end;
        if length > 0 {
            self.pieces.push((begin, offset, length));
            self.end += length;
        }
        begin
    }
}

impl Store for Pieces {
    fn read_exact_at(&self, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
        let mut at = self.pieces.partition_point(|(begin, ..)| *begin <= offset).saturating_sub(1);
        while !buffer.is_empty() {
            let Some(&(begin, place, length)) = self.pieces.get(at) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let inside = offset.saturating_sub(begin);
            let Some(left) = length.checked_sub(inside).filter(|left| *left > 0) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let (now, later) = buffer.split_at_mut(count);
            self.file.read_exact_at(place + inside, now)?;
            (buffer, offset, at) = (later, offset + count as u64, at + 1);
        }
        Ok(())
    }
}

/// Writes exactly the bytes of one tensor, as they are when nothing is compressed and the byte order is little-endian.
pub(crate) type Decode = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync>;

/// Tensors that do not lie in their file as they are: each is decoded when it is first read, once, into an unnamed
/// temporary file, so that memory does not grow with them.
pub(crate) struct Spool {
    tensors: Vec<Spooled>,
    end: u64,
    /// The temporary file and where this store begins in it.
    file: Mutex<Option<(Arc<Temporary>, u64)>>,
}

/// The unnamed temporary file of all stores that are in use: hundreds of shards do not need one each.
#[derive(Debug)]
struct Temporary {
    file: File,
    /// How much of it is given away.
    end: Mutex<u64>,
}

static TEMPORARY: Mutex<Weak<Temporary>> = Mutex::new(Weak::new());

/// Returns the temporary file, with so many bytes more, and where these begin.
fn temporary(length: u64) -> io::Result<(Arc<Temporary>, u64)> {
    let mut shared = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    let temporary = match shared.upgrade() {
        Some(temporary) => temporary,
        None => Arc::new(Temporary { file: tempfile::tempfile()?, end: Mutex::new(0) }),
    };
    *shared = Arc::downgrade(&temporary);
    let mut end = temporary.end.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = *end;
    let longer = begin.checked_add(length).ok_or(io::ErrorKind::FileTooLarge)?;
    temporary.file.set_len(longer)?;
    *end = longer;
    drop(end);
    Ok((temporary, begin))
}

/// Says of a failure where the temporary files are, and how to put them elsewhere.
fn in_temporary(error: &io::Error) -> io::Error {
    let folder = std::env::temp_dir();
    let message = format!(
        "cannot keep what is decoded in a temporary file in {}: {error}; set TMPDIR=FOLDER to a folder with room for it",
        folder.display()
    );
    io::Error::new(error.kind(), message)
}

struct Spooled {
    begin: u64,
    length: u64,
    decode: Decode,
    /// Whether it is decoded, or why it cannot be.
    done: Mutex<Option<Result<(), String>>>,
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Spool {
    /// Makes a store without tensors.
    pub(crate) fn new() -> Spool {
        Spool { tensors: Vec::new(), end: 0, file: Mutex::new(None) }
    }

    /// Adds a tensor of that many bytes and returns where it begins; more or fewer bytes are an error when it is read.
    pub(crate) fn push(&mut self, length: u64, decode: Decode) -> u64 {
        let begin = self.end;
        self.tensors.push(Spooled { begin, length, decode, done: Mutex::new(None) });
        self.end += length;
        begin
    }

    /// Returns whether there is any tensor.
    pub(crate) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    fn file(&self) -> io::Result<(Arc<Temporary>, u64)> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = Some(temporary(self.end).map_err(|error| in_temporary(&error))?);
        }
        file.clone().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Store for Spool {
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        if end > self.end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (file, base) = self.file()?;
        let first = self.tensors.partition_point(|tensor| tensor.begin + tensor.length <= offset);
        for tensor in self.tensors[first..].iter().take_while(|tensor| tensor.begin < end) {
            let mut done = tensor.done.lock().unwrap_or_else(PoisonError::into_inner);
            let result =
                done.get_or_insert_with(|| decode(tensor, &file, base).map_err(|error| error.to_string()));
            result.clone().map_err(io::Error::other)?;
        }
        read_exact_at(&file.file, base + offset, buffer)
    }
}

fn decode(tensor: &Spooled, file: &Arc<Temporary>, base: u64) -> io::Result<()> {
    let begin = base + tensor.begin;
    let slot = Slot { file: Arc::clone(file), position: begin, end: begin + tensor.length };
    let mut writer = io::BufWriter::with_capacity(1 << 16, slot);
    (tensor.decode)(&mut writer)?;
    let slot = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    if slot.position == slot.end {
        return Ok(());
    }
    let message = format!("only {} of {} bytes came out", slot.position - begin, tensor.length);
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// The place of one tensor in the temporary file.
struct Slot {
    file: Arc<Temporary>,
    position: u64,
    end: u64,
}

impl Write for Slot {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.end - self.position {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes came out than its shape has"));
        }
        write_all_at(&self.file.file, self.position, bytes).map_err(|error| in_temporary(&error))?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies elements of `width` bytes with their bytes reversed: big-endian to little-endian.
pub(crate) fn copy_swapped(from: &mut dyn Read, to: &mut dyn Write, width: usize) -> io::Result<()> {
    let mut buffer = vec![0; width.max(1) * 8192];
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match from.read(&mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        if filled == 0 {
            return Ok(());
        }
        buffer[..filled].chunks_mut(width.max(1)).for_each(<[u8]>::reverse);
        to.write_all(&buffer[..filled])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(bytes: &[u8]) -> (tempfile::TempDir, Arc<OpenFile>) {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        std::fs::write(&path, bytes).expect("file");
        let file = OpenFile::open(&path).expect("opens");
        (folder, file)
    }

    #[test]
    fn pieces_are_read_as_one() {
        let (_folder, file) = opened(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let mut pieces = Pieces::new(&file);
        assert_eq!((pieces.push(7, 3), pieces.push(5, 0), pieces.push(2, 2)), (0, 3, 3));
        let mut buffer = [0; 5];
        pieces.read_exact_at(0, &mut buffer).expect("reads");
        assert_eq!(buffer, [7, 8, 9, 2, 3]);
        pieces.read_exact_at(2, &mut buffer[..2]).expect("reads");
        assert_eq!(buffer[..2], [9, 2]);
        for beyond in [1, 5, 99] {
            let short = pieces.read_exact_at(beyond, &mut buffer);
            assert_eq!(short.map_err(|error| error.kind()), Err(io::ErrorKind::UnexpectedEof));
        }
    }

    #[test]
    fn tensors_are_decoded_once_and_when_they_are_read() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let count = Arc::new(AtomicUsize::new(0));
        let mut spool = Spool::new();
        for number in 0..3_u8 {
            let count = Arc::clone(&count);
            let begin = spool.push(
                4,
                Box::new(move |to| {
                    count.fetch_add(1, Ordering::Relaxed);
                    to.write_all(&[number; 4])
                }),
            );
            assert_eq!(begin, 4 * u64::from(number));
        }
        let mut buffer = [9; 4];
        spool.read_exact_at(6, &mut buffer).expect("reads");
        spool.read_exact_at(6, &mut buffer).expect("reads");
        assert_eq!((buffer, count.load(Ordering::Relaxed)), ([1, 1, 2, 2], 2));
        let short = spool.read_exact_at(9, &mut buffer);
        assert_eq!(short.map_err(|error| error.kind()), Err(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn a_tensor_that_decodes_to_another_size_is_an_error() {
        for (length, said) in [(3, "more bytes"), (5, "only 4 of 5")] {
            let mut spool = Spool::new();
            spool.push(length, Box::new(|to| to.write_all(&[1; 4])));
            let error = spool.read_exact_at(0, &mut [0]).expect_err("fails");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn bytes_are_swapped_inside_each_element() {
        let bytes: Vec<u8> = (0..=255).cycle().take(8 * 8192 + 16).collect();
        let mut swapped = Vec::new();
        copy_swapped(&mut &bytes[..], &mut swapped, 8).expect("copies");
        assert_eq!((swapped.len(), &swapped[..9]), (bytes.len(), &[7, 6, 5, 4, 3, 2, 1, 0, 15][..]));
    }
}

//! A checkpoint's index turned into tensors: what it says is checked against itself and against the data files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message;

use super::DAMAGED;
use super::checked::{Checked, Range};
use super::interleave::Interleave;
use super::proto::{self, Held};
use super::slices::{self, Grid};
use super::table::{self, bad_index};
use crate::catalog::{TensorMeta, row_major};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::fold::fold_keys;
use crate::format::part::Part;
use crate::format::root::{Content, Descent, Leaf, choose};
use crate::format::shards::check_link;
use crate::format::store::{OpenFile, Spool, Store};
use crate::format::{Format, OpenOptions, foreign, shown};

/// The most dimensions of a tensor (tensorflow/tensorflow, `tensorflow/core/framework/tensor_shape.h`).
const MOST_DIMS: usize = 254;

/// A tensor of the index whose entry is sound by itself.
#[derive(Debug)]
struct Tensor {
    key: String,
    dtype: Dtype,
    shape: Vec<u64>,
    grid: Grid,
    /// Where its cells lie, row-major; there is one of a tensor that is not cut.
    cells: Vec<Place>,
}

/// A range of a data file.
#[derive(Clone, Copy, Debug)]
struct Place {
    shard: i32,
    offset: u64,
    length: u64,
    crc: u32,
}

/// What reading an index's entries needs at hand.
struct Index<'a> {
    path: &'a Path,
    entries: &'a [table::Entry],
    shards: i32,
}

/// Reads a checkpoint's index and opens the data files that it needs; what is wrong goes to the collector.
///
/// # Errors
/// Returns what makes the index as a whole unreadable, or `--root` meaningless.
pub(in crate::format) fn read(
    file: &Arc<OpenFile>,
    options: &OpenOptions,
    out: &mut Collector,
) -> Result<Part, Errors> {
    let path = file.path.as_path();
    let entries = table::entries(file)?;
    let header = header(&entries, path)?;
    let index = Index { path, entries: &entries, shards: header.shards };
    let leaves = leaves(&index, out);
    let chosen = choose(path, leaves, "/", Descent::Asked, options, out)?;
    let mut tensors: Vec<Tensor> = Vec::with_capacity(chosen.len());
    let mut part = Part { stores: Vec::new(), ..Part::of(Format::TensorFlow, file) };
    for (key, (name, entry)) in chosen {
        match index.tensor(key.clone(), &name, &entry) {
            Ok(tensor) => tensors.push(tensor),
            Err(diagnostic) => part.refuse(key, diagnostic.tensor(name), out),
        }
    }
    check_total(&tensors, path, out);
    let files = open_data(&index, &tensors, options, out);
    check_places(&tensors, &files, out);
    if !out.has_errors() {
        place(&mut part, tensors, &files, header.endianness == 1);
    }
    Ok(part)
}

/// Returns the first entry, which says of what kind the checkpoint is.
fn header(entries: &[table::Entry], path: &Path) -> Result<proto::Header, Errors> {
    let header = match entries.first() {
        // Version 1 has a message in the first field, where the index has a number.
        Some((key, value)) if key.is_empty() && value.first() == Some(&0x0a) => {
            return Err(foreign::TENSORFLOW_V1.error(path).into());
        }
        Some((key, value)) if key.is_empty() => proto::Header::decode(value.as_slice()),
        _ => {
            let message =
                "it is a table, but not the index of a checkpoint: nothing stands under the empty key";
            let diagnostic = Diagnostic::error(FormatCode::BadIndex, message).file(path);
            return Err(diagnostic.help("name the index of a TensorFlow checkpoint, or its prefix").into());
        }
    };
    let header = header.map_err(|error| bad_index(path, format!("its header is no message: {error}")))?;
    let wanted = header.version.as_ref().map_or(0, |version| version.min_consumer);
    if wanted > 1 {
        let message =
            format!("the checkpoint is for readers of version {wanted} and later, and this is version 1");
        return Err(Diagnostic::error(FormatCode::BadIndex, message).file(path).into());
    }
    if !matches!(header.endianness, 0 | 1) {
        let message = format!("its order of bytes is {}, neither 0 nor 1", header.endianness);
        return Err(bad_index(path, message).into());
    }
    Ok(header)
}

/// Returns the tensors that hold numbers, each with its name, and what else there is.
fn leaves(index: &Index, out: &mut Collector) -> Vec<Leaf<(String, proto::Entry)>> {
    let mut leaves = Vec::new();
    for (key, value) in index.entries.iter().filter(|(key, _)| key.first().is_some_and(|first| *first != 0)) {
        let Ok(name) = str::from_utf8(key) else {
            let name = String::from_utf8_lossy(key);
            out.push(bad_index(index.path, "a name is not UTF-8").tensor(name));
            continue;
        };
        let entry = match proto::Entry::decode(value.as_slice()) {
            Ok(entry) => entry,
            Err(error) => {
                out.push(bad_index(index.path, format!("an entry is no message: {error}")).tensor(name));
                continue;
            }
        };
        let content = match proto::held(entry.dtype) {
            // Text and handles are no weights.
            Some(Held::Passed(what)) => Content::Other(what.to_owned()),
            _ => Content::Tensor((name.to_owned(), entry)),
        };
        leaves.push(Leaf { path: name.split('/').map(str::to_owned).collect(), content });
    }
    leaves
}

/// Returns the type of an entry's elements.
fn dtype(entry: &proto::Entry) -> Result<Dtype, Diagnostic> {
    let message = match proto::held(entry.dtype) {
        Some(Held::As(dtype)) => return Ok(dtype),
        Some(Held::Not(name) | Held::Passed(name)) => format!("the type {name} cannot be held"),
        None => format!("the type of the number {} is not known", entry.dtype),
    };
    let help = "save the checkpoint without this tensor, or cast it to another type before";
    Err(Diagnostic::error(FormatCode::UnknownDtype, message).help(help))
}

/// Says that an entry contradicts itself.
fn damaged(code: FormatCode, message: String) -> Diagnostic {
    Diagnostic::error(code, message).help(DAMAGED)
}

impl Index<'_> {
    /// Checks an entry; `name` is what the index calls it, `key` what it will be called.
    fn tensor(&self, key: String, name: &str, entry: &proto::Entry) -> Result<Tensor, Diagnostic> {
        let dtype = dtype(entry)?;
        let shape = shape(entry, dtype)?;
        if entry.slices.is_empty() {
            let place = self.place(entry, &shape, dtype)?;
            return Ok(Tensor { key, dtype, grid: Grid::whole(&shape), shape, cells: vec![place] });
        }
        let fail = |message: String| damaged(FormatCode::BadEntry, message);
        let mut ranges = Vec::with_capacity(entry.slices.len());
        let mut places = Vec::with_capacity(entry.slices.len());
        for slice in &entry.slices {
            let range = range(slice, &shape).map_err(fail)?;
            let place = self.slice(&slices::key(name, slice), &range, entry, dtype);
            places.push(place.map_err(|mut diagnostic| {
                diagnostic.message = format!("the slice {range:?} of it: {}", diagnostic.message);
                diagnostic
            })?);
            ranges.push(range);
        }
        let (grid, order) = Grid::of(&shape, &ranges).map_err(fail)?;
        let cells = order.into_iter().filter_map(|number| places.get(number).copied()).collect();
        Ok(Tensor { key, dtype, shape, grid, cells })
    }

    /// Returns where a slice lies.
    fn slice(
        &self,
        key: &[u8],
        range: &[(u64, u64)],
        whole: &proto::Entry,
        dtype: Dtype,
    ) -> Result<Place, Diagnostic> {
        let fail = |message: String| Err(damaged(FormatCode::BadEntry, message));
        let found = self.entries.binary_search_by(|(other, _)| other.as_slice().cmp(key));
        let Some((_, value)) = found.ok().and_then(|at| self.entries.get(at)) else {
            return fail("it has no entry".to_owned());
        };
        let entry = match proto::Entry::decode(value.as_slice()) {
            Ok(entry) => entry,
            Err(error) => return fail(format!("its entry is no message: {error}")),
        };
        let lengths: Vec<u64> = range.iter().map(|(_, length)| *length).collect();
        if entry.dtype != whole.dtype || shape(&entry, dtype)? != lengths || !entry.slices.is_empty() {
            return fail("its entry has another type or shape".to_owned());
        }
        self.place(&entry, &lengths, dtype)
    }

    /// Returns where an entry's bytes lie, as far as it can be checked without the data file.
    fn place(&self, entry: &proto::Entry, shape: &[u64], dtype: Dtype) -> Result<Place, Diagnostic> {
        let needed = shape.iter().product::<u64>().saturating_mul(dtype.bits() / 8);
        let (Ok(offset), Ok(length)) = (u64::try_from(entry.offset), u64::try_from(entry.size)) else {
            let message = format!("it has {} bytes at {}", entry.size, entry.offset);
            return Err(damaged(FormatCode::BadOffsets, message));
        };
        if length != needed {
            let message = format!("it has {length} bytes, but its shape and type need {needed}");
            return Err(damaged(FormatCode::SizeMismatch, message).found(format!("{dtype}, {shape:?}")));
        }
        if !(0..self.shards).contains(&entry.shard) {
            let message = format!("it is in the data file {} of {}", entry.shard, self.shards);
            return Err(damaged(FormatCode::BadEntry, message));
        }
        Ok(Place { shard: entry.shard, offset, length, crc: entry.crc })
    }
}

/// Returns the shape of an entry, whose bytes can be counted.
fn shape(entry: &proto::Entry, dtype: Dtype) -> Result<Vec<u64>, Diagnostic> {
    let fail = |code, message: String| Err(damaged(code, message));
    let proto = entry.shape.clone().unwrap_or_default();
    if proto.unknown_rank || proto.dims.iter().any(|dim| dim.size < 0) {
        return fail(FormatCode::BadShape, "its shape is not known".to_owned());
    }
    if proto.dims.len() > MOST_DIMS {
        let message = format!("it has {} dimensions, over the limit of {MOST_DIMS}", proto.dims.len());
        return fail(FormatCode::BadShape, message);
    }
    let shape: Vec<u64> = proto.dims.iter().map(|dim| dim.size.unsigned_abs()).collect();
    // Strides are counted as if no dimension were empty.
    let elements = shape.iter().try_fold(dtype.bits(), |bits, size| bits.checked_mul((*size).max(1)));
    if elements.is_none() {
        return fail(FormatCode::ShapeOverflow, format!("the size of {shape:?} overflows 64 bits"));
    }
    Ok(shape)
}

/// Returns the start and the length of a slice along each dimension.
fn range(slice: &proto::Slice, shape: &[u64]) -> Result<Vec<(u64, u64)>, String> {
    if slice.extents.len() != shape.len() {
        return Err(format!("a slice has {} dimensions of {}", slice.extents.len(), shape.len()));
    }
    let along = slice.extents.iter().zip(shape).map(|(extent, &size)| {
        let Some(length) = extent.length else { return Ok((0, size)) };
        match (u64::try_from(extent.start), u64::try_from(length)) {
            (Ok(start), Ok(length)) if start.checked_add(length).is_some_and(|end| end <= size) => {
                Ok((start, length))
            }
            _ => Err(format!("a slice begins at {} and is {length} long, of {size}", extent.start)),
        }
    });
    along.collect()
}

/// Checks that the bytes of all tensors can be counted: entries may claim the same bytes.
fn check_total(tensors: &[Tensor], path: &Path, out: &mut Collector) {
    let mut lengths = tensors.iter().flat_map(|tensor| &tensor.cells).map(|place| place.length);
    let total = lengths.try_fold(0_u64, u64::checked_add);
    if total.is_none_or(|total| i64::try_from(total).is_err()) {
        out.push(bad_index(path, "the sizes of all tensors overflow 63 bits"));
    }
}

/// Opens the data files that hold any of the tensors, by their numbers.
fn open_data(
    index: &Index,
    tensors: &[Tensor],
    options: &OpenOptions,
    out: &mut Collector,
) -> BTreeMap<i32, Arc<OpenFile>> {
    let mut paths: BTreeMap<i32, PathBuf> = BTreeMap::new();
    for place in tensors.iter().flat_map(|tensor| &tensor.cells) {
        paths.entry(place.shard).or_insert_with(|| {
            index.path.with_extension(format!("data-{:05}-of-{:05}", place.shard, index.shards))
        });
    }
    if index.path.extension().is_none_or(|extension| extension != "index") {
        let message =
            "the name of the index does not end in `.index`, so the data files' names do not follow from it";
        let diagnostic = Diagnostic::error(FormatCode::MissingShard, message).file(index.path);
        out.push(diagnostic.help("give the index and the data files the names that they were saved under"));
        return BTreeMap::new();
    }
    let folder = index.path.parent().unwrap_or(Path::new(""));
    let (mut files, mut missing) = (BTreeMap::new(), Vec::new());
    let count = paths.len();
    for (shard, path) in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !path.exists() {
            missing.push(name);
            continue;
        }
        match check_link(folder, &path, &name, options).and_then(|()| OpenFile::open(&path)) {
            Ok(file) => {
                files.insert(shard, file);
            }
            Err(errors) => out.extend(errors),
        }
    }
    if !missing.is_empty() {
        let list = fold_keys(missing.iter().map(String::as_str))
            .into_iter()
            .map(|name| format!("`{}`", shown(&name)));
        let message = format!(
            "{} of the {count} data files that the index names do not exist: {}",
            missing.len(),
            list.collect::<Vec<_>>().join(", ")
        );
        let diagnostic = Diagnostic::error(FormatCode::MissingShard, message).file(index.path);
        out.push(diagnostic.help("put the data files beside the index; finish the download"));
    }
    files
}

/// Checks that every range lies in its data file; those in files that are not there have been reported.
fn check_places(tensors: &[Tensor], files: &BTreeMap<i32, Arc<OpenFile>>, out: &mut Collector) {
    for tensor in tensors {
        for place in &tensor.cells {
            let Some(file) = files.get(&place.shard) else { continue };
            if place.offset.checked_add(place.length).is_none_or(|end| end > file.size) {
                let message = "the data file is cut short: the tensor ends behind its end";
                let found = format!("{} bytes at {} of {}", place.length, place.offset, file.size);
                let diagnostic = Diagnostic::error(FormatCode::Truncated, message).file(&file.path);
                out.push(diagnostic.tensor(&tensor.key).found(found).help(DAMAGED));
            }
        }
    }
}

/// Gives each tensor its place in a store: one store for each data file, one for tensors whose slices follow each
/// other, and one for those that must be put together.
fn place(part: &mut Part, mut tensors: Vec<Tensor>, files: &BTreeMap<i32, Arc<OpenFile>>, is_big: bool) {
    tensors.sort_by_key(|tensor| tensor.cells.first().map(|place| (place.shard, place.offset)));
    let shards: Vec<i32> = files.keys().copied().collect();
    let mut whole: Vec<Checked> = files.iter().map(|_| Checked::default()).collect();
    let (mut joined, mut spool) = (Checked::default(), Spool::new());
    let (at_joined, at_spool) = (whole.len(), whole.len() + 1);
    for tensor in tensors {
        let Tensor { key, dtype, shape, grid, cells } = tensor;
        let name: Arc<str> = key.as_str().into();
        let push = |to: &mut Checked, place: &Place| {
            let file = files.get(&place.shard)?;
            let (offset, length, crc) = (place.offset, place.length, place.crc);
            Some(to.push(Range { file: Arc::clone(file), offset, length, crc, key: Arc::clone(&name) }))
        };
        let width = dtype.bits() / 8;
        // The two numbers of a complex one are swapped each.
        let swapped = if !is_big {
            1
        } else if dtype == Dtype::C64 {
            4
        } else {
            width as usize
        };
        let has_bytes = cells.iter().any(|place| place.length > 0);
        let (file, offset) = if has_bytes && (swapped > 1 || !grid.is_contiguous()) {
            let mut bytes = Checked::default();
            let cells = cells.iter().filter_map(|place| Some((push(&mut bytes, place)?, place.length)));
            let cells: Vec<(u64, u64)> = cells.map(|(begin, length)| (begin, begin + length)).collect();
            let length = cells.last().map_or(0, |(_, end)| *end);
            let tensor = Interleave { grid, bytes, cells, width, swapped };
            (at_spool, spool.push(length, Box::new(move |to| tensor.write(to))))
        } else if let Some(cell) = cells.first()
            && (cells.len() == 1 || !has_bytes)
        {
            let shard = shards.binary_search(&cell.shard).unwrap_or_default();
            (shard, whole.get_mut(shard).and_then(|store| push(store, cell)).unwrap_or_default())
        } else {
            let begins: Vec<u64> = cells.iter().filter_map(|place| push(&mut joined, place)).collect();
            (at_joined, begins.first().copied().unwrap_or_default())
        };
        part.tensors.push(TensorMeta {
            strides: row_major(&shape),
            key,
            dtype,
            shape,
            file,
            offset,
            extents: Vec::new(),
        });
    }
    part.files.extend(files.values().cloned());
    let stores = whole.into_iter().map(|store| Arc::new(store) as Arc<dyn Store>);
    part.stores = stores.enumerate().map(|(shard, store)| (shard + 1, store)).collect();
    // These two may read several data files, so that they go by the index. The second has its place behind the first.
    if !joined.is_empty() || !spool.is_empty() {
        part.stores.push((0, Arc::new(joined)));
    }
    if !spool.is_empty() {
        part.stores.push((0, Arc::new(spool)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bundle, shape as shape_of, slice};
    use super::*;
    use crate::format::Reader;
    use crate::format::testing::{codes, open_plain, put, text};

    fn read_all(reader: &dyn Reader, key: &str) -> std::io::Result<Vec<u8>> {
        let tensor = &reader.catalog().tensors[reader.catalog().find(key).expect("is there")];
        let mut bytes = vec![0; tensor.bytes() as usize];
        reader.read_exact_at(tensor.file, tensor.offset, &mut bytes).map(|()| bytes)
    }

    /// Returns a bundle of a tensor in slices, of a width of one byte.
    fn sliced(dims: &[i64], slices: &[&[(i64, i64)]], dtype: i32) -> Bundle {
        let mut bundle = Bundle::new(2);
        let mut whole = proto::Entry { dtype, shape: Some(shape_of(dims)), ..Default::default() };
        for (number, extents) in slices.iter().enumerate() {
            let lengths: Vec<i64> = extents
                .iter()
                .zip(dims)
                .map(|(&(_, length), &size)| if length == -1 { size } else { length })
                .collect();
            let bytes = vec![number as u8; lengths.iter().product::<i64>().max(0) as usize];
            let entry = bundle.place(number % 2, 4, &lengths, &bytes);
            bundle.add(slices::key("w", &slice(extents)), &entry);
            whole.slices.push(slice(extents));
        }
        bundle.add("w", &whole);
        bundle
    }

    #[test]
    fn tensors_of_several_files_are_read_where_they_lie() {
        let mut bundle = Bundle::new(2);
        bundle.bytes(1, "b", &[4, 5, 6]);
        bundle.bytes(0, "c", &[7]);
        bundle.bytes(1, "a", &[8, 9]);
        bundle.bytes(1, "none", &[]);
        // The bytes of `b` under another name.
        let mut again = bundle.place(1, 4, &[3], &[4, 5, 6]);
        again.offset = 0;
        bundle.add("tied", &again);
        let path = bundle.write();
        let reader = open_plain(&path).expect("opens");
        let catalog = reader.catalog();
        let keys: Vec<&str> = catalog.tensors.iter().map(|tensor| tensor.key.as_str()).collect();
        assert_eq!((keys, catalog.files.len()), (vec!["c", "b", "tied", "a", "none"], 2));
        for (key, bytes) in
            [("a", &[8, 9][..]), ("b", &[4, 5, 6]), ("c", &[7]), ("tied", &[4, 5, 6]), ("none", &[])]
        {
            assert_eq!(read_all(&*reader, key).expect("reads"), bytes, "{key}");
        }
        assert!(catalog.files[0].to_string_lossy().ends_with("m.data-00000-of-00002"));
        assert!(reader.unchanged().is_ok());
        let file = std::fs::File::options().append(true).open(&path).expect("opens");
        file.set_len(5000).expect("grows");
        assert!(reader.unchanged().is_err(), "the index counts too");
    }

    #[test]
    fn damaged_data_is_found_when_it_is_read() {
        let mut bundle = Bundle::new(1);
        bundle.bytes(0, "a", &[1, 2, 3]);
        bundle.bytes(0, "b", &[4, 5, 6]);
        bundle.data[0][4] = 9;
        let reader = open_plain(&bundle.write()).expect("opens: only headers are read");
        assert_eq!(read_all(&*reader, "a").expect("is sound"), [1, 2, 3]);
        let error = read_all(&*reader, "b").expect_err("is damaged");
        assert!(error.to_string().contains("the data of `b` is damaged"), "{error}");

        let mut bundle = sliced(&[2, 3], &[&[(0, -1), (0, 1)], &[(0, -1), (1, 2)]], 4);
        bundle.data[1][2] = 9;
        let reader = open_plain(&bundle.write()).expect("opens");
        let error = read_all(&*reader, "w").expect_err("is damaged");
        assert!(error.to_string().contains("the data of `w` is damaged"), "{error}");
    }

    #[test]
    fn slices_are_joined() {
        for (dims, slices, bytes) in [
            (&[3, 2][..], &[&[(1, 2), (0, -1)][..], &[(0, 1), (0, -1)]][..], &[1, 1, 0, 0, 0, 0][..]),
            (&[2, 3], &[&[(0, -1), (0, 1)], &[(0, -1), (1, 2)]], &[0, 1, 1, 0, 1, 1]),
            (&[2, 3], &[&[(0, 2), (0, 3)]], &[0; 6]),
            (&[], &[&[]], &[0]),
            (&[0, 3], &[&[(0, -1), (0, 1)], &[(0, -1), (1, 2)]], &[]),
            (
                &[2, 1, 2],
                &[
                    &[(0, 1), (0, -1), (0, 1)],
                    &[(0, 1), (0, -1), (1, 1)],
                    &[(1, 1), (0, 1), (0, 1)],
                    &[(1, 1), (0, -1), (1, 1)],
                ],
                &[0, 1, 2, 3],
            ),
        ] {
            let reader = open_plain(&sliced(dims, slices, 4).write()).expect("opens");
            assert_eq!(read_all(&*reader, "w").expect("reads"), bytes, "{dims:?}");
            assert_eq!(reader.catalog().tensors.len(), 1);
        }
    }

    #[test]
    fn slices_that_do_not_fit_are_refused() {
        for (dims, slices, said) in [
            (&[3, 2][..], &[&[(0, 2), (0, -1)][..], &[(1, 2), (0, -1)]][..], "overlap along dimension 0"),
            (&[3, 2], &[&[(0, 1), (0, -1)], &[(2, 1), (0, -1)]], "gap along dimension 0"),
            (&[3, 2], &[&[(0, 1), (0, -1)]], "end at 1 of 3"),
            (&[3, 2], &[&[(0, 4), (0, -1)]], "begins at 0 and is 4 long, of 3"),
            (&[3, 2], &[&[(-1, 4), (0, -1)]], "begins at -1"),
            (&[3, 2], &[&[(i64::MAX, 1), (0, -1)]], "is 1 long, of 3"),
            (&[3, 2], &[&[(0, -2), (0, -1)]], "is -2 long"),
            (&[3], &[&[(0, -1), (0, 1)]], "2 dimensions of 1"),
        ] {
            let result = open_plain(&sliced(dims, slices, 4).write());
            assert_eq!(codes(&result), ["format/bad-entry"]);
            assert!(text(&result).contains(said), "{}", text(&result));
        }
        let halves: &[&[(i64, i64)]] = &[&[(0, 1)], &[(1, 1)]];
        let result = open_plain(&sliced(&[2], halves, 6).write());
        assert!(
            text(&result).contains("the slice [(0, 1)] of it: its entry has another type"),
            "{}",
            text(&result)
        );
        let mut bundle = sliced(&[2], halves, 4);
        bundle.entries.remove(1);
        assert!(text(&open_plain(&bundle.write())).contains("the slice [(1, 1)] of it: it has no entry"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_tensor() {
        type Change<'a> = &'a dyn Fn(&mut proto::Entry);
        let cases: &[(&str, &str, Change)] = &[
            ("format/bad-entry", "the data file 1 of 1", &|entry| entry.shard = 1),
            ("format/bad-entry", "the data file -1 of 1", &|entry| entry.shard = -1),
            ("format/bad-offsets", "at -1", &|entry| entry.offset = -1),
            ("format/bad-offsets", "-3 bytes", &|entry| entry.size = -3),
            ("format/truncated", "3 bytes at 1 of 3", &|entry| entry.offset = 1),
            ("format/truncated", "of 3", &|entry| entry.offset = i64::MAX),
            ("format/size-mismatch", "need 12", &|entry| entry.dtype = 1),
            ("format/size-mismatch", "need 1", &|entry| entry.shape = None),
            ("format/shape-overflow", "overflows", &|entry| {
                entry.shape = Some(shape_of(&[1 << 40, 1 << 40]))
            }),
            ("format/shape-overflow", "overflows", &|entry| {
                entry.shape = Some(shape_of(&[1 << 40, 1 << 40, 0]))
            }),
            ("format/bad-shape", "not known", &|entry| entry.shape = Some(shape_of(&[-1]))),
            ("format/bad-shape", "not known", &|entry| {
                entry.shape = Some(proto::Shape { dims: Vec::new(), unknown_rank: true });
            }),
            ("format/bad-shape", "255 dimensions", &|entry| entry.shape = Some(shape_of(&[1; 255]))),
            ("format/unknown-dtype", "qint8 cannot be held", &|entry| entry.dtype = 11),
            ("format/unknown-dtype", "complex128 cannot be held", &|entry| entry.dtype = 18),
            ("format/unknown-dtype", "number 0 is", &|entry| entry.dtype = 0),
            ("format/unknown-dtype", "number 101 is", &|entry| entry.dtype = 101),
        ];
        for (code, said, change) in cases {
            let mut bundle = Bundle::new(1);
            let mut entry = bundle.place(0, 4, &[3], &[1, 2, 3]);
            change(&mut entry);
            bundle.add("layer/kernel", &entry);
            let result = open_plain(&bundle.write());
            let text = text(&result);
            assert_eq!(codes(&result), [*code], "{text}");
            assert!(text.contains(said) && text.contains("tensor: layer/kernel"), "{said}: {text}");
        }
    }

    #[test]
    fn an_index_that_is_none_says_so() {
        type Change<'a> = &'a dyn Fn(&mut Bundle);
        let cases: &[(&str, Change)] = &[
            ("readers of version 2", &|bundle| {
                bundle.header.version = Some(proto::Version { producer: 2, min_consumer: 2 })
            }),
            ("order of bytes is 7", &|bundle| bundle.header.endianness = 7),
            ("not UTF-8", &|bundle| bundle.entries.push((b"a\xff".to_vec(), Vec::new()))),
            ("no message", &|bundle| bundle.entries.push((b"a".to_vec(), b"\xff".to_vec()))),
        ];
        for (said, change) in cases {
            let mut bundle = Bundle::new(1);
            change(&mut bundle);
            let result = open_plain(&bundle.write());
            assert_eq!(codes(&result), ["format/bad-index"]);
            assert!(text(&result).contains(said), "{}", text(&result));
        }
        let folder = tempfile::tempdir().expect("folder");
        for entries in [&[][..], &[(b"key".to_vec(), b"value".to_vec())]] {
            let result =
                open_plain(&put(folder.path(), "a.ldb", &super::super::testing::table(entries, 1, false)));
            assert!(text(&result).contains("not the index of a checkpoint"), "{}", text(&result));
        }
        let mut bundle = Bundle::new(1);
        bundle.bytes(0, "a", &[1]);
        let renamed = bundle.folder.path().join("m.idx");
        std::fs::rename(bundle.write(), &renamed).expect("renames");
        assert!(text(&open_plain(&renamed)).contains("does not end in `.index`"));
    }

    #[test]
    fn absurd_sizes_are_not_added_up() {
        let mut bundle = Bundle::new(1);
        for key in ["a", "b", "c"] {
            let mut entry = bundle.place(0, 4, &[i64::MAX / 8], &[]);
            entry.size = i64::MAX / 8;
            bundle.add(key, &entry);
        }
        let result = open_plain(&bundle.write());
        assert_eq!(codes(&result), ["format/truncated"]);
        let mut bundle = Bundle::new(1);
        for key in 0..9 {
            let mut entry = bundle.place(0, 4, &[i64::MAX / 8], &[]);
            entry.size = i64::MAX / 8;
            bundle.add(format!("{key}"), &entry);
        }
        assert_eq!(codes(&open_plain(&bundle.write())), ["format/bad-index", "format/truncated"]);
    }

    #[test]
    fn missing_data_files_are_all_named() {
        let mut bundle = Bundle::new(5);
        for shard in [0, 1, 3, 4] {
            bundle.bytes(shard, &format!("w{shard}"), &[1]);
        }
        let path = bundle.write();
        // What holds no tensor may be missing.
        for shard in [1, 2, 4] {
            std::fs::remove_file(path.with_extension(format!("data-{shard:05}-of-00005"))).expect("removes");
        }
        let result = open_plain(&path);
        assert_eq!(codes(&result), ["format/missing-shard"]);
        let text = text(&result);
        assert!(text.contains("2 of the 4 data files") && !text.contains("00000-of"), "{text}");
        assert!(text.contains("`m.data-{00001,00004}-of-00005 (2)`"), "{text}");
        // However many there are said to be.
        let mut bundle = Bundle::new(1);
        bundle.bytes(0, "a", &[1]);
        bundle.header.shards = i32::MAX;
        assert!(open_plain(&bundle.write()).is_ok());
    }

    #[test]
    fn text_is_passed_over_and_reported() {
        let mut bundle = Bundle::new(1);
        bundle.bytes(0, "a", &[1]);
        let entry = bundle.place(0, 7, &[], b"\x05words");
        bundle.add("_CHECKPOINTABLE_OBJECT_GRAPH", &entry);
        let reader = open_plain(&bundle.write()).expect("opens");
        let warnings = &reader.catalog().warnings;
        assert_eq!((warnings.len(), warnings[0].code.as_str()), (1, "format/skipped"));
        assert!(
            warnings[0].message.contains("`_CHECKPOINTABLE_OBJECT_GRAPH` (text)"),
            "{}",
            warnings[0].message
        );
        assert_eq!(reader.catalog().tensors.len(), 1);
        bundle.entries.remove(0);
        let reader = open_plain(&bundle.write()).expect("opens");
        assert!(reader.catalog().tensors.is_empty() && reader.catalog().files.is_empty());
    }

    #[test]
    fn what_cannot_be_held_does_not_stop_the_others() {
        let mut bundle = Bundle::new(1);
        bundle.bytes(0, "a", &[1, 2]);
        for (name, dtype) in [("words", 7), ("resource", 20), ("variant", 21), ("complex", 18), ("new", 101)]
        {
            let entry = bundle.place(0, dtype, &[], b"\x05bytes");
            bundle.add(name, &entry);
        }
        let reader = open_plain(&bundle.write()).expect("opens");
        assert_eq!(read_all(&*reader, "a").expect("reads"), [1, 2]);
        let mut unread: Vec<&str> = reader.catalog().unread.iter().map(|(key, _)| key.as_str()).collect();
        unread.sort_unstable();
        // The others are no numbers, which is said once.
        assert_eq!(unread, ["complex", "new"]);
        assert!(reader.catalog().warnings.iter().any(|warning| warning.message.contains("`words` (text)")));
    }

    #[test]
    fn a_root_leaves_out_what_is_outside() {
        let mut bundle = Bundle::new(1);
        bundle.bytes(0, "model/layer/kernel", &[1]);
        let mut other = bundle.place(0, 11, &[1], &[2]);
        bundle.add("other/kernel", &other);
        other.dtype = 4;
        let path = bundle.write();
        assert_eq!(codes(&open_plain(&path)), ["format/unknown-dtype"]);
        let options = OpenOptions { root: Some("model".to_owned()), ..OpenOptions::default() };
        let reader = crate::format::open(&path, &options).expect("opens");
        assert_eq!(read_all(&*reader, "layer/kernel").expect("reads"), [1]);
        assert_eq!(reader.catalog().tensors.len(), 1);
    }

    #[test]
    fn big_endian_numbers_are_turned_around() {
        let mut bundle = Bundle::new(1);
        bundle.header.endianness = 1;
        let complex = bundle.place(0, 8, &[1], &[1, 2, 3, 4, 5, 6, 7, 8]);
        bundle.add("complex", &complex);
        let double = bundle.place(0, 2, &[], &[1, 2, 3, 4, 5, 6, 7, 8]);
        bundle.add("double", &double);
        let none = bundle.place(0, 2, &[0, 5], &[]);
        bundle.add("none", &none);
        bundle.bytes(0, "raw", &[1, 2, 3]);
        // More than fits into a buffer.
        let long: Vec<u8> = (0..100_002_u32).map(|at| at as u8).collect();
        let entry = bundle.place(0, 5, &[50_001], &long);
        bundle.add("long", &entry);
        let reader = open_plain(&bundle.write()).expect("opens");
        assert_eq!(read_all(&*reader, "complex").expect("reads"), [4, 3, 2, 1, 8, 7, 6, 5]);
        assert_eq!(read_all(&*reader, "double").expect("reads"), [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(read_all(&*reader, "raw").expect("reads"), [1, 2, 3]);
        assert_eq!(read_all(&*reader, "none").expect("reads"), [0_u8; 0]);
        let turned: Vec<u8> = long.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
        assert!(read_all(&*reader, "long").expect("reads") == turned);
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_data_file_outside_the_folder_needs_leave() {
        let outside = tempfile::tempdir().expect("folder");
        let mut bundle = Bundle::new(1);
        bundle.bytes(0, "a", &[1]);
        let path = bundle.write();
        let data = path.with_extension("data-00000-of-00001");
        let target = outside.path().join("blob");
        std::fs::rename(&data, &target).expect("renames");
        std::os::unix::fs::symlink(&target, &data).expect("link");
        assert_eq!(codes(&open_plain(&path)), ["format/path-escape"]);
        let options = OpenOptions { allow_outside_links: true, ..OpenOptions::default() };
        assert!(crate::format::open(&path, &options).is_ok());
    }
}

//! Where the tensors of a new checkpoint lie, and the bytes around them; nothing is written here.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::layout::{Beside, FileContents, FileLayout, no_json};
use super::member::Split;
use super::names::{index_name, shard_name};
use super::shards::{index_bytes, name_problem};
use super::spec::Shards;
use super::{Format, numpy, shown};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};

pub(crate) use super::layout::masked;
pub use super::layout::{
    Checksum, Companion, Content, DataSum, OutputFile, OutputIndex, OutputLayout, OutputTensor, Placement,
};

/// How a checkpoint is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputOptions {
    /// The format of its files.
    pub format: Format,
    /// The name of a checkpoint of one file, where it is not the usual one of the format (`consolidated.00.pth`); it ends as
    /// files of the format do.
    pub name: Option<String>,
    /// The most bytes of tensor data in one file; `None` for one file whatever its size.
    pub max_shard_size: Option<u64>,
    /// A file of that format whose other content is taken over: the metadata of a GGUF file (`--template`).
    pub template: Option<PathBuf>,
}

/// Lays out a checkpoint; the same tensors and metadata give the same bytes.
///
/// The tensors are cut into shards in the order given, each of at most [`OutputOptions::max_shard_size`] bytes of tensor
/// data; a larger tensor has a shard of its own.
///
/// # Errors
/// Returns `format/duplicate-key` for a name given twice, `format/shape-overflow` and `format/sub-byte` for a tensor
/// without a size in whole bytes, `format/not-written` for a format that is read only, `format/no-shards` where the
/// format has no shards, and what the format cannot hold: its `write` module lists that.
pub fn lay_out(
    tensors: &[OutputTensor<'_>],
    metadata: &BTreeMap<String, String>,
    options: &OutputOptions,
) -> Result<OutputLayout, Errors> {
    let (sizes, total) = check(tensors)?;
    let format = options.format;
    let spec = format.spec();
    let Some(write) = spec.write else { return Err(not_written(format)) };
    let single = options.name.as_deref().unwrap_or(format.single_name());
    let shards = cut(&sizes, options.max_shard_size.unwrap_or(u64::MAX));
    let count = shards.len();
    if count > 1 && !format.has_shards() {
        let message = format!("{format} checkpoints are one file; this one would be cut into {count}");
        return Err(Diagnostic::error(FormatCode::NoShards, message)
            .help("leave out `--max-shard-size`")
            .into());
    }
    if let Shards::Numbered(most) = spec.shards
        && count > most
    {
        let message = format!("it would be cut into {count} files, and {format} numbers at most {most}");
        return Err(Diagnostic::error(FormatCode::NoShards, message)
            .help("give a larger `--max-shard-size`")
            .into());
    }
    let mut out = Collector::default();
    let mut files = Vec::with_capacity(count);
    let mut placements = vec![Placement { file: 0, offset: 0 }; tensors.len()];
    let mut beside = None;
    for (file, shard) in shards.into_iter().enumerate() {
        let name = if count == 1 { single.to_owned() } else { shard_name(single, file, count) };
        let (own, sizes) = (&tensors[shard.clone()], &sizes[shard.clone()]);
        let split = matches!(spec.shards, Shards::Numbered(_)) && count > 1;
        let contents = FileContents {
            tensors: own,
            sizes,
            single_name: single,
            metadata,
            template: options.template.as_deref(),
            split: split.then_some(Split {
                number: file as u64,
                count: count as u64,
                tensors: Some(tensors.len() as u64),
            }),
        };
        let layout = write(&contents, &mut out)?;
        for (place, offset) in placements[shard].iter_mut().zip(layout.offsets) {
            *place = Placement { file, offset };
        }
        let mut name = name;
        if let Some(Beside { data_name, index, pointer: (pointer, bytes) }) = layout.beside {
            name = data_name;
            beside = Some((index, Companion { name: pointer, content: Content::Bytes(bytes) }));
        }
        files.push(OutputFile {
            name,
            pieces: layout.pieces,
            size: layout.size,
            checksums: layout.checksums,
        });
    }
    let ((), warnings) = out.finish(())?;
    let has_index = count > 1 && format.has_index();
    let (mut index, pointer) = beside.unzip();
    if has_index {
        index = Some(self::index(single, tensors, &placements, &files, total)?);
    }
    let single_name = single.to_owned();
    Ok(OutputLayout {
        format,
        single_name,
        files,
        index,
        placements,
        companions: pointer.into_iter().collect(),
        warnings,
    })
}

/// Lays out one array as a NumPy file of its own (`.npy`).
///
/// # Errors
/// Returns `format/cannot-hold` for a type that NumPy does not have, and the errors of [`lay_out`] for its size.
pub fn lay_out_array(tensor: &OutputTensor<'_>) -> Result<OutputLayout, Errors> {
    let (_, total) = check(&[*tensor])?;
    let mut out = Collector::default();
    let array = numpy::write::lay_out_array(tensor, total, &mut out);
    let (array, warnings) = out.finish(array)?;
    let mut layout = OutputLayout {
        format: Format::Npy,
        single_name: Format::Npy.single_name().to_owned(),
        files: Vec::new(),
        index: None,
        placements: Vec::new(),
        companions: Vec::new(),
        warnings,
    };
    if let Some(FileLayout { pieces, size, checksums, offsets, .. }) = array {
        layout.placements.extend(offsets.into_iter().map(|offset| Placement { file: 0, offset }));
        layout.files.push(OutputFile { name: format!("{}.npy", tensor.key), pieces, size, checksums });
    }
    Ok(layout)
}

/// Lays out a set of files whose names count: of a tensor `FILE::KEY`, `KEY` in the file `FILE`.
///
/// # Errors
/// As [`lay_out`].
pub fn lay_out_set(
    tensors: &[OutputTensor<'_>],
    metadata: &BTreeMap<String, String>,
    options: &OutputOptions,
) -> Result<OutputLayout, Errors> {
    let format = options.format;
    if format.is_folder() {
        let message = format!(
            "the layout says in which file each tensor lies, and a {format} checkpoint is several files"
        );
        return Err(Diagnostic::error(FormatCode::NoSets, message)
            .help("choose another with `--format`")
            .into());
    }
    let mut files: IndexMap<&str, Vec<(usize, OutputTensor<'_>)>> = IndexMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        let (file, key) = tensor.key.split_once("::").unwrap_or((format.single_name(), tensor.key));
        files.entry(file).or_default().push((at, OutputTensor { key, ..*tensor }));
    }
    files.sort_unstable_keys();
    check_paths(files.keys().copied())?;
    let empty = Placement { file: 0, offset: 0 };
    let whole = OutputOptions { max_shard_size: None, ..options.clone() };
    let placements = vec![empty; tensors.len()];
    let mut all = OutputLayout {
        format,
        single_name: format.single_name().to_owned(),
        files: Vec::new(),
        index: None,
        placements,
        companions: Vec::new(),
        warnings: Vec::new(),
    };
    for (number, (name, members)) in files.into_iter().enumerate() {
        let name = file_name(name, format)?;
        let own: Vec<OutputTensor<'_>> = members.iter().map(|(_, tensor)| *tensor).collect();
        let part = lay_out(&own, metadata, &whole)?;
        all.warnings.extend(part.warnings);
        all.files.extend(part.files.into_iter().map(|file| OutputFile { name: name.clone(), ..file }));
        for ((at, _), place) in members.iter().zip(part.placements) {
            all.placements[*at] = Placement { file: number, ..place };
        }
    }
    Ok(all)
}

/// Refuses names of files that are no paths below a folder, and a file where another one needs a folder.
fn check_paths<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Result<(), Errors> {
    let all: HashSet<&str> = names.clone().collect();
    let mut out = Collector::default();
    for name in names {
        let odd = |part: &str| part.is_empty() || part == "." || part.chars().any(char::is_control);
        let problem = name_problem(name).or_else(|| {
            name.split('/').any(odd).then_some("has a part that is empty, `.`, or holds control characters")
        });
        if let Some(problem) = problem {
            let message = format!("the layout would write the file `{}`, which {problem}", shown(name));
            out.push(
                Diagnostic::error(FormatCode::PathEscape, message)
                    .expected("a file below the output's folder")
                    .help("do not trust the names in this checkpoint, or correct the layout's template"),
            );
        }
        let folders = name.match_indices('/').map(|(at, _)| &name[..at]);
        if let Some(file) = folders.into_iter().find(|folder| all.contains(folder)) {
            let message = format!("`{}` would be both a file and a folder", shown(file));
            out.push(
                Diagnostic::error(FormatCode::PathEscape, message).help("correct the layout's templates"),
            );
        }
    }
    out.finish(()).map(|_| ())
}

/// Returns the name of a tensor in a set of files, `FILE::KEY`, with the format's ending where the file has none.
pub fn in_file_of(format: Format, name: &str) -> String {
    match name.split_once("::") {
        Some((file, key)) if Format::of_ending(Path::new(file)).is_none() => {
            format!("{file}{}::{key}", format.ending())
        }
        _ => name.to_owned(),
    }
}

/// Returns the name of a file of a set: the layout's, with the format's ending where that has none.
fn file_name(name: &str, format: Format) -> Result<String, Errors> {
    match Format::of_ending(Path::new(name)) {
        None => Ok(format!("{name}{}", format.ending())),
        Some(named) if named == format => Ok(name.to_owned()),
        Some(named) => {
            let message =
                format!("the layout names the file `{}`, which is no name of a {format} file", shown(name));
            let help = format!("leave out `--format`, or write the format `{named}`");
            Err(Diagnostic::error(FormatCode::Ending, message).help(help).into())
        }
    }
}

fn not_written(format: Format) -> Errors {
    let message = format!("{format} files are read, not written");
    let names: Vec<&str> =
        Format::ALL.iter().filter(|format| format.is_written()).map(|f| f.name()).collect();
    Diagnostic::error(FormatCode::NotWritten, message)
        .help(format!("choose another with `--format`: {}", names.join(", ")))
        .into()
}

/// Room for what stands around the data of a checkpoint, in bytes.
const OVERHEAD: u64 = 1 << 40;

/// Returns each tensor's size and their sum, in bytes.
fn check(tensors: &[OutputTensor<'_>]) -> Result<(Vec<u64>, u64), Errors> {
    let mut out = Collector::default();
    let mut seen = HashSet::with_capacity(tensors.len());
    let mut sizes = Vec::with_capacity(tensors.len());
    // Room for headers, so that no file's size can overflow.
    let mut total = Some(OVERHEAD);
    for tensor in tensors {
        let mut fail = |code, message: String| out.push(Diagnostic::error(code, message).tensor(tensor.key));
        if !seen.insert(tensor.key) {
            fail(FormatCode::DuplicateKey, "two tensors of the output have this name".to_owned());
        }
        let elements = tensor.shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size.max(1)));
        let elements = elements.map(|product| if tensor.shape.contains(&0) { 0 } else { product });
        let dtype = tensor.dtype;
        let (of_block, _) = dtype.block();
        match elements.and_then(|elements| dtype.byte_len(elements)) {
            Some(size) => {
                total = total.and_then(|total| total.checked_add(size));
                sizes.push(size);
            }
            None if elements.is_some_and(|elements| !elements.is_multiple_of(of_block)) => fail(
                FormatCode::SubByte,
                format!("{:?} {dtype} end inside a block of {of_block} elements", tensor.shape),
            ),
            None => {
                fail(FormatCode::ShapeOverflow, format!("the size of {:?} {dtype} overflows", tensor.shape))
            }
        }
    }
    if total.is_none() {
        out.push(Diagnostic::error(FormatCode::ShapeOverflow, "the size of all tensors overflows 64 bits"));
    }
    let total = total.unwrap_or(0).saturating_sub(OVERHEAD);
    out.finish((sizes, total)).map(|(value, _)| value)
}

/// Cuts the tensors into shards; there is at least one shard, and no empty one beside others.
fn cut(sizes: &[u64], max_shard_size: u64) -> Vec<Range<usize>> {
    let mut shards = Vec::new();
    let mut start = 0;
    let mut filled = 0_u64;
    for (tensor, &size) in sizes.iter().enumerate() {
        if tensor > start && filled + size > max_shard_size {
            shards.push(start..tensor);
            start = tensor;
            filled = 0;
        }
        filled += size;
    }
    shards.push(start..sizes.len());
    shards
}

fn index(
    single: &str,
    tensors: &[OutputTensor<'_>],
    placements: &[Placement],
    files: &[OutputFile],
    total: u64,
) -> Result<OutputIndex, Errors> {
    let weight_map =
        tensors.iter().zip(placements).map(|(t, place)| (t.key, files[place.file].name.as_str()));
    let bytes = index_bytes(total, weight_map.collect()).map_err(|error| no_json("the index", &error))?;
    Ok(OutputIndex { name: index_name(single), bytes, ..OutputIndex::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::format::testing::*;

    fn tensor<'a>(key: &'a str, dtype: Dtype, shape: &'a [u64]) -> OutputTensor<'a> {
        OutputTensor { key, dtype, shape }
    }

    fn with(
        tensors: &[OutputTensor<'_>],
        metadata: &BTreeMap<String, String>,
        max_shard_size: Option<u64>,
    ) -> Result<OutputLayout, Errors> {
        let options =
            OutputOptions { format: Format::Safetensors, name: None, max_shard_size, template: None };
        lay_out(tensors, metadata, &options)
    }

    fn plain(tensors: &[OutputTensor<'_>], max: Option<u64>) -> Result<OutputLayout, Errors> {
        with(tensors, &BTreeMap::new(), max)
    }

    fn code(result: Result<OutputLayout, Errors>) -> &'static str {
        result.expect_err("refused").diagnostics()[0].code.as_str()
    }

    /// Parses a header as the reference implementation does.
    fn reference(file: &OutputFile) -> ::safetensors::tensor::Metadata {
        let metadata: ::safetensors::tensor::Metadata =
            serde_json::from_slice(&file.pieces[0].1[8..]).expect("a valid header");
        assert_eq!(metadata.data_len() as u64 + file.pieces[0].1.len() as u64, file.size);
        assert_eq!(
            u64::from_le_bytes(file.pieces[0].1[..8].try_into().expect("8 bytes")) + 8,
            file.pieces[0].1.len() as u64
        );
        assert!(file.pieces[0].1.len().is_multiple_of(8));
        metadata
    }

    #[test]
    fn wider_types_come_first_and_the_reference_agrees() {
        let tensors = [
            tensor("a", Dtype::F4, &[4]),
            tensor("b", Dtype::BF16, &[3]),
            tensor("c \"q\" ä\n", Dtype::F32, &[2, 2]),
            tensor("d", Dtype::I64, &[]),
            tensor("e", Dtype::BF16, &[0, 7]),
        ];
        let metadata = BTreeMap::from([("z".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())]);
        let layout = with(&tensors, &metadata, None).expect("lays out");
        assert_eq!((layout.files[0].name.as_str(), &layout.index), ("model.safetensors", &None));
        let parsed = reference(&layout.files[0]);
        assert_eq!(parsed.metadata().as_ref().map(|metadata| metadata.len()), Some(2));
        assert_eq!(parsed.offset_keys(), ["d", "c \"q\" ä\n", "b", "e", "a"]);
        let start = layout.files[0].pieces[0].1.len() as u64;
        let offsets: Vec<u64> = layout.placements.iter().map(|place| place.offset - start).collect();
        assert_eq!(offsets, [30, 24, 8, 0, 30]);
        for (tensor, place) in tensors.iter().zip(&layout.placements) {
            let info = parsed.info(tensor.key).expect("is there");
            assert_eq!(info.data_offsets.0 as u64 + start, place.offset);
        }
        assert_eq!(with(&tensors, &metadata, None), Ok(layout));
    }

    #[test]
    fn shards_are_cut_in_the_given_order_and_open_again() {
        let tensors = [
            tensor("c", Dtype::U8, &[3]),
            tensor("b", Dtype::U8, &[3]),
            tensor("big", Dtype::U8, &[100]),
            tensor("a", Dtype::U8, &[4]),
            tensor("f", Dtype::F32, &[1]),
        ];
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        let layout = with(&tensors, &metadata, Some(8)).expect("lays out");
        let files: Vec<usize> = layout.placements.iter().map(|place| place.file).collect();
        assert_eq!(files, [0, 0, 1, 2, 2]);
        assert_eq!(layout.files[2].name, "model-00003-of-00003.safetensors");
        layout.files.iter().for_each(|file| drop(reference(file)));

        let folder = tempfile::tempdir().expect("folder");
        for file in &layout.files {
            let mut bytes = file.pieces[0].1.clone();
            bytes.resize(file.size as usize, 0);
            put(folder.path(), &file.name, &bytes);
        }
        let index = layout.index.expect("has an index");
        assert!(index.bytes.starts_with(b"{\n  \"metadata\": {\n    \"total_size\": 114\n"));
        put(folder.path(), &index.name, &index.bytes);
        let reader = open_plain(folder.path()).expect("opens");
        let catalog = reader.catalog();
        assert_eq!((catalog.tensors.len(), &catalog.warnings, &catalog.metadata), (5, &vec![], &metadata));
        for (tensor, place) in tensors.iter().zip(&layout.placements) {
            let found = &catalog.tensors[catalog.find(tensor.key).expect("is there")];
            assert_eq!((found.file, found.offset), (place.file, place.offset));
        }
    }

    #[test]
    fn one_shard_needs_no_index() {
        let tensors = [tensor("a", Dtype::U8, &[4]), tensor("b", Dtype::U8, &[4])];
        assert!(plain(&tensors, Some(8)).expect("lays out").index.is_none());
        assert!(plain(&tensors, Some(7)).expect("lays out").index.is_some());
        assert!(plain(&tensors[..1], Some(1)).expect("lays out").index.is_none());
        let empty = plain(&[], Some(1)).expect("lays out");
        assert_eq!(
            (empty.files[0].pieces[0].1.as_slice(), empty.files[0].size),
            (&b"\x08\0\0\0\0\0\0\0{}      "[..], 16)
        );
    }

    #[test]
    fn what_no_reader_could_read_is_refused() {
        assert_eq!(code(plain(&[tensor("__metadata__", Dtype::U8, &[1])], None)), "format/reserved-name");
        let twice = [tensor("a", Dtype::U8, &[1]), tensor("a", Dtype::U8, &[1])];
        assert_eq!(code(plain(&twice, Some(1))), "format/duplicate-key");
        assert_eq!(code(plain(&[tensor("a", Dtype::F4, &[3])], None)), "format/sub-byte");
        assert_eq!(code(plain(&[tensor("a", Dtype::F64, &[u64::MAX])], None)), "format/shape-overflow");
        let wide = [tensor("a", Dtype::U8, &[u64::MAX / 2]), tensor("b", Dtype::U8, &[u64::MAX / 2])];
        assert_eq!(code(plain(&wide, Some(1))), "format/shape-overflow");
    }
}

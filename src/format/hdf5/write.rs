//! Laying out an HDF5 file: names become groups, and Keras finds what it looks for.

use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;

use super::image::{ATTRIBUTE_LIMIT, Attribute, Fits, Image};
use super::{DEEPEST, DTYPE, LAYER_NAMES, VARS, WEIGHT_NAMES, dtype, numbered};
use crate::diag::{Collector, Diagnostic, Errors, FormatCode};
use crate::dtype::Dtype;
use crate::format::layout::{FileLayout, OutputTensor};
use crate::format::shown;

/// The most dimensions of a dataset. (HDFGroup/hdf5, `src/H5Spublic.h`, `H5S_MAX_RANK`)
const MOST_DIMENSIONS: usize = 32;

/// Attributes of the root that readers of the old form look for, with what stands there where the source has nothing
/// else: the last release of Keras 2, whose form it is.
const ABOUT: [(&str, &str); 2] = [("backend", "tensorflow"), ("keras_version", "2.15.0")];

/// Which files of Keras it is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A weights file of Keras 3: every variable is a dataset in a group `vars`. Only names count.
    Keras3,
    /// The weights of Keras 2 and of the TensorFlow models of Hugging Face: attributes list the layers and the weights.
    Legacy,
}

impl Form {
    fn of(tensors: &[OutputTensor<'_>]) -> Form {
        let in_vars = |key: &str| key.split('/').rev().nth(1) == Some(VARS);
        if tensors.iter().any(|tensor| in_vars(tensor.key)) { Form::Keras3 } else { Form::Legacy }
    }
}

/// Lays out one file. Names are cut into groups at `/`.
///
/// Refused are names that are no path (an empty part, `.`, a zero byte), a tensor whose name is also a group, types that
/// neither h5py nor Keras can read, and lists of names too large for attributes.
pub(in crate::format) fn lay_out(
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    metadata: &BTreeMap<String, String>,
    out: &mut Collector,
) -> Result<FileLayout, Errors> {
    let form = Form::of(tensors);
    let mut own = Collector::default();
    let datatypes: Vec<Vec<u8>> = tensors.iter().map(|tensor| check(tensor, form, &mut own)).collect();
    let groups = groups(tensors, &mut own);
    let failed = own.has_errors();
    if let Err(errors) = own.finish(()) {
        out.extend(errors);
    }
    let offsets = vec![0; tensors.len()];
    if failed {
        return Ok(FileLayout { pieces: Vec::new(), size: 0, checksums: Vec::new(), offsets, beside: None });
    }
    let metadata = kept(metadata, form, &groups, out);
    let image = image(tensors, sizes, &datatypes, &groups, &metadata, form);
    let (bytes, offsets, size) = image.map_err(|what| {
        let message = format!("an HDF5 file cannot hold {what}");
        Errors::from(Diagnostic::error(FormatCode::CannotHold, message).help(OTHER))
    })?;
    Ok(FileLayout { pieces: vec![(0, bytes)], size, checksums: Vec::new(), offsets, beside: None })
}

const OTHER: &str = "write another format, as with `--format safetensors`";

/// Checks a tensor's name, type and shape, and returns its datatype.
fn check(tensor: &OutputTensor<'_>, form: Form, out: &mut Collector) -> Vec<u8> {
    let mut fail = |message: &str, help: &str| {
        let diagnostic = Diagnostic::error(FormatCode::CannotHold, message);
        out.push(diagnostic.tensor(tensor.key).help(help));
    };
    let key = tensor.key;
    if key.split('/').any(|part| part.is_empty() || part == ".") || key.contains('\0') {
        let message = "the name is no path of groups in an HDF5 file";
        fail(
            message,
            "give it a name whose parts between `/` are not empty, not `.`, and without zero bytes",
        );
    }
    if key.split('/').count() > DEEPEST {
        fail("the name has more than 128 parts, each a group in an HDF5 file", "give it a shorter name");
    }
    if tensor.shape.len() > MOST_DIMENSIONS {
        fail("an HDF5 file holds at most 32 dimensions", OTHER);
    }
    dtype::encoded(tensor.dtype, form == Form::Keras3).unwrap_or_else(|| {
        let message = format!("{} is no type of the HDF5 files that are read elsewhere", tensor.dtype);
        let help = if tensor.dtype == Dtype::BF16 { "widen it with `--dtype f32`" } else { OTHER };
        fail(&message, help);
        Vec::new()
    })
}

/// A group: its members by name, in the order of their bytes.
#[derive(Default)]
struct Members<'a>(BTreeMap<&'a str, Member>);

#[derive(Clone, Copy)]
enum Member {
    /// An index into the groups.
    Group(usize),
    /// An index into the tensors.
    Tensor(usize),
}

/// Makes groups of names; the first is the root, and each stands before those in it.
fn groups<'a>(tensors: &[OutputTensor<'a>], out: &mut Collector) -> Vec<Members<'a>> {
    let mut groups = vec![Members::default()];
    for (number, tensor) in tensors.iter().enumerate() {
        let mut group = 0;
        let (folders, name) = tensor.key.rsplit_once('/').map_or((None, tensor.key), |(a, b)| (Some(a), b));
        let mut free = true;
        for part in folders.into_iter().flat_map(|folders| folders.split('/')) {
            let next = groups.len();
            let Some(Members(members)) = groups.get_mut(group) else { break };
            match *members.entry(part).or_insert(Member::Group(next)) {
                Member::Group(inner) => group = inner,
                Member::Tensor(_) => {
                    free = false;
                    break;
                }
            }
            if group == next {
                groups.push(Members::default());
            }
        }
        let taken = match groups.get_mut(group) {
            Some(Members(members)) if free => members.insert(name, Member::Tensor(number)).is_some(),
            _ => true,
        };
        if taken {
            let message = "its name, or a part of it up to a `/`, is both a tensor and a group";
            let diagnostic = Diagnostic::error(FormatCode::CannotHold, message).tensor(tensor.key);
            out.push(
                diagnostic
                    .help("rename one of them: an HDF5 file has tensors and groups as files and folders"),
            );
        }
    }
    groups
}

/// Returns the metadata that become attributes of the root.
fn kept<'a>(
    metadata: &'a BTreeMap<String, String>,
    form: Form,
    groups: &[Members<'_>],
    out: &mut Collector,
) -> BTreeMap<&'a str, &'a str> {
    // What lists other tensors would be wrong here.
    let listed = |name: &str| name.starts_with(LAYER_NAMES) || name.starts_with(WEIGHT_NAMES);
    let all = metadata.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let (fit, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
        all.filter(|(name, _)| !listed(name)).partition(|(name, text)| {
            let texts = [name, text].into_iter();
            !name.is_empty()
                && texts.clone().all(|text| !text.contains('\0'))
                && name.len() + text.len() <= ATTRIBUTE_LIMIT
        });
    for name in others.into_keys() {
        let message =
            format!("the metadata `{}` is left out: it is no text of at most 64,512 bytes", shown(name));
        out.push(Diagnostic::warning(FormatCode::MetadataDropped, message));
    }
    let mut kept = fit;
    let has_layers = groups
        .first()
        .is_some_and(|Members(root)| root.values().any(|member| matches!(member, Member::Group(_))));
    if form == Form::Legacy && has_layers {
        for (name, text) in ABOUT {
            kept.entry(name).or_insert(text);
        }
    }
    kept
}

/// Makes all structures, the innermost first.
fn image(
    tensors: &[OutputTensor<'_>],
    sizes: &[u64],
    datatypes: &[Vec<u8>],
    groups: &[Members<'_>],
    metadata: &BTreeMap<&str, &str>,
    form: Form,
) -> Fits<(Vec<u8>, Vec<u64>, u64)> {
    const BFLOAT16: &str = "bfloat16";
    let mut image = Image::new();
    let marked = tensors.iter().filter(|tensor| tensor.dtype == Dtype::BF16).count();
    let mut marks = image.texts(BFLOAT16, marked).into_iter();
    let mut datasets = Vec::with_capacity(tensors.len());
    for (number, ((tensor, datatype), size)) in tensors.iter().zip(datatypes).zip(sizes).enumerate() {
        let mark = if tensor.dtype == Dtype::BF16 { marks.next() } else { None };
        let mark = mark.map(|place| Attribute::heap_text(DTYPE, BFLOAT16.len(), place)).transpose()?;
        datasets.push(image.dataset(number, datatype, tensor.shape, *size, mark.into_iter().collect())?);
    }
    let mut lists = if form == Form::Legacy { lists(tensors, groups)? } else { HashMap::new() };
    let mut places = vec![None; groups.len()];
    for (number, Members(members)) in groups.iter().enumerate().rev() {
        let address = |member: &Member| match member {
            Member::Group(group) => places.get(*group).copied().flatten(),
            Member::Tensor(tensor) => datasets.get(*tensor).copied(),
        };
        let members: Option<Vec<(&str, u64)>> =
            members.iter().map(|(name, member)| Some((*name, address(member)?))).collect();
        let mut attributes = Vec::new();
        if number == 0 {
            for (name, text) in metadata {
                attributes.push(Attribute::text(name, text)?);
            }
        }
        attributes.extend(lists.remove(&number).unwrap_or_default());
        // Inner groups come behind outer ones, so they are there.
        let group = image.group(&members.ok_or("groups in circles")?, attributes)?;
        if number == 0 {
            return Ok(image.finish(group, sizes));
        }
        if let Some(place) = places.get_mut(number) {
            *place = Some(group.header);
        }
    }
    Err("no root".to_owned())
}

/// Makes the attributes that list the layers, for the root, and the weights of each, for the groups in the root.
fn lists(tensors: &[OutputTensor<'_>], groups: &[Members<'_>]) -> Fits<HashMap<usize, Vec<Attribute>>> {
    let mut layers: IndexMap<&str, Vec<&str>> = IndexMap::new();
    for (layer, weight) in tensors.iter().filter_map(|tensor| tensor.key.split_once('/')) {
        layers.entry(layer).or_default().push(weight);
    }
    let mut lists = HashMap::new();
    if layers.is_empty() {
        return Ok(lists);
    }
    let names: Vec<&str> = layers.keys().copied().collect();
    lists.insert(0, list(LAYER_NAMES, &names)?);
    for (layer, weights) in layers {
        let group = groups.first().and_then(|Members(root)| root.get(layer));
        if let Some(Member::Group(group)) = group {
            lists.insert(*group, list(WEIGHT_NAMES, &weights)?);
        }
    }
    Ok(lists)
}

/// Makes one attribute of a list of names, or several where it is too large for one.
fn list(name: &str, names: &[&str]) -> Fits<Vec<Attribute>> {
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0).max(1);
    let most = ATTRIBUTE_LIMIT / width;
    if most == 0 {
        return Err(format!("a name of {width} bytes in the list `{name}`"));
    }
    if names.len() <= most {
        return Ok(vec![Attribute::texts(name, names, width)?]);
    }
    names
        .chunks(most)
        .enumerate()
        .map(|(part, names)| Attribute::texts(&numbered(name, part), names, width))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(tensors: &[(&str, Dtype, &[u64])]) -> Vec<(&'static str, Vec<String>, Option<String>)> {
        let tensors: Vec<OutputTensor<'_>> =
            tensors.iter().map(|(key, dtype, shape)| OutputTensor { key, dtype: *dtype, shape }).collect();
        let mut out = Collector::default();
        lay_out(&tensors, &vec![2; tensors.len()], &BTreeMap::new(), &mut out).expect("lays out");
        let errors = out.finish(()).err().map(|errors| errors.diagnostics().to_vec()).unwrap_or_default();
        errors.into_iter().map(|error| (error.code.as_str(), error.tensors, error.help)).collect()
    }

    #[test]
    fn what_hdf5_cannot_hold_is_refused_by_name() {
        for key in ["", "/a", "a//b", "a/", "a/./b", "a\0b", &"a/".repeat(200)] {
            let found = refused(&[(key, Dtype::F16, &[1])]);
            assert!(
                !found.is_empty()
                    && found.iter().all(|(code, keys, _)| *code == "format/cannot-hold" && keys[0] == key),
                "{key}"
            );
        }
        for (a, b) in [("a", "a/b"), ("a/b", "a"), ("x/y/z/w", "x/y"), ("x/y", "x/y/z/w")] {
            let found = refused(&[(a, Dtype::F16, &[1]), (b, Dtype::F16, &[1])]);
            assert_eq!(found.iter().map(|(_, keys, _)| keys[0].as_str()).collect::<Vec<_>>(), [b]);
        }
        assert_eq!(refused(&[("a", Dtype::F16, &[1; 33])]).len(), 1);
        assert_eq!(refused(&[("a", Dtype::F16, &[1; 32]), ("a b/..", Dtype::F16, &[1])]), []);
    }

    #[test]
    fn bfloat16_are_for_keras_3_alone() {
        let found = refused(&[("bert/w:0", Dtype::BF16, &[1]), ("bert/v:0", Dtype::F8E4M3, &[2])]);
        let helps: Vec<bool> = found
            .iter()
            .map(|(.., help)| help.as_ref().is_some_and(|help| help.contains("--dtype f32")))
            .collect();
        assert_eq!(helps, [true, false]);
        assert_eq!(refused(&[("layers/a/vars/0", Dtype::BF16, &[1])]), []);
        assert_eq!(refused(&[("layers/a/vars/0", Dtype::C64, &[1])]).len(), 1);
    }

    #[test]
    fn a_long_list_of_names_is_cut_as_keras_cuts_it() {
        let names: Vec<String> = (0..5000).map(|number| format!("weight_of_a_layer_{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(list(WEIGHT_NAMES, &names[..2000]).map(|list| list.len()), Ok(1));
        assert_eq!(list(WEIGHT_NAMES, &names).map(|list| list.len()), Ok(2));
        let long = "n".repeat(ATTRIBUTE_LIMIT + 1);
        assert!(list(WEIGHT_NAMES, &[&long]).is_err());
        assert!(list(WEIGHT_NAMES, &[&long[1..]]).is_ok());
    }

    #[test]
    fn metadata_that_no_attribute_holds_are_left_out_with_a_warning() {
        let text = |length| "t".repeat(length);
        let metadata: BTreeMap<String, String> = [
            ("fits", text(ATTRIBUTE_LIMIT - 4)),
            ("long", text(ATTRIBUTE_LIMIT)),
            ("zero", "a\0".to_owned()),
            ("layer_names", "of the source".to_owned()),
            ("backend", "jax".to_owned()),
            ("empty", String::new()),
        ]
        .map(|(name, text)| (name.to_owned(), text))
        .into();
        let tensors = [OutputTensor { key: "a/w", dtype: Dtype::F32, shape: &[2] }];
        let mut out = Collector::default();
        let layout = lay_out(&tensors, &[8], &metadata, &mut out).expect("lays out");
        let ((), warnings) = out.finish(()).expect("no errors");
        assert_eq!(warnings.len(), 2);
        let folder = tempfile::tempdir().expect("folder");
        let mut bytes = layout.pieces[0].1.clone();
        bytes.resize(layout.size as usize, 0);
        let path = crate::format::testing::put(folder.path(), "a.h5", &bytes);
        let reader = crate::format::testing::open_plain(&path).expect("opens");
        let read = &reader.catalog().metadata;
        let names: Vec<&str> = read.keys().map(String::as_str).collect();
        assert_eq!(names, ["backend", "empty", "fits", "keras_version"]);
        assert_eq!(
            (read["backend"].as_str(), read["empty"].as_str(), &read["fits"]),
            ("jax", "", &metadata["fits"])
        );
    }
}

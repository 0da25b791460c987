//! The groups of an HDF5 file, and the datasets in them.

use std::collections::HashMap;
use std::sync::Arc;

use hdf5_pure::{AttrValue, Dataset, Group};

use super::dtype::{Elements, elements, named};
use super::place::{Place, place};
use super::region::Region;
use super::{DEEPEST, DTYPE, LAYER_NAMES, WEIGHT_NAMES, numbered, said};
use crate::diag::{Diagnostic, FormatCode};
use crate::dtype::Dtype;
use crate::format::OpenOptions;
use crate::format::root::{Content, Leaf};

/// How many links are followed, and how many bytes all names with their groups may take: more than any checkpoint has.
const MOST_LINKS: usize = 1 << 20;
const MOST_NAMES: usize = 1 << 28;

/// How deep groups are asked for the order of their weights: `model_weights/layer`.
const ORDERED: usize = 2;

/// A dataset that is a tensor.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    /// The bytes to reverse in each element, or 1.
    pub(super) swap: usize,
    pub(super) place: Place,
    /// The file that it is in.
    pub(super) region: Arc<Region>,
}

/// A tensor, or what is wrong with it; an error counts only where the tensor is one of the weights.
pub(super) type Tensor = Result<Found, Box<Diagnostic>>;

/// Returns everything that the groups hold, in order: as the attributes of Keras's groups tell, else as the file does.
pub(super) fn walk(
    root: Group,
    region: &Arc<Region>,
    options: &OpenOptions,
) -> Result<Vec<Leaf<Tensor>>, String> {
    let mut leaves: Vec<Leaf<Tensor>> = Vec::new();
    let mut orders: Vec<(usize, Vec<String>, Vec<String>)> = Vec::new();
    let (mut links, mut names) = (0_usize, 0_usize);
    let mut open = vec![(Vec::<String>::new(), root)];
    while let Some((path, group)) = open.pop() {
        if path.len() <= ORDERED {
            let attributes = group.attrs().map_err(|error| said(&error))?;
            orders.extend(order(&attributes).map(|order| (leaves.len(), path.clone(), order)));
        }
        let datasets = group.iter_datasets().map_err(|error| said(&error))?;
        let groups = group.iter_groups().map_err(|error| said(&error))?;
        links = links.saturating_add(datasets.len()).saturating_add(groups.len());
        if links > MOST_LINKS {
            return Err(format!("more than {MOST_LINKS} groups and datasets; do groups contain themselves?"));
        }
        if path.len() >= DEEPEST && groups.len() > 0 {
            return Err(format!("groups stand in groups more than {DEEPEST} deep; does one contain itself?"));
        }
        let depth: usize = path.iter().map(String::len).sum();
        let mut below = |name: String| {
            names = names.saturating_add(depth).saturating_add(name.len());
            let mut path = path.clone();
            path.push(name);
            if names > MOST_NAMES { Err("its names take more than 256 MiB".to_owned()) } else { Ok(path) }
        };
        for (name, dataset) in datasets {
            leaves.push(Leaf { path: below(name)?, content: describe(dataset, region, options) });
        }
        let mut inner = Vec::with_capacity(groups.len());
        for (name, group) in groups {
            inner.push((below(name)?, group));
        }
        // The last is taken first.
        open.extend(inner.into_iter().rev());
    }
    // Inner groups first: sorting a group keeps the order inside those that it contains.
    for (start, path, names) in orders.iter().rev() {
        sort(leaves.get_mut(*start..).unwrap_or_default(), path, names);
    }
    Ok(leaves)
}

/// Returns the names of a group's layers or weights in order, where its attributes tell.
fn order(attributes: &HashMap<String, AttrValue>) -> Option<Vec<String>> {
    [LAYER_NAMES, WEIGHT_NAMES].into_iter().find_map(|name| {
        let strings = |name: &str| attributes.get(name).and_then(AttrValue::as_strings);
        if let Some(names) = strings(name) {
            return Some(names.to_vec());
        }
        let parts = (0..).map_while(|number| strings(&numbered(name, number)));
        let names: Vec<String> = parts.flatten().cloned().collect();
        (!names.is_empty()).then_some(names)
    })
}

/// Sorts the leaves below a group, which stand together at the beginning, by the position of the first of their names' beginnings in the
/// list: layers are groups in the group, weights are paths of several.
fn sort(leaves: &mut [Leaf<Tensor>], path: &[String], names: &[String]) {
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(names.len());
    for (place, name) in names.iter().enumerate() {
        places.entry(name).or_insert(place);
    }
    let end = leaves.iter().position(|leaf| !leaf.path.starts_with(path)).unwrap_or(leaves.len());
    let Some(own) = leaves.get_mut(..end) else { return };
    own.sort_by_cached_key(|leaf| {
        let inner = leaf.path.get(path.len()..).unwrap_or_default();
        let mut name = String::new();
        let found = inner.iter().find_map(|part| {
            if !name.is_empty() {
                name.push('/');
            }
            name.push_str(part);
            places.get(name.as_str()).copied()
        });
        found.unwrap_or(usize::MAX)
    });
}

/// Tells what a dataset is; only headers and the index of its chunks are read.
fn describe(dataset: Dataset, region: &Arc<Region>, options: &OpenOptions) -> Content<Tensor> {
    let shape = match dataset.shape() {
        Ok(shape) => shape,
        Err(error) => return wrong(format!("its shape cannot be read: {}", said(&error))),
    };
    let datatype = match dataset.datatype() {
        Ok(datatype) => datatype,
        Err(error) => return wrong(format!("its type cannot be read: {}", said(&error))),
    };
    let (dtype, swap) = match elements(&datatype) {
        Elements::Of(dtype, swap) => (dtype, swap),
        Elements::Other(what) => return Content::Other(what.to_owned()),
        Elements::Odd(what) => {
            let diagnostic =
                Diagnostic::error(FormatCode::UnsupportedDtype, "no tensor has this type of HDF5");
            let help = "save it as a float or an integer of 8 to 64 bits";
            return Content::Tensor(Err(Box::new(diagnostic.found(what).help(help))));
        }
        Elements::Opaque(size) => match opaque(&dataset, size, options) {
            Ok(dtype) => (dtype, 1),
            Err(diagnostic) => return Content::Tensor(Err(diagnostic)),
        },
    };
    match place(dataset, dtype, &shape, region, options.max_chunk) {
        Ok(Some(place)) => {
            Content::Tensor(Ok(Found { dtype, shape, swap, place, region: Arc::clone(region) }))
        }
        Ok(None) => Content::Other("nothing (a null dataspace)".to_owned()),
        Err(diagnostic) => Content::Tensor(Err(diagnostic)),
    }
}

fn wrong(message: String) -> Content<Tensor> {
    Content::Tensor(Err(Box::new(Diagnostic::error(FormatCode::Hdf5, message))))
}

/// Tells what bytes without a type are: by the attribute that Keras writes, or as the user says.
fn opaque(dataset: &Dataset, size: u32, options: &OpenOptions) -> Result<Dtype, Box<Diagnostic>> {
    let attributes = dataset.attrs().unwrap_or_default();
    let name = attributes.get(DTYPE).and_then(AttrValue::as_str);
    let fits = |dtype: &Dtype| dtype.byte_width() == Some(u64::from(size));
    if let Some(dtype) = name.and_then(named).filter(fits) {
        return Ok(dtype);
    }
    if let Some(dtype) = options.void_as.iter().copied().find(fits) {
        return Ok(dtype);
    }
    let message = format!("its elements are {size} opaque bytes each, without a type");
    let diagnostic = Diagnostic::error(FormatCode::OpaqueDtype, message);
    Err(Box::new(match size {
        1 => diagnostic
            .help("say what they are: most likely 8-bit floats, `--void-as f8-e4m3` or `--void-as f8-e5m2`"),
        2 => diagnostic.help("say what they are: most likely bfloat16, `--void-as bf16`"),
        _ => diagnostic.help("save it as a float or an integer of 8 to 64 bits"),
    }))
}

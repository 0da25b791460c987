//! What a checkpoint's headers say: names, types, shapes and where the bytes lie. No weights are held.

mod extent;
mod wrappers;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use crate::diag::Diagnostic;
use crate::dtype::Dtype;

pub use extent::{Bounds, Extent, ExtentContent, ExtentId, Place, Tiling};
pub use wrappers::Unwrapped;

/// One stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// Its name in the checkpoint.
    pub key: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first.
    pub shape: Vec<u64>,
    /// The distance between neighbours along each dimension, in elements.
    pub strides: Vec<u64>,
    /// The file that holds it, an index into [`Catalog::files`].
    pub file: usize,
    /// Where its first element begins, in bytes from the start of the file.
    pub offset: u64,
    /// The boxes in which it lies, if not in one place. Its file is then one that readers put together of these, in which
    /// all elements lie row by row.
    pub extents: Vec<Extent>,
}

impl TensorMeta {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        // Factors beside a zero may be of any size.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Returns the bytes that the elements take when stored without gaps.
    pub fn bytes(&self) -> u64 {
        self.dtype.byte_len(self.elements()).unwrap_or(0)
    }

    /// Returns the index of the element that lies so many elements behind the first; 0 along dimensions that repeat.
    pub(crate) fn index_at(&self, place: u64) -> Vec<u64> {
        index_at(&self.shape, &self.strides, place)
    }
}

fn index_at(shape: &[u64], strides: &[u64], place: u64) -> Vec<u64> {
    // The largest strides first, whatever the order of the dimensions: each steps over all that lies inside it.
    let mut by_stride: Vec<usize> =
        (0..shape.len()).filter(|&dim| shape[dim] > 1 && strides[dim] > 0).collect();
    by_stride.sort_by_key(|&dim| std::cmp::Reverse((strides[dim], shape[dim])));
    let mut rest = place;
    let mut index = vec![0; shape.len()];
    for dim in by_stride {
        index[dim] = rest / strides[dim];
        rest %= strides[dim];
    }
    index
}

/// Returns the strides of a row-major tensor, in elements.
pub fn row_major(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    strides
}

/// A checkpoint, as far as its headers tell.
///
/// ```
/// use qkvconv::{Dtype, OpenOptions, open};
///
/// let reader = open("tests/data/digits".as_ref(), &OpenOptions::default())?;
/// let catalog = reader.catalog();
/// let at = catalog.find("encoder.layers.0.self_attn.in_proj_weight").expect("it is there");
/// let tensor = &catalog.tensors[at];
/// assert_eq!((tensor.dtype, &tensor.shape[..]), (Dtype::F32, &[180, 60][..]));
/// # Ok::<(), qkvconv::Errors>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// What the user named: a file, an index or a folder.
    pub path: PathBuf,
    /// The files that hold tensors; one that holds some as they are and others in another form stands here several times.
    pub files: Vec<PathBuf>,
    /// The size of each file in bytes, as it was when its header was read.
    pub file_sizes: Vec<u64>,
    /// All tensors, in the order in which they lie in the files.
    pub tensors: Vec<TensorMeta>,
    /// The free-form metadata, merged over the files.
    pub metadata: BTreeMap<String, String>,
    /// Tensors that stand in the files and are of a kind that is not read (sparse, quantised, a type that is not held), each
    /// with the reason, an error that names it. They are not among [`Catalog::tensors`]; what needs one must say why it
    /// cannot have it.
    pub unread: Vec<(String, Diagnostic)>,
    /// What each file says of itself beside tensors, with the file that it stands in: the metadata of safetensors (an
    /// object of texts) and of GGUF (an object under its flat keys; arrays of up to 256 items), the numbers, texts, lists,
    /// dictionaries and attributes of objects in a pickle, whatever container holds the weights, and the configuration of
    /// a Keras model (`model_config`). At most 4096 facts and 1 MiB a file, those nearest to the top first.
    pub facts: Vec<(PathBuf, serde_json::Value)>,
    /// What is odd but harmless.
    pub warnings: Vec<Diagnostic>,
    by_key: HashMap<String, usize>,
    unwrapped: Option<Unwrapped>,
}

impl Catalog {
    /// Makes a catalog; `tensors` have distinct keys (the formats check that).
    pub fn new(path: PathBuf, files: Vec<(PathBuf, u64)>, tensors: Vec<TensorMeta>) -> Catalog {
        let by_key = tensors.iter().enumerate().map(|(index, tensor)| (tensor.key.clone(), index)).collect();
        let (files, file_sizes) = files.into_iter().unzip();
        let keys: Vec<&str> = tensors.iter().map(|tensor| tensor.key.as_str()).collect();
        let unwrapped = wrappers::unwrap(&keys);
        Catalog { path, files, file_sizes, tensors, by_key, unwrapped, ..Catalog::default() }
    }

    /// Returns the index of the tensor of that name.
    pub fn find(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// Returns the names without the wrappers of frameworks (`_fsdp_wrapped_module.`, `module.`); nothing where they have none.
    pub fn unwrapped(&self) -> Option<&Unwrapped> {
        self.unwrapped.as_ref()
    }

    /// Returns the groups of tied tensors: those that are one and the same place in the file, seen alike. Tensors that
    /// share a storage otherwise are views of it and not tied.
    pub fn ties(&self) -> Vec<Vec<usize>> {
        let place = |at: usize| (self.tensors[at].file, self.tensors[at].offset);
        // Of most tensors the place alone tells that they are not tied.
        let mut order: Vec<usize> =
            (0..self.tensors.len()).filter(|&at| self.tensors[at].elements() > 0).collect();
        order.sort_by_key(|&at| place(at));
        let mut ties: Vec<Vec<usize>> = Vec::new();
        for group in order.chunk_by(|&a, &b| place(a) == place(b)).filter(|group| group.len() > 1) {
            let mut alike: HashMap<_, Vec<usize>> = HashMap::default();
            for &at in group {
                let tensor = &self.tensors[at];
                alike.entry((tensor.dtype, &tensor.shape, &tensor.strides)).or_default().push(at);
            }
            ties.extend(alike.into_values().filter(|group| group.len() > 1));
        }
        ties.sort_unstable();
        ties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_one_place_seen_alike_are_tied() {
        let tensor = |key: &str, offset: u64, shape: &[u64]| TensorMeta {
            key: key.into(),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            strides: row_major(shape),
            file: 0,
            offset,
            extents: Vec::new(),
        };
        let tensors = vec![
            tensor("c", 40, &[2, 3]),
            tensor("a", 0, &[2, 5]),
            tensor("none", 40, &[0]),
            tensor("view", 40, &[6]),
            tensor("b", 40, &[2, 3]),
            tensor("row", 0, &[5]),
            tensor("a again", 0, &[2, 5]),
            tensor("c again", 40, &[2, 3]),
        ];
        let catalog = Catalog::new("m".into(), vec![("m".into(), 64)], tensors);
        assert_eq!(catalog.ties(), [vec![0, 4, 7], vec![1, 6]]);
    }

    #[test]
    fn a_place_in_a_view_has_its_index() {
        let index = |shape: &[u64], strides: &[u64], place: u64| {
            let (shape, strides) = (shape.to_vec(), strides.to_vec());
            TensorMeta {
                key: "w".into(),
                dtype: Dtype::F32,
                shape,
                strides,
                file: 0,
                offset: 0,
                extents: Vec::new(),
            }
            .index_at(place)
        };
        assert_eq!(index(&[2, 3, 5], &[15, 5, 1], 15 + 5 + 4), [1, 1, 4]);
        // Three of the five rows of a transposed matrix: the gap belongs to other tensors.
        assert_eq!(index(&[3, 4], &[1, 5], 5), [0, 1]);
        assert_eq!(index(&[3, 4], &[1, 5], 17), [2, 3]);
        assert_eq!(index(&[1, 3, 4], &[3, 1, 0], 2), [0, 2, 0]);
    }
}

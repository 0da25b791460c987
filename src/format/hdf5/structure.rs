//! What the structures of one HDF5 file tell: its groups, its links, and what the root says of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use hdf5_pure::{ChunkCacheConfig, File, FileAccessProperties, Group};
use serde_json::Value;

use super::links::{Link, links};
use super::region::{Region, Structures};
use super::walk::{Tensor, walk};
use super::{LAYER_NAMES, WEIGHT_NAMES, numbered, said};
use crate::format::root::Leaf;
use crate::format::{OpenOptions, facts};

/// What the structures of a file tell.
pub(super) struct Structure {
    pub(super) metadata: BTreeMap<String, String>,
    /// The texts among the root's attributes, those that are JSON parsed; the configuration of a model is one.
    pub(super) facts: Option<Value>,
    /// Whether the root names its layers.
    pub(super) ordered: bool,
    /// All that is in its groups.
    pub(super) leaves: Vec<Leaf<Tensor>>,
}

/// Reads the structures of one file, and the links in it, which are not followed.
pub(super) fn structure(
    region: &Arc<Region>,
    options: &OpenOptions,
) -> Result<(Structure, Vec<Link>), String> {
    // Each chunk is read once, so that none is kept.
    let cache = ChunkCacheConfig::new().with_max_bytes(0).with_max_slots(0);
    let properties = FileAccessProperties::new().with_chunk_cache(cache);
    let hdf5 = File::from_source_with_options(Structures(Arc::clone(region)), properties);
    let hdf5 = hdf5.map_err(|error| said(&error))?;
    let root = hdf5.root();
    let (metadata, facts, ordered) = attributes(&root)?;
    let superblock = hdf5.superblock();
    let links = links(&Structures(Arc::clone(region)), superblock)?;
    let places = links.iter().filter_map(|link| link.place).collect();
    region.hide(places, superblock.base_address.get(), usize::from(superblock.offset_size));
    let leaves = walk(root, region, options)?;
    Ok((Structure { metadata, facts, ordered, leaves }, links))
}

/// What the root's attributes say: the metadata, the facts, and whether they name its layers.
type Attributes = (BTreeMap<String, String>, Option<Value>, bool);

/// Returns the texts among the root's attributes, as metadata and as facts, and whether it names its layers. What describes a whole Keras model
/// (its classes, its optimizer) does not belong to weights and is no metadata.
fn attributes(root: &Group) -> Result<Attributes, String> {
    let all = root.attrs().map_err(|error| said(&error))?;
    let ordered = all.contains_key(LAYER_NAMES) || all.contains_key(&numbered(LAYER_NAMES, 0));
    let listed = |name: &str| name.starts_with(LAYER_NAMES) || name.starts_with(WEIGHT_NAMES);
    let of_model = |name: &str| matches!(name, "model_config" | "training_config");
    let mut texts: Vec<(&String, &str)> = all
        .iter()
        .filter(|(name, _)| !listed(name))
        .filter_map(|(name, value)| Some((name, value.as_str()?)))
        .collect();
    texts.sort_unstable();
    let parsed = texts.iter().filter_map(|(name, text)| Some(((*name).clone(), facts::parsed(text)?)));
    let facts = facts::of_entries(parsed);
    let own = texts.into_iter().filter(|(name, _)| !of_model(name));
    let metadata = own.map(|(name, text)| (name.clone(), text.to_owned())).collect();
    Ok((metadata, facts, ordered))
}

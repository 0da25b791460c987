//! Where the elements of a tensor lie, as the pickle describes it.

use super::element::Element;

/// A storage, as a persistent id names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StorageId {
    /// Its name.
    pub(super) key: String,
    /// The type of its elements.
    pub(super) element: Element,
    /// How many of them it has.
    pub(super) count: u64,
    /// The part of it that is meant, where not all of it: the first element and their number.
    pub(super) view: Option<(u64, u64)>,
}

/// A tensor, as the pickle describes it: nothing of it was checked against anything.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    /// Where its elements lie.
    pub(super) storage: StorageId,
    /// The type of its elements.
    pub(super) element: Element,
    /// Its first element, counted in elements of its own type.
    pub(super) offset: u64,
    /// Its shape.
    pub(super) shape: Vec<u64>,
    /// The distance between neighbours along each dimension, in elements.
    pub(super) strides: Vec<u64>,
}

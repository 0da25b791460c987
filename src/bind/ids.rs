//! Ids of what a binding counts: each an index into one list, and none to be taken for another.

use std::fmt;
use std::ops::{Index, IndexMut};

use indexmap::IndexMap;

use crate::mapping::{Mapping, Param};

/// Makes ids, and lets lists of what they count be indexed by them.
macro_rules! ids {
    ($($(#[$about:meta])* $vis:vis $id:ident)+) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
            $vis struct $id(u32);

            impl $id {
                /// Makes the id of what stands at that place; of each there are at most as many as tensors in a checkpoint.
                $vis const fn new(index: usize) -> $id {
                    $id(index as u32)
                }

                /// Returns its place in lists of its kind.
                $vis const fn index(self) -> usize {
                    self.0 as usize
                }
            }

            impl fmt::Debug for $id {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }

            impl<T> Index<$id> for Vec<T> {
                type Output = T;

                fn index(&self, id: $id) -> &T {
                    &self[id.index()]
                }
            }

            impl<T> IndexMut<$id> for Vec<T> {
                fn index_mut(&mut self, id: $id) -> &mut T {
                    &mut self[id.index()]
                }
            }
        )+
    };
}

ids! {
    /// A parameter: an index into [`Mapping::params`](crate::mapping::Mapping::params) and
    /// [`Bound::params`](super::Bound::params).
    pub ParamId
    /// A module: an index into [`Bound::modules`](super::Bound::modules).
    pub ModuleId
    /// A parameter of one module: an index into [`Bound::instances`](super::Bound::instances).
    pub InstanceId
    /// A source tensor that holds parameters: an index into [`Bound::sources`](super::Bound::sources), not into the
    /// catalog.
    pub SourceId
    /// An axis of one of the two layouts, by its name.
    pub(crate) AxisId
}

impl Index<ParamId> for IndexMap<String, Param> {
    type Output = Param;

    fn index(&self, id: ParamId) -> &Param {
        &self[id.index()]
    }
}

impl ParamId {
    /// Returns the parameter of that name.
    pub(super) fn find(mapping: &Mapping, name: &str) -> Option<ParamId> {
        mapping.params.get_index_of(name).map(ParamId::new)
    }

    /// Returns its name.
    pub(super) fn name(self, mapping: &Mapping) -> &str {
        mapping.params.get_index(self.index()).map_or("", |(name, _)| name)
    }
}

//! What a checkpoint holds, told from its headers: kinds of tensors in words, where each head lies, pictures.

mod head;
mod kinds;
mod picture;
mod rotary;
mod seen;
mod sizes;
mod words;

pub use head::{Head, elements};
pub use kinds::{Kind, Part, kind, kinds, part};
pub use picture::{Cell, Picture, draw, letter};
pub use rotary::{Rotary, pair_order, rotary};
pub use seen::{Element, Seen, ranges, runs};
pub use sizes::{deduce, example, of_config};
pub(crate) use sizes::{length, product};
pub use words::{describe, dim_names, group_words};

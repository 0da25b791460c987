//! What a checkpoint holds, told from its headers: kinds of tensors in words, where each head lies, pictures.

mod kinds;
mod picture;
mod seen;
mod words;

pub use kinds::{Kind, Part, kinds, sizes_of};
pub use picture::{Cell, Picture, draw, letter};
pub use seen::{Element, Seen, head_axis, ranges};
pub use words::{describe, dim_names};

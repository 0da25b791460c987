//! What a checkpoint holds, told from its headers: kinds of tensors in words, and where each head lies.

mod picture;
mod place;
mod words;

pub use picture::{Axes, Cell, Picture, draw};
pub use place::{Place, Range, place};
pub use words::{describe, dim_names};

//! Flax's msgpack (google/flax, `flax/serialization.py`): nested maps whose leaves are arrays, each an extension of type 1
//! that holds the shape, the name of the type and the bytes.

mod chunked;
mod read;
#[cfg(test)]
mod tests;
mod types;
mod walk;
pub(super) mod write;

pub(super) use read::read;

/// The extension type of an array (`_MsgpackExtType` in google/flax, `flax/serialization.py`).
const ARRAY: i8 = 1;
/// That of a Python complex number.
const COMPLEX: i8 = 2;
/// That of a NumPy scalar, which is stored as an array without dimensions.
const SCALAR: i8 = 3;
/// How deep maps and lists may be nested.
const DEEPEST: usize = 128;

//! The messages in an index (tensorflow/tensorflow, `tensorflow/core/protobuf/tensor_bundle.proto`,
//! `tensorflow/core/framework/{tensor_shape,tensor_slice,versions}.proto`), as far as they are needed.

use crate::dtype::Dtype;

/// What the index says of all data files; it stands under the empty key.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    /// The number of data files.
    #[prost(int32, tag = "1")]
    pub(super) shards: i32,
    /// The order of the bytes of each element: 0 little-endian, 1 big-endian.
    #[prost(int32, tag = "2")]
    pub(super) endianness: i32,
    /// Who can read it.
    #[prost(message, optional, tag = "3")]
    pub(super) version: Option<Version>,
}

/// The versions of the format.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Version {
    /// The version that wrote it.
    #[prost(int32, tag = "1")]
    pub(super) producer: i32,
    /// The oldest version that reads it; 1 is the only one so far.
    #[prost(int32, tag = "2")]
    pub(super) min_consumer: i32,
}

/// A tensor, or a slice of one.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Entry {
    /// The type of its elements, for [`held`].
    #[prost(int32, tag = "1")]
    pub(super) dtype: i32,
    /// Its shape.
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<Shape>,
    /// The number of its data file.
    #[prost(int32, tag = "3")]
    pub(super) shard: i32,
    /// Where it begins in the data file, in bytes.
    #[prost(int64, tag = "4")]
    pub(super) offset: i64,
    /// Its size in bytes.
    #[prost(int64, tag = "5")]
    pub(super) size: i64,
    /// The masked CRC-32C of its bytes as they lie there.
    #[prost(fixed32, tag = "6")]
    pub(super) crc: u32,
    /// The slices that it is saved in; then there is an entry for each, and the place above says nothing.
    #[prost(message, repeated, tag = "7")]
    pub(super) slices: Vec<Slice>,
}

/// A shape.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Shape {
    /// The dimensions, slowest first.
    #[prost(message, repeated, tag = "2")]
    pub(super) dims: Vec<Dim>,
    /// Whether nothing is known, not even the number of dimensions.
    #[prost(bool, tag = "3")]
    pub(super) unknown_rank: bool,
}

/// One dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Dim {
    /// Its size; -1 for one that is not known.
    #[prost(int64, tag = "1")]
    pub(super) size: i64,
}

/// A part of a tensor: a range along each dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Slice {
    /// The ranges.
    #[prost(message, repeated, tag = "1")]
    pub(super) extents: Vec<Extent>,
}

/// A range along one dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Extent {
    /// Where it begins.
    #[prost(int64, tag = "1")]
    pub(super) start: i64,
    /// Its length; all of the dimension where none is given.
    #[prost(int64, optional, tag = "2")]
    pub(super) length: Option<i64>,
}

/// What becomes of the elements of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// They are held as they are.
    As(Dtype),
    /// They are no numbers: the tensor is passed over as what is said.
    Passed(&'static str),
    /// They are numbers of a type that is not known here, with TensorFlow's name for it.
    Not(&'static str),
}

/// TensorFlow's number for text.
pub(super) const TEXT: i32 = 7;

/// Returns TensorFlow's number for a type, if it has one.
pub(super) fn number_of(dtype: Dtype) -> Option<i32> {
    (1..64).find(|&number| held(number) == Some(Held::As(dtype)))
}

/// The objects of which a checkpoint holds the state (tensorflow/tensorflow,
/// `tensorflow/core/protobuf/trackable_object_graph.proto`).
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Graph {
    /// The objects; the first is the root.
    #[prost(message, repeated, tag = "1")]
    pub(super) nodes: Vec<Object>,
}

/// An object.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Object {
    /// The objects that are its attributes.
    #[prost(message, repeated, tag = "1")]
    pub(super) children: Vec<Child>,
    /// The tensors that it holds.
    #[prost(message, repeated, tag = "2")]
    pub(super) attributes: Vec<Attribute>,
    /// Whether it, or an object in it, holds a tensor.
    #[prost(message, optional, tag = "5")]
    pub(super) has_values: Option<Flag>,
}

/// An object in another.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Child {
    /// Its number among the objects.
    #[prost(int32, tag = "1")]
    pub(super) node: i32,
    /// What the other calls it.
    #[prost(string, tag = "2")]
    pub(super) name: String,
}

/// A tensor of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Attribute {
    /// What the object calls it.
    #[prost(string, tag = "1")]
    pub(super) name: String,
    /// The key of its entry.
    #[prost(string, tag = "3")]
    pub(super) key: String,
}

/// `google.protobuf.BoolValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Flag {
    /// The value.
    #[prost(bool, tag = "1")]
    pub(super) value: bool,
}

/// Returns what a number of TensorFlow's `DataType` stands for (tensorflow/tensorflow,
/// `tensorflow/core/framework/types.proto`).
pub(super) const fn held(dtype: i32) -> Option<Held> {
    Some(match dtype {
        1 => Held::As(Dtype::F32),
        2 => Held::As(Dtype::F64),
        3 => Held::As(Dtype::I32),
        4 => Held::As(Dtype::U8),
        5 => Held::As(Dtype::I16),
        6 => Held::As(Dtype::I8),
        TEXT => Held::Passed("text"),
        8 => Held::As(Dtype::C64),
        9 => Held::As(Dtype::I64),
        10 => Held::As(Dtype::Bool),
        11 => Held::Not("qint8"),
        12 => Held::Not("quint8"),
        13 => Held::Not("qint32"),
        14 => Held::As(Dtype::BF16),
        15 => Held::Not("qint16"),
        16 => Held::Not("quint16"),
        17 => Held::As(Dtype::U16),
        18 => Held::Not("complex128"),
        19 => Held::As(Dtype::F16),
        20 => Held::Passed("a resource"),
        21 => Held::Passed("a variant"),
        22 => Held::As(Dtype::U32),
        23 => Held::As(Dtype::U64),
        24 => Held::As(Dtype::F8E5M2),
        25 => Held::As(Dtype::F8E4M3),
        26 => Held::As(Dtype::F8E4M3Fnuz),
        27 => Held::Not("float8_e4m3b11fnuz"),
        28 => Held::As(Dtype::F8E5M2Fnuz),
        29 => Held::Not("int4"),
        30 => Held::Not("uint4"),
        31 => Held::Not("int2"),
        32 => Held::Not("uint2"),
        33 => Held::Not("float4_e2m1fn"),
        _ => return None,
    })
}

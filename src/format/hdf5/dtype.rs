//! What the elements of a dataset are.

use hdf5_pure::{
    CompoundMember, Datatype, DatatypeByteOrder, EnumMember, FixedPointLayout, FloatingPointLayout,
};

use crate::dtype::Dtype;
use crate::format::shown;

/// The elements of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Elements {
    /// Elements of a type, and the bytes to reverse in each where they are big-endian, else 1.
    Of(Dtype, usize),
    /// Bytes of that number without a type.
    Opaque(u32),
    /// Nothing that a tensor could hold, in words: text, records.
    Other(&'static str),
    /// Numbers of a kind that no other format has, in words.
    Odd(String),
}

/// Tells what a datatype's elements are.
pub(super) fn elements(datatype: &Datatype) -> Elements {
    let odd = || Elements::Odd(shown(&datatype.to_string()));
    match datatype {
        Datatype::FixedPoint { size, byte_order, layout } => {
            integer(*size, layout).map_or_else(odd, |dtype| ordered(dtype, *size, *byte_order, datatype))
        }
        Datatype::FloatingPoint { size, byte_order, layout } => {
            float(*size, layout).map_or_else(odd, |dtype| ordered(dtype, *size, *byte_order, datatype))
        }
        Datatype::Opaque { size, .. } => Elements::Opaque(*size),
        Datatype::Enumeration { size: 1, members, .. } if is_bool(members) => Elements::Of(Dtype::Bool, 1),
        Datatype::Compound { size: 8, members } => complex(members).unwrap_or(Elements::Other("records")),
        Datatype::Compound { .. } => Elements::Other("records"),
        Datatype::String { .. } => Elements::Other("text"),
        Datatype::VariableLength { .. } => Elements::Other("text or lists"),
        Datatype::Reference { .. } => Elements::Other("references"),
        Datatype::Time { .. } => Elements::Other("times"),
        _ => odd(),
    }
}

fn ordered(dtype: Dtype, size: u32, order: DatatypeByteOrder, datatype: &Datatype) -> Elements {
    match order {
        DatatypeByteOrder::LittleEndian => Elements::Of(dtype, 1),
        // Datatypes of one byte say either.
        DatatypeByteOrder::BigEndian => Elements::Of(dtype, size as usize),
        DatatypeByteOrder::Vax => Elements::Odd(shown(&datatype.to_string())),
    }
}

fn integer(size: u32, layout: &FixedPointLayout) -> Option<Dtype> {
    if layout.bit_offset != 0 || u32::from(layout.bit_precision) != size.checked_mul(8)? {
        return None;
    }
    Some(match (size, layout.signed) {
        (1, false) => Dtype::U8,
        (1, true) => Dtype::I8,
        (2, false) => Dtype::U16,
        (2, true) => Dtype::I16,
        (4, false) => Dtype::U32,
        (4, true) => Dtype::I32,
        (8, false) => Dtype::U64,
        (8, true) => Dtype::I64,
        _ => return None,
    })
}

/// Floats by the bits of their parts, each directly above the next; the last ones are those of HDF5 2.0
/// (HDFGroup/hdf5, `src/H5T.c`: `H5T_FLOAT_BFLOAT16LE`, `H5T_FLOAT_F8E4M3`, `H5T_FLOAT_F8E5M2`).
const FLOATS: &[(u32, u8, u8, u32, Dtype)] = &[
    (2, 5, 10, 15, Dtype::F16),
    (4, 8, 23, 127, Dtype::F32),
    (8, 11, 52, 1023, Dtype::F64),
    (2, 8, 7, 127, Dtype::BF16),
    (1, 4, 3, 7, Dtype::F8E4M3),
    (1, 5, 2, 15, Dtype::F8E5M2),
];

fn float(size: u32, layout: &FloatingPointLayout) -> Option<Dtype> {
    let known = FLOATS.iter().find(|(bytes, exponent, mantissa, bias, _)| {
        *bytes == size
            && layout.bit_offset == 0
            && u32::from(layout.bit_precision) == 8 * bytes
            && (layout.mantissa_location, layout.mantissa_size) == (0, *mantissa)
            && (layout.exponent_location, layout.exponent_size) == (*mantissa, *exponent)
            && layout.exponent_bias == *bias
    });
    known.map(|(.., dtype)| *dtype)
}

/// h5py's truth values: an enumeration of one byte with these two members. (h5py/h5py, `h5py/h5t.pyx`, `_c_bool`)
fn is_bool(members: &[EnumMember]) -> bool {
    let has =
        |name: &str, value: u8| members.iter().any(|member| member.name == name && member.value == [value]);
    members.len() == 2 && has("FALSE", 0) && has("TRUE", 1)
}

/// h5py's complex numbers: a record of two floats. (h5py/h5py, `h5py/h5t.pyx`, `_c_complex`)
fn complex(members: &[CompoundMember]) -> Option<Elements> {
    let [real, imaginary] = members else { return None };
    let named = (real.name.as_str(), imaginary.name.as_str()) == ("r", "i");
    if !named || (real.byte_offset, imaginary.byte_offset) != (0, 4) || real.datatype != imaginary.datatype {
        return None;
    }
    match elements(&real.datatype) {
        Elements::Of(Dtype::F32, swap) => Some(Elements::Of(Dtype::C64, swap)),
        _ => None,
    }
}

/// Returns the type that the attribute `dtype` of an opaque dataset names: Keras 3 writes `bfloat16`
/// (keras-team/keras, `keras/src/saving/saving_lib.py`); the others are ml_dtypes' names.
pub(super) fn named(name: &str) -> Option<Dtype> {
    match name {
        "bfloat16" => Some(Dtype::BF16),
        "float8_e4m3fn" => Some(Dtype::F8E4M3),
        "float8_e5m2" => Some(Dtype::F8E5M2),
        _ => None,
    }
}

/// Returns the datatype message of elements of a type as h5py writes it (HDF Group, "HDF5 File Format Specification
/// Version 3.0", IV.A.2.d), where it has one; bfloat16 are opaque bytes, which Keras 3 alone understands.
pub(super) fn encoded(dtype: Dtype, keras3: bool) -> Option<Vec<u8>> {
    let bytes = u8::try_from(dtype.byte_width()?).ok()?;
    let number = |signed: bool| vec![0x10, u8::from(signed) << 3, 0, 0, bytes, 0, 0, 0, 0, 0, bytes * 8, 0];
    Some(match dtype {
        Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => number(true),
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => number(false),
        Dtype::F16 | Dtype::F32 | Dtype::F64 => {
            let (_, exponent, mantissa, bias, _) = FLOATS.iter().find(|(.., float)| *float == dtype)?;
            // The sign is the highest bit, and the mantissa's first bit is not stored.
            let mut body = vec![0x11, 0x20, bytes * 8 - 1, 0, bytes, 0, 0, 0, 0, 0, bytes * 8, 0];
            body.extend_from_slice(&[*mantissa, *exponent, 0, *mantissa]);
            body.extend_from_slice(&bias.to_le_bytes());
            body
        }
        Dtype::Bool => {
            let mut body = vec![0x18, 2, 0, 0, 1, 0, 0, 0];
            body.extend_from_slice(&[0x10, 8, 0, 0, 1, 0, 0, 0, 0, 0, 8, 0]);
            body.extend_from_slice(b"FALSE\0\0\0TRUE\0\0\0\0\0\x01");
            body
        }
        Dtype::BF16 if keras3 => vec![0x15, 0, 0, 0, 2, 0, 0, 0],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let layout = |exponent: u8, mantissa: u8, bias: u32| FloatingPointLayout {
            bit_offset: 0,
            bit_precision: u16::from(1 + exponent + mantissa),
            exponent_location: mantissa,
            exponent_size: exponent,
            mantissa_location: 0,
            mantissa_size: mantissa,
            exponent_bias: bias,
        };
        assert_eq!(float(1, &layout(4, 3, 7)), Some(Dtype::F8E4M3));
        assert_eq!(float(2, &layout(8, 7, 127)), Some(Dtype::BF16));
        assert_eq!(float(2, &layout(8, 7, 126)), None);
        assert_eq!(float(4, &layout(8, 7, 127)), None);
        assert_eq!(encoded(Dtype::BF16, false), None);
        assert_eq!(encoded(Dtype::F8E4M3, true), None);
        let half = [0x11, 0x20, 15, 0, 2, 0, 0, 0, 0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0];
        assert_eq!(encoded(Dtype::F16, false).as_deref(), Some(&half[..]));
    }
}

//! Zip archives (PKWARE, `APPNOTE.TXT`), as PyTorch, NumPy and Keras use them.

mod end;
pub(super) mod read;
pub(super) mod write;

/// The signature of a local file header.
const LOCAL: u32 = 0x0403_4b50;
/// The signature of a central directory header.
const CENTRAL: u32 = 0x0201_4b50;
/// The signature of the end of central directory record.
const END: u32 = 0x0605_4b50;
/// The signature of the zip64 end of central directory record.
const END64: u32 = 0x0606_4b50;
/// The signature of the zip64 end of central directory locator.
const LOCATOR: u32 = 0x0706_4b50;
/// The signature of the digital signature of the directory.
const SIGNATURE: u32 = 0x0505_4b50;
/// The id of the zip64 extra field.
const ZIP64: u16 = 0x0001;

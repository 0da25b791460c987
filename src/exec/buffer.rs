//! Byte buffers aligned for every element type.

/// A reusable buffer; its memory is touched, and so counted by the system, only as far as it is used.
#[derive(Debug)]
pub(super) struct Buffer {
    words: Vec<u64>,
}

impl Buffer {
    /// Makes a buffer of at least that many bytes.
    pub(super) fn new(bytes: u64) -> Buffer {
        Buffer { words: vec![0; bytes.div_ceil(8) as usize] }
    }

    /// Returns the bytes; their number is a multiple of 8 and they are aligned to 8.
    pub(super) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// Returns the bytes for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }
}

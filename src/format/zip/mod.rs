//! Zip archives (PKWARE, `APPNOTE.TXT`), as PyTorch, NumPy and Keras use them.

pub(super) mod read;

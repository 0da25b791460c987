//! The JSON Schema of mapping files.

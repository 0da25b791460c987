//! The integration tests: what a user sees goes through the binary, properties go through the library.

mod architecture;
mod cases;
mod cases_formats;
mod cli;
mod companions;
mod corpus;
mod errors;
mod evidence;
mod families;
mod format_gguf;
mod format_hdf5;
mod format_msgpack;
mod format_numpy;
mod format_pytorch;
mod format_tensorflow;
mod inspect;
mod kit;
mod layout_pairs;
mod library;
mod notation;
mod pairs;
mod property;
mod sets;
mod strided;
mod trust;

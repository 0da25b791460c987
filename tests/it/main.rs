//! The integration tests: what a user sees goes through the binary, properties go through the library.

mod architecture;
mod authoring;
mod cases;
mod cases_formats;
mod check;
mod cli;
mod companions;
mod corpus;
mod draft;
mod errors;
mod evidence;
mod families;
mod format_gguf;
mod format_hdf5;
mod format_msgpack;
mod format_numpy;
mod format_pytorch;
mod format_tensorflow;
mod guide;
mod infer;
mod inspect;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod interrupt;
mod kit;
mod layout_pairs;
mod library;
mod notation;
mod pairs;
mod property;
mod schema;
mod sets;
mod show;
mod stored;
mod strided;
mod trace;
mod trust;

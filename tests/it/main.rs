//! The integration tests: what a user sees goes through the binary, properties go through the library.

mod architecture;
mod cases;
mod cli;
mod companions;
mod errors;
mod families;
mod format_numpy;
mod format_tensorflow;
mod kit;
mod pairs;
mod property;
mod sets;

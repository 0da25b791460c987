//! Believing a conversion: checks that share no code with what made it.
//!
//! [`readback`] reads both files again and compares every element through a second, naive reading of the two layouts'
//! expressions. It imports nothing of `plan` and `exec`, and of `bind` only sizes and names.

mod agreement;
mod compare;
pub mod config;
mod equal;
pub mod forward;
pub(crate) mod naive;
pub mod readback;
mod tables;

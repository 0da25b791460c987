//! What the conversion of values loses.

/// What conversions of one tensor lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Losses {
    /// Finite values that became infinite.
    pub(super) overflows: u64,
    /// The largest magnitude among them, before rounding.
    pub(super) largest: f64,
    /// Values that became zero.
    pub(super) underflows: u64,
    /// The largest difference between a finite value before and after rounding.
    pub(super) error: f64,
}

impl Losses {
    /// Adds another part of the same tensor.
    pub(super) fn add(&mut self, other: Losses) {
        self.overflows += other.overflows;
        self.largest = self.largest.max(other.largest);
        self.underflows += other.underflows;
        self.error = self.error.max(other.error);
    }
}

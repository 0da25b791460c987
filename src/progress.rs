//! Who watches long work, and may stop it.

/// Who watches long work.
pub trait Progress: Sync {
    /// Takes note that so many more bytes are done.
    fn advance(&self, bytes: u64);

    /// Returns whether to stop; asked before each piece of work.
    fn cancelled(&self) -> bool;
}

/// Nobody watches, and nothing stops the work: `&()`.
impl Progress for () {
    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        false
    }
}

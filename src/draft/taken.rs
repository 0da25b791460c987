//! Names that are given once.

use std::collections::BTreeMap;

/// The names that are given, each with the last number behind it.
#[derive(Debug, Default)]
pub(super) struct Taken(BTreeMap<String, u64>);

impl Taken {
    /// Returns whether a name is given already.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Gives a name: the wanted one, or with the first number behind it that is free.
    pub(super) fn give(&mut self, wanted: &str, joint: &str) -> String {
        let mut name = wanted.to_owned();
        while self.has(&name) {
            let number = self.0.entry(wanted.to_owned()).or_insert(1);
            *number += 1;
            name = format!("{wanted}{joint}{number}");
        }
        self.0.insert(name.clone(), 1);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_each_other() {
        let mut taken = Taken::default();
        let given: Vec<String> = ["e", "e2", "e", "e"].iter().map(|name| taken.give(name, "")).collect();
        assert_eq!(given, ["e", "e2", "e3", "e4"]);
        assert_eq!(taken.give("n64", "_"), "n64");
        assert_eq!(taken.give("n64", "_"), "n64_2");
    }
}

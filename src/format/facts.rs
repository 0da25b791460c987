//! What a file says of itself beside tensors, as JSON of bounded size.

use serde_json::{Map, Value};

use super::json::without_mark;

/// The most facts of one file.
const MOST_FACTS: usize = 4096;

/// The most bytes that the keys and the texts of one file's facts may take.
const MOST_BYTES: usize = 1 << 20;

/// The most items of a list that is a fact; longer ones are data, such as a vocabulary or the state of a random generator.
pub(super) const LONGEST_LIST: usize = 256;

/// How much of a file's facts may still be kept.
#[derive(Debug)]
pub(super) struct Budget {
    facts: usize,
    bytes: usize,
}

impl Budget {
    /// Returns the budget of one file.
    pub(super) fn new() -> Budget {
        Budget { facts: MOST_FACTS, bytes: MOST_BYTES }
    }

    /// Returns whether a fact whose key and text take so many bytes is kept, and takes it off.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        match (self.facts.checked_sub(1), self.bytes.checked_sub(bytes)) {
            (Some(facts), Some(bytes)) => {
                (self.facts, self.bytes) = (facts, bytes);
                true
            }
            _ => false,
        }
    }
}

/// Returns entries as a map of facts, as far as the budget goes; nothing where there are none.
pub(super) fn of_entries(entries: impl IntoIterator<Item = (String, Value)>) -> Option<Value> {
    let mut budget = Budget::new();
    let mut map = Map::new();
    for (key, value) in entries {
        if budget.take(key.len() + size(&value)) {
            map.insert(key, value);
        }
    }
    (!map.is_empty()).then_some(Value::Object(map))
}

/// Returns a text as the JSON that it is, or as a text; a JSON text of more than the budget is no fact.
pub(super) fn parsed(text: &str) -> Option<Value> {
    let value = serde_json::from_str(without_mark(text));
    (text.len() <= MOST_BYTES).then(|| value.unwrap_or_else(|_| Value::String(text.to_owned())))
}

/// Returns about how many bytes a value takes beyond its place.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 8 + size(item)).sum(),
        Value::Object(entries) => entries.iter().map(|(key, value)| key.len() + 8 + size(value)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn facts_are_bounded_by_number_and_by_size() {
        let many = (0..10_000).map(|at| (at.to_string(), json!(at)));
        let facts = of_entries(many).expect("has facts");
        assert_eq!((facts.as_object().map(Map::len), &facts["4095"]), (Some(MOST_FACTS), &json!(4095)));
        // What does not fit is left out, and what follows is not.
        let large = ("a".to_owned(), json!(["x".repeat(MOST_BYTES)]));
        assert_eq!(of_entries([large, ("b".to_owned(), json!(1))]), Some(json!({ "b": 1 })));
        assert_eq!(of_entries([]), None);
    }

    #[test]
    fn a_text_is_the_json_that_it_is() {
        assert_eq!(parsed("\u{feff}{\"a\": 1}"), Some(json!({ "a": 1 })));
        assert_eq!(parsed("a text"), Some(json!("a text")));
    }
}

//! JSON that keeps what `serde_json::Value` hides: a key that stands twice.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// A JSON value; a map keeps all its entries, in their order.
#[derive(Debug)]
pub(super) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, an integer where it is written as one and fits 64 bits.
    Number(Number),
    /// A string, unescaped.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// A map.
    Map(Vec<(String, Json)>),
}

impl Json {
    /// Parses a text that must be a map, or says what it is instead, completing "the header …".
    ///
    /// The memory is bounded by a small multiple of the text's length.
    pub(super) fn parse_map(text: &str) -> Result<Vec<(String, Json)>, String> {
        match serde_json::from_str(text) {
            Ok(Json::Map(entries)) => Ok(entries),
            Ok(_) => Err("is not a JSON map".to_owned()),
            Err(error) => Err(format!("is not JSON: {error}")),
        }
    }

    /// Returns the value as a non-negative integer.
    pub(super) fn as_u64(&self) -> Option<u64> {
        if let Json::Number(number) = self { number.as_u64() } else { None }
    }

    /// Returns the value as non-negative integers.
    pub(super) fn as_u64_list(&self) -> Option<Vec<u64>> {
        if let Json::List(items) = self { items.iter().map(Json::as_u64).collect() } else { None }
    }

    /// Returns the value as JSON for a message, cut off where it is long.
    pub(super) fn brief(&self) -> String {
        let mut text = String::new();
        self.print(&mut text);
        text
    }

    fn print(&self, text: &mut String) {
        const LONGEST: usize = 80;
        let mut put = |part: &str| text.push_str(part);
        match self {
            Json::Null => put("null"),
            Json::Bool(value) => put(if *value { "true" } else { "false" }),
            Json::Number(number) => put(&number.to_string()),
            Json::Text(value) => put(&format!("\"{}\"", super::shown(value))),
            Json::Map(_) => put("{…}"),
            Json::List(items) => {
                text.push('[');
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        text.push_str(", ");
                    }
                    if text.len() > LONGEST {
                        text.push('…');
                        break;
                    }
                    item.print(text);
                }
                text.push(']');
            }
        }
    }
}

/// Returns the keys that stand more than once, after unescaping, each as often as it stands too much.
pub(super) fn repeated<T>(entries: &[(String, T)]) -> Vec<&str> {
    // Not FxHash: the keys come from a file that may have been made to collide.
    let mut seen = HashSet::with_capacity(entries.len());
    entries.iter().map(|(key, _)| key.as_str()).filter(|&key| !seen.insert(key)).collect()
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Json {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn keys_that_are_equal_after_unescaping_are_seen_twice() {
        let entries = Json::parse_map(r#"{"w": 1, "\u0077": 2, "v": 3}"#).expect("a map");
        assert_eq!(repeated(&entries), ["w"]);
    }

    #[test]
    fn only_non_negative_integers_are_sizes() {
        for (text, size) in
            [("7", Some(7)), ("-1", None), ("-0", None), ("1.0", None), ("1e3", None), ("\"1\"", None)]
        {
            assert_eq!(parse(text).as_u64(), size, "{text}");
        }
        assert_eq!(parse("18446744073709551616").as_u64(), None);
    }

    #[test]
    fn values_are_shown_briefly() {
        assert_eq!(parse("[-16, 0, null]").brief(), "[-16, 0, null]");
        let long = format!("[{}0]", "0,".repeat(1000));
        assert!(parse(&long).brief().len() < 100);
    }
}

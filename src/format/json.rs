//! JSON that keeps what `serde_json::Value` hides: a key that stands twice.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// A JSON value; a map keeps all its entries, in their order.
#[derive(Debug)]
pub(super) enum Json<'t> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, an integer where it is written as one and fits 64 bits.
    Number(Number),
    /// A string, unescaped; a part of the text where nothing is escaped in it.
    Text(Cow<'t, str>),
    /// A list.
    List(Vec<Json<'t>>),
    /// A map.
    Map(Vec<Entry<'t>>),
}

/// A key of a map with its value.
pub(super) type Entry<'t> = (Cow<'t, str>, Json<'t>);

impl<'t> Json<'t> {
    /// Parses a text that must be a map, or says what it is instead, completing "the header …".
    ///
    /// The memory is bounded by a small multiple of the text's length.
    pub(super) fn parse_map(text: &'t str) -> Result<Vec<Entry<'t>>, String> {
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

/// Returns a JSON text without the byte order mark that some editors put before it; it is no part of the JSON
/// (RFC 8259, section 8.1).
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns the keys that stand more than once, after unescaping, each as often as it stands too much.
pub(super) fn repeated<'e, T>(entries: &'e [(Cow<'_, str>, T)]) -> Vec<&'e str> {
    // A map of a few keys, as each tensor has one, needs no table.
    if entries.len() < 8 {
        let stands_before = |at: usize| entries[..at].iter().any(|(other, _)| *other == entries[at].0);
        return (0..entries.len()).filter(|&at| stands_before(at)).map(|at| &*entries[at].0).collect();
    }
    let mut seen = HashSet::with_capacity(entries.len());
    entries.iter().map(|(key, _)| &**key).filter(|&key| !seen.insert(key)).collect()
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// A key of a map.
struct Key<'t>(Cow<'t, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key<'de>, D::Error> {
        match deserializer.deserialize_str(JsonVisitor)? {
            Json::Text(key) => Ok(Key(key)),
            _ => Err(serde::de::Error::custom("a key is a string")),
        }
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json<'de>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json<'de>, A::Error> {
        let mut entries = Vec::new();
        while let Some((Key(key), value)) = access.next_entry()? {
            entries.push((key, value));
        }
        Ok(Json::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Json<'_> {
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

//! What a field of a mapping file is: its name, what may stand there, and what the JSON Schema says of it.

use super::choices::Choice;
use super::pattern::{self, Pattern};

/// A field of an object.
#[derive(Debug)]
pub(super) struct Field {
    /// Its name.
    pub(super) name: &'static str,
    /// What it means, for an author: sentences that an editor shows.
    pub(super) about: &'static str,
    /// What may stand there.
    pub(super) value: Value,
    /// A value as JSON, shown where the field is missing.
    pub(super) example: &'static str,
    /// Whether it must be there.
    pub(super) required: bool,
    /// Whether null removes what `like` would take over.
    pub(super) removable: bool,
}

/// What may stand in a field.
#[derive(Debug)]
pub(super) enum Value {
    /// Any text.
    Text,
    /// A text of a grammar.
    Pattern(&'static Pattern),
    /// One of a closed set of texts.
    Choice(&'static [Choice]),
    /// `true` or `false`; `false` where it is left out.
    Flag,
    /// A whole number from 0.
    Whole,
    /// This number alone.
    Exactly(u64),
    /// Any number, and what stands for it where it is left out, if that is always the same.
    Number(Option<f64>),
    /// Nothing: removes what `like` would take over.
    Null,
    /// Anything that a config file can hold.
    Json,
    /// A list.
    List(&'static Value),
    /// An object of known fields.
    Object(&'static Object),
    /// An object of freely named entries: what may be a name, and what each entry is.
    Entries(Names, &'static Value),
    /// Rules by the names of tensors, or under a prefix of names: what each is.
    Rules(&'static Value),
    /// One of several.
    AnyOf(&'static [Value]),
    /// One attention, or several with names.
    Forwards(&'static Object),
}

/// What an entry may be called.
#[derive(Debug)]
pub(super) enum Names {
    /// Anything.
    Any,
    /// A text of a grammar.
    Pattern(&'static Pattern),
    /// One of a closed set.
    Choice(&'static [Choice]),
}

/// An object of known fields.
#[derive(Debug)]
pub(super) struct Object {
    /// What the schema calls it.
    pub(super) name: &'static str,
    /// Its fields.
    pub(super) fields: &'static [Field],
}

/// Makes a field that may be left out.
pub(super) const fn field(
    name: &'static str,
    about: &'static str,
    value: Value,
    example: &'static str,
) -> Field {
    Field { name, about, value, example, required: false, removable: false }
}

/// Makes a field that must be there.
pub(super) const fn required(
    name: &'static str,
    about: &'static str,
    value: Value,
    example: &'static str,
) -> Field {
    Field { name, about, value, example, required: true, removable: false }
}

/// Makes a field of a layout that null removes.
pub(super) const fn removable(
    name: &'static str,
    about: &'static str,
    value: Value,
    example: &'static str,
) -> Field {
    Field { name, about, value, example, required: false, removable: true }
}

/// A number, or a formula as text.
pub(super) const FORMULA: &[Value] = &[Value::Pattern(&pattern::FORMULA), Value::Number(None)];

/// A template for names.
pub(super) const TEMPLATE: Value = Value::Pattern(&pattern::TEMPLATE);

/// Entries that are called by axes.
pub(super) const AXIS_NAMES: Names = Names::Pattern(&pattern::AXIS);

//! From nested dictionaries, lists and objects to the tensors in them, each with the names on the way to it.

use std::collections::HashSet;

use indexmap::IndexMap;

use super::rebuild::{self, Described, describe};
use super::value::{Heap, Id, Node, Object, Value};
use crate::diag::{Diagnostic, FormatCode};
use crate::format::root::{Content, Leaf};
use crate::format::shown;

/// How deep containers may be nested.
const DEEPEST: usize = 128;

/// The most bytes that all names on the way to all tensors may take, and the work on the way: shared references could make
/// more tensors than anyone can count out of a few bytes.
const MOST_NAMES: u64 = 48 << 20;

/// How many entries that are no tensors are listed of each container.
const MOST_LISTED: usize = 100;

/// A tensor, or why it is none.
pub(super) type Found = Result<Described, Diagnostic>;

/// Returns the tensors below a value, and what else there is where it stands beside tensors.
///
/// # Errors
/// Returns `format/nested-too-deep`, `format/pickle-too-large`, and `format/no-tensors` where the value is no container
/// that could hold any.
pub(super) fn leaves(heap: &Heap, value: Value) -> Result<Vec<Leaf<Found>>, Diagnostic> {
    if rebuild::is_tensor(heap, value) {
        // A tensor that was saved alone has no name.
        let path = vec!["tensor".to_owned()];
        return Ok(vec![Leaf { path, content: Content::Tensor(rebuild::described(heap, value)) }]);
    }
    let mut marker = Marker { heap, marks: vec![Mark::New; heap.len()] };
    let has_tensors = marker.mark(value, 0)?;
    let is_dict = matches!(heap.node(value), Some(Node::Dict(_)));
    if !has_tensors && !is_dict {
        let message = format!("there are no tensors in it: it holds {}", describe(heap, value));
        return Err(
            Diagnostic::error(FormatCode::NoTensors, message).help("name the file that holds the weights")
        );
    }
    let mut walker = Walker {
        heap,
        marks: marker.marks,
        leaves: Vec::new(),
        path: Vec::new(),
        above: Vec::new(),
        spent: 0,
    };
    walker.container(value, None)?;
    Ok(walker.leaves)
}

fn too_deep() -> Diagnostic {
    let message = format!("its containers are nested more than {DEEPEST} deep");
    let help = "load it in Python and save the state dict alone";
    Diagnostic::error(FormatCode::NestedTooDeep, message).help(help)
}

/// What is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    New,
    /// It is being looked at, so a reference to it is a cycle.
    Open,
    Without,
    With,
}

/// Finds the nodes below which there are tensors.
struct Marker<'a> {
    heap: &'a Heap,
    marks: Vec<Mark>,
}

impl Marker<'_> {
    fn mark(&mut self, value: Value, depth: usize) -> Result<bool, Diagnostic> {
        let Value::Node(id) = value else { return Ok(false) };
        match self.marks.get(id as usize) {
            Some(Mark::New) => {}
            known => return Ok(known == Some(&Mark::With)),
        }
        if rebuild::is_tensor(self.heap, value) {
            self.set(id, Mark::With);
            return Ok(true);
        }
        if depth > DEEPEST {
            return Err(too_deep());
        }
        self.set(id, Mark::Open);
        let mut found = false;
        for child in values(self.heap, value) {
            found |= self.mark(child, depth + 1)?;
        }
        self.set(id, if found { Mark::With } else { Mark::Without });
        Ok(found)
    }

    fn set(&mut self, id: Id, mark: Mark) {
        if let Some(place) = self.marks.get_mut(id as usize) {
            *place = mark;
        }
    }
}

/// The parts of a `torch.nn.Module` (pytorch/pytorch, torch/nn/modules/module.py), or what TorchScript makes of one.
struct Module {
    /// The dictionaries of its tensors and of the modules in it.
    parts: Vec<Value>,
    /// The names of the buffers that are not saved in a state dict.
    left_out: HashSet<String>,
}

/// The most buffers of one module that are left out; there are one or two.
const MOST_LEFT_OUT: usize = 1 << 12;

fn module(heap: &Heap, object: &Object) -> Option<Module> {
    let state = state(heap, object)?;
    if heap.global(heap.class(object)).is_some_and(|(module, _)| module.starts_with("__torch__")) {
        return Some(Module { parts: vec![state], left_out: HashSet::new() });
    }
    let get = |name| heap.get(state, name).filter(|part| heap.entries(dictionary(heap, *part)).is_some());
    let parts = [get("_parameters")?, get("_buffers")?, get("_modules")?];
    let parts = parts.iter().map(|part| dictionary(heap, *part)).collect();
    let left_out =
        heap.get(state, "_non_persistent_buffers_set").map(|set| values(heap, set)).unwrap_or_default();
    let names = left_out.iter().take(MOST_LEFT_OUT).filter_map(|name| heap.str(*name).map(str::to_owned));
    Some(Module { parts, left_out: names.collect() })
}

/// Returns the attributes of a module that are facts, and the modules in it; nothing for another object.
pub(super) fn module_facts(heap: &Heap, object: &Object) -> Option<Vec<(Value, Value)>> {
    module(heap, object)?;
    let state = state(heap, object)?;
    let public = |name: Value| heap.str(name).is_some_and(|name| !name.starts_with('_'));
    let own = heap.entries(state)?.iter().filter(|(name, _)| public(*name)).copied();
    let modules = heap.get(state, "_modules").and_then(|part| heap.entries(dictionary(heap, part)));
    Some(own.chain(modules.unwrap_or_default().iter().copied()).collect())
}

impl Module {
    fn keeps(&self, heap: &Heap, name: Value, value: Value) -> bool {
        value != Value::None && !heap.str(name).is_some_and(|name| self.left_out.contains(name))
    }
}

/// Returns the attributes that an object was given: a dictionary, alone or before those of its slots.
fn state(heap: &Heap, object: &Object) -> Option<Value> {
    match heap.sequence(object.state) {
        Some([state, ..]) => Some(*state),
        _ => Some(object.state),
    }
    .filter(|state| heap.entries(*state).is_some())
}

/// Returns the dictionary that a call of `OrderedDict` or `dict` was given, or the value itself.
fn dictionary(heap: &Heap, value: Value) -> Value {
    match heap.object(value) {
        Some(object) if object.entries.is_empty() => match heap.sequence(object.args) {
            Some([inner]) if heap.entries(*inner).is_some() => *inner,
            _ => value,
        },
        _ => value,
    }
}

/// Calls `with` for each part of a container: its name, or its position, and the value.
pub(super) fn each_part(heap: &Heap, value: Value, with: &mut dyn FnMut(Option<Value>, Value)) {
    match heap.node(value) {
        Some(Node::Tuple(items) | Node::List(items) | Node::Set(items)) => {
            items.iter().for_each(|item| with(None, *item));
        }
        Some(Node::Dict(entries)) => entries.iter().for_each(|(key, value)| with(Some(*key), *value)),
        Some(Node::Object(object)) => {
            if let Some(module) = module(heap, object) {
                for (key, value) in module.parts.iter().filter_map(|part| heap.entries(*part)).flatten() {
                    if module.keeps(heap, *key, *value) {
                        with(Some(*key), *value);
                    }
                }
                return;
            }
            each_argument(heap, object, with);
            for state in heap.sequence(object.state).unwrap_or(&[object.state]) {
                for (key, value) in heap.entries(*state).unwrap_or_default() {
                    with(Some(*key), *value);
                }
            }
            object.items.iter().for_each(|item| with(None, *item));
            object.entries.iter().for_each(|(key, value)| with(Some(*key), *value));
        }
        Some(Node::Global(..) | Node::Persistent(_) | Node::Long { .. }) | None => {}
    }
}

/// What a constructor was given: the content of Python's own containers, and the fields of a named tuple.
fn each_argument(heap: &Heap, object: &Object, with: &mut dyn FnMut(Option<Value>, Value)) {
    let args = heap.sequence(object.args).unwrap_or_default();
    let own = heap.global(heap.class(object)).filter(|(module, name)| {
        matches!(*module, "collections" | "builtins" | "__builtin__")
            && matches!(
                *name,
                "OrderedDict" | "defaultdict" | "Counter" | "dict" | "list" | "tuple" | "set" | "frozenset"
            )
    });
    let [content] = args else {
        args.iter().for_each(|item| with(None, *item));
        return;
    };
    match own {
        // Python 2 gives the entries as a list of lists of two.
        Some((_, "OrderedDict" | "dict")) if heap.sequence(*content).is_some() => {
            for pair in heap.sequence(*content).unwrap_or_default() {
                match heap.sequence(*pair) {
                    Some([key, value]) => with(Some(*key), *value),
                    _ => with(None, *pair),
                }
            }
        }
        Some(_) => each_part_of_plain(heap, *content, with),
        None => with(None, *content),
    }
}

/// The same for what is no object, so that this ends.
fn each_part_of_plain(heap: &Heap, value: Value, with: &mut dyn FnMut(Option<Value>, Value)) {
    if heap.object(value).is_none() {
        each_part(heap, value, with);
    } else {
        with(None, value);
    }
}

fn values(heap: &Heap, value: Value) -> Vec<Value> {
    let mut values = Vec::new();
    each_part(heap, value, &mut |_, part| values.push(part));
    values
}

/// Follows the containers with tensors in them.
struct Walker<'a> {
    heap: &'a Heap,
    marks: Vec<Mark>,
    leaves: Vec<Leaf<Found>>,
    path: Vec<String>,
    /// The containers on the way, so that a cycle ends.
    above: Vec<Value>,
    spent: u64,
}

impl Walker<'_> {
    fn charge(&mut self, bytes: usize) -> Result<(), Diagnostic> {
        self.spent = self.spent.saturating_add(bytes as u64);
        if self.spent <= MOST_NAMES {
            return Ok(());
        }
        let message = format!("the names of all tensors in it take over {MOST_NAMES} bytes");
        let help = "load it in Python and save the state dict alone";
        Err(Diagnostic::error(FormatCode::PickleTooLarge, message).help(help))
    }

    /// Lists what is in a container; in a module, the names are joined as in its state dict, and what is no tensor is no
    /// part of it. `joined` is the name so far of a module in a module.
    fn container(&mut self, value: Value, joined: Option<&str>) -> Result<(), Diagnostic> {
        // Shared containers can lie deeper than where they were found first.
        if self.above.len() > DEEPEST {
            return Err(too_deep());
        }
        self.above.push(value);
        let is_module = self.heap.object(value).is_some_and(|object| module(self.heap, object).is_some());
        let joined = if is_module { joined.or(Some("")) } else { joined };
        let mut listed = 0;
        for (name, part) in self.parts(value)? {
            let name = match joined {
                Some(above) if !above.is_empty() => format!("{above}.{name}"),
                _ => name,
            };
            if self.marks_with(part) {
                if self.above.contains(&part) {
                    continue;
                }
                if rebuild::is_tensor(self.heap, part) {
                    self.leaf(name, Content::Tensor(rebuild::described(self.heap, part)))?;
                } else if joined.is_some() {
                    self.charge(name.len())?;
                    self.container(part, Some(&name))?;
                } else {
                    self.path.push(name);
                    self.container(part, None)?;
                    self.path.pop();
                }
            } else if joined.is_none() {
                listed += 1;
                if listed <= MOST_LISTED {
                    let what = describe(self.heap, part);
                    self.leaf(name, Content::Other(what))?;
                }
            }
        }
        if listed > MOST_LISTED {
            let what = format!("{} more entries that are no tensors", listed - MOST_LISTED);
            self.leaf("…".to_owned(), Content::Other(what))?;
        }
        self.above.pop();
        Ok(())
    }

    fn marks_with(&self, value: Value) -> bool {
        match value {
            Value::Node(id) => self.marks.get(id as usize) == Some(&Mark::With),
            _ => false,
        }
    }

    fn leaf(&mut self, name: String, content: Content<Found>) -> Result<(), Diagnostic> {
        let mut path = self.path.clone();
        path.push(name);
        self.charge(path.iter().map(|name| name.len() + 48).sum::<usize>() + 200)?;
        self.leaves.push(Leaf { path, content });
        Ok(())
    }

    /// Returns the parts of a container with their names; of entries with one key the last counts.
    fn parts(&mut self, value: Value) -> Result<Vec<(String, Value)>, Diagnostic> {
        let state = self.heap.object(value).and_then(|object| state(self.heap, object));
        let mut count = state.and_then(|state| self.heap.entries(state)).map_or(1, <[_]>::len);
        each_part(self.heap, value, &mut |_, _| count += 1);
        self.charge(count * 16)?;
        // The kind is part of the key: `1` and `"1"` are two.
        let mut parts: IndexMap<(u8, String), Value> = IndexMap::new();
        let (heap, mut position, mut bytes, mut unnamed) = (self.heap, 0, 0, 0);
        each_part(heap, value, &mut |key, part| {
            let named = match key {
                None => {
                    position += 1;
                    (0, (position - 1).to_string())
                }
                // A class, an object: described, with a number, since each is another key.
                Some(key) => name(heap, key).unwrap_or_else(|| {
                    unnamed += 1;
                    (7, format!("<{} {unnamed}>", key_description(heap, key)))
                }),
            };
            if bytes < MOST_NAMES {
                bytes += named.1.len() as u64;
                parts.insert(named, part);
            }
        });
        self.charge(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        Ok(parts.into_iter().map(|((_, name), value)| (name, value)).collect())
    }
}

/// Returns the name that a key of a dictionary gives.
pub(super) fn key_name(heap: &Heap, key: Value) -> Option<String> {
    name(heap, key).map(|(_, name)| name)
}

/// Returns in words what a key is that is no name.
fn key_description(heap: &Heap, key: Value) -> String {
    match heap.global(key) {
        Some((module, name)) => shown(&format!("{module}.{name}")),
        None if rebuild::is_tensor(heap, key) => "a tensor".to_owned(),
        None => describe(heap, key),
    }
}

/// Returns the name that a key of a dictionary gives, with a number for its kind.
fn name(heap: &Heap, key: Value) -> Option<(u8, String)> {
    match key {
        Value::Text(_) | Value::Bytes(_) => heap.str(key).map(|name| (1, name.to_owned())),
        Value::Int(number) => Some((2, number.to_string())),
        Value::Bool(truth) => Some((3, if truth { "True" } else { "False" }.to_owned())),
        Value::Float(number) => Some((4, number.to_string())),
        Value::None => Some((5, "None".to_owned())),
        Value::Node(_) => {
            // A tuple of such keys, as optimisers and samplers use them.
            let Some(Node::Tuple(items)) = heap.node(key) else { return None };
            let names: Option<Vec<String>> = items
                .iter()
                .take(8)
                .map(|item| {
                    if matches!(item, Value::Node(_)) {
                        None
                    } else {
                        name(heap, *item).map(|(_, name)| name)
                    }
                })
                .collect();
            Some((6, format!("({})", shown(&names?.join(", ")))))
        }
        Value::Big(_) | Value::Long(_) => None,
    }
}

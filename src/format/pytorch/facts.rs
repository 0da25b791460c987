//! What a pickle says beside tensors: numbers, texts, truth values, and the containers and objects around them.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Number, Value as Json};

use super::rebuild;
use super::value::{Heap, Id, Node, Object, Value};
use super::walk::{each_part, key_name, module_facts};
use crate::format::facts::{Budget, LONGEST_LIST};

/// How deep facts are looked for.
const DEEPEST: usize = 24;

/// How many values are looked at: shared references could make endless facts out of a few bytes.
const MOST_LOOKS: usize = 1 << 20;

/// How often one container is looked into.
const MOST_VISITS: usize = 4;

/// The most facts of one container, so that one long table does not take the place of all others.
const MOST_OF_ONE: usize = 1024;

/// Returns the facts of a pickle as a tree; those nearest to the top first, where they are too many. Tensors, storages and
/// bytes are left out, of lists they are `null`.
pub(super) fn facts(heap: &Heap, root: Value) -> Option<Json> {
    let mut tree = Tree { heap, found: Vec::new(), budget: Budget::new(), looks: 0, visits: HashMap::new() };
    let mut queue = VecDeque::new();
    match tree.seen(root) {
        Seen::Container(root) => {
            tree.found.push(Fact::Gone);
            queue.push_back((root, 0, 0));
        }
        Seen::Fact(_) | Seen::Nothing => return None,
    }
    while let Some((container, place, depth)) = queue.pop_front() {
        tree.container(container, place, depth, &mut queue);
    }
    tree.json(0)
}

/// What is known of a value.
enum Seen {
    /// A fact that has no parts.
    Fact(Json),
    /// Something with parts, which are looked at in turn.
    Container(Value),
    /// A tensor, a storage, bytes.
    Nothing,
}

/// An entry of the tree.
enum Fact {
    /// A container that was not reached.
    Gone,
    Leaf(Json),
    Map(Vec<(String, usize)>),
    List(Vec<usize>),
}

struct Tree<'a> {
    heap: &'a Heap,
    found: Vec<Fact>,
    budget: Budget,
    looks: usize,
    /// How often each container was looked into.
    visits: HashMap<Id, usize>,
}

impl Tree<'_> {
    fn seen(&self, value: Value) -> Seen {
        let heap = self.heap;
        if rebuild::is_tensor(heap, value) {
            return Seen::Nothing;
        }
        let fact = match value {
            Value::None => Json::Null,
            Value::Bool(truth) => Json::Bool(truth),
            Value::Int(number) => number.into(),
            Value::Float(number) => Number::from_f64(number).map_or(Json::Null, Json::Number),
            Value::Text(_) | Value::Bytes(_) => match heap.str(value) {
                Some(text) => text.into(),
                None => return Seen::Nothing,
            },
            Value::Big(_) | Value::Long(_) => return Seen::Nothing,
            Value::Node(_) => match heap.node(value) {
                Some(Node::Global(..)) => match heap.global(value) {
                    Some((module, name)) => format!("{module}.{name}").into(),
                    None => return Seen::Nothing,
                },
                Some(Node::Object(object)) => return self.object(value, object),
                Some(Node::Tuple(_) | Node::List(_) | Node::Set(_) | Node::Dict(_)) => {
                    return Seen::Container(value);
                }
                Some(Node::Persistent(_) | Node::Long { .. }) | None => return Seen::Nothing,
            },
        };
        Seen::Fact(fact)
    }

    /// An object made of one value alone is that value: a member of an enumeration, `torch.device("cpu")`.
    fn object(&self, value: Value, object: &Object) -> Seen {
        let is_bare = object.state == Value::None && object.items.is_empty() && object.entries.is_empty();
        match self.heap.sequence(object.args) {
            Some([inner]) if is_bare && !matches!(inner, Value::Node(_)) => self.seen(*inner),
            _ => Seen::Container(value),
        }
    }

    /// Notes the parts of a container at its place.
    fn container(
        &mut self,
        value: Value,
        place: usize,
        depth: usize,
        queue: &mut VecDeque<(Value, usize, usize)>,
    ) {
        let (mut named, mut listed) = (Vec::new(), Vec::new());
        let left = MOST_LOOKS.saturating_sub(self.looks);
        let mut with = |key: Option<Value>, part: Value| {
            if named.len() + listed.len() < left {
                match key {
                    Some(key) => named.push((key, part)),
                    None => listed.push(part),
                }
            }
        };
        match self.heap.object(value).and_then(|object| module_facts(self.heap, object)) {
            Some(parts) => parts.into_iter().for_each(|(key, part)| with(Some(key), part)),
            None => each_part(self.heap, value, &mut with),
        }
        self.looks += named.len() + listed.len();
        if named.is_empty() && listed.len() > LONGEST_LIST {
            return;
        }
        // What an object was made of counts where it was given no attributes.
        let is_list = named.is_empty();
        let is_optimizer = ["state", "param_groups"]
            .iter()
            .all(|name| named.iter().any(|(key, _)| self.heap.str(*key) == Some(name)));
        let parts: Vec<(String, Value)> = if is_list {
            listed.into_iter().map(|part| (String::new(), part)).collect()
        } else {
            let names = named.into_iter().filter_map(|(key, part)| Some((key_name(self.heap, key)?, part)));
            // The state of an optimizer is one entry for each parameter.
            names.filter(|(name, _)| !(is_optimizer && name == "state")).collect()
        };
        let had_parts = !parts.is_empty();
        let (mut map, mut list, mut count) = (Vec::new(), Vec::new(), 0);
        for (name, part) in parts {
            let fact = match self.seen(part) {
                Seen::Fact(fact) => Fact::Leaf(fact),
                Seen::Container(_) if depth < DEEPEST => Fact::Gone,
                Seen::Container(_) | Seen::Nothing if is_list => Fact::Leaf(Json::Null),
                Seen::Container(_) | Seen::Nothing => continue,
            };
            let text = if let Fact::Leaf(Json::String(text)) = &fact { text.len() } else { 0 };
            let is_container = matches!(fact, Fact::Gone);
            // A container that stands in many places is told in the first of them.
            if is_container && let Value::Node(id) = part {
                let visits = self.visits.entry(id).or_default();
                *visits += 1;
                if *visits > MOST_VISITS {
                    continue;
                }
            }
            // Containers of tensors alone are no facts, so that they are not counted.
            if !is_container && (count >= MOST_OF_ONE || !self.budget.take(name.len() + text)) {
                if is_list {
                    return;
                }
                continue;
            }
            count += usize::from(!is_container);
            let inner = self.found.len();
            self.found.push(fact);
            if is_container {
                queue.push_back((part, inner, depth + 1));
            }
            if is_list {
                list.push(inner);
            } else {
                map.push((name, inner));
            }
        }
        if had_parts && list.is_empty() && map.is_empty() {
            return;
        }
        let is_list = is_list && self.heap.entries(value).is_none();
        self.found[place] = if is_list { Fact::List(list) } else { Fact::Map(map) };
    }

    /// Returns an entry as JSON; nothing for a container without facts that is not empty by itself.
    fn json(&self, place: usize) -> Option<Json> {
        match &self.found[place] {
            Fact::Gone => None,
            Fact::Leaf(fact) => Some(fact.clone()),
            Fact::Map(entries) => {
                let kept = entries.iter().filter_map(|(key, inner)| Some((key.clone(), self.json(*inner)?)));
                let map: Map<String, Json> = kept.collect();
                (!map.is_empty() || entries.is_empty()).then_some(Json::Object(map))
            }
            Fact::List(items) => {
                let json: Vec<Option<Json>> = items.iter().map(|inner| self.json(*inner)).collect();
                let has_facts = json.is_empty() || json.iter().flatten().any(|json| *json != Json::Null);
                has_facts.then(|| json.into_iter().map(Option::unwrap_or_default).collect())
            }
        }
    }
}

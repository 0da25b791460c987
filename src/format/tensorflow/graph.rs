//! What a checkpoint by objects says of them, so that `tf.train.Checkpoint` finds its variables.
//! (tensorflow/tensorflow, `tensorflow/python/trackable/trackable_utils.py` and `tensorflow/python/checkpoint/checkpoint.py`)

use std::collections::BTreeMap;

use super::proto::{Attribute, Child, Flag, Graph, Object};

/// The key under which the description stands.
pub(super) const KEY: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";

/// The tensor of a variable.
const VALUE: &str = "VARIABLE_VALUE";

/// Returns the path of the variable that a key names, its components as the objects are called; nothing for other keys.
fn path(key: &str) -> Option<Vec<String>> {
    let object = key.strip_suffix(VALUE)?.strip_suffix("/.ATTRIBUTES/")?;
    // State of optimizers is listed otherwise.
    let is_slot = object.split('/').any(|part| part == ".OPTIMIZER_SLOT");
    let plain = |part: &str| part.replace("..", "\0").replace(".S", "/").replace('\0', ".");
    (!is_slot).then(|| object.split('/').map(plain).collect())
}

/// Describes the objects whose variables have these keys; nothing where no key is one of an object's variable.
pub(super) fn describe<'k>(keys: impl Iterator<Item = &'k str>) -> Option<Graph> {
    let mut graph = Graph { nodes: vec![object()] };
    let mut known: BTreeMap<(i32, String), i32> = BTreeMap::new();
    for (key, path) in keys.filter_map(|key| Some((key, path(key)?))) {
        let mut at = 0_i32;
        for name in path {
            let next = i32::try_from(graph.nodes.len()).ok()?;
            let node = *known.entry((at, name.clone())).or_insert(next);
            if node == next {
                graph.nodes.push(object());
                graph.nodes.get_mut(usize::try_from(at).ok()?)?.children.push(Child { node, name });
            }
            at = node;
        }
        let attribute = Attribute { name: VALUE.to_owned(), key: key.to_owned() };
        graph.nodes.get_mut(usize::try_from(at).ok()?)?.attributes.push(attribute);
    }
    (graph.nodes.len() > 1).then_some(graph)
}

fn object() -> Object {
    Object { has_values: Some(Flag { value: true }), ..Object::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_through_objects() {
        let keys = [
            "model/layers.Sone/w..x/.ATTRIBUTES/VARIABLE_VALUE",
            "model/b/.ATTRIBUTES/VARIABLE_VALUE",
            "model/b/.OPTIMIZER_SLOT/opt/m/.ATTRIBUTES/VARIABLE_VALUE",
            "save_counter",
        ];
        let graph = describe(keys.into_iter()).expect("objects");
        let names: Vec<(usize, &str, i32)> = graph
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(at, node)| node.children.iter().map(move |child| (at, &*child.name, child.node)))
            .collect();
        assert_eq!(names, [(0, "model", 1), (1, "layers/one", 2), (1, "b", 4), (2, "w.x", 3)]);
        let held: Vec<(usize, &str)> = graph
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(at, node)| node.attributes.iter().map(move |attribute| (at, &*attribute.key)))
            .collect();
        assert_eq!(held, [(3, keys[0]), (4, keys[1])]);
        assert_eq!(describe(["bert/embeddings/word_embeddings"].into_iter()), None);
    }
}

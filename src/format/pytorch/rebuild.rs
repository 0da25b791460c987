//! The functions with which PyTorch makes tensors of storages, read as what they would make.
//!
//! Source: pytorch/pytorch, torch/_utils.py (`_rebuild_…`), torch/_tensor.py (`_rebuild_from_type_v2`), torch/serialization.py
//! (what the persistent ids say).

use super::array::{self, Array};
use super::element;
use super::storage::{Raw, StorageId};
use super::value::{Heap, Node, Object, Value};
use crate::diag::{Diagnostic, FormatCode};
use crate::format::shown;

/// How often a tensor may be wrapped: in a parameter, in a subclass.
const MOST_WRAPPERS: usize = 16;

/// A tensor as the pickle describes it.
#[derive(Clone, Debug)]
pub(super) enum Described {
    /// Its elements lie in a storage.
    Stored(Raw),
    /// A NumPy array, whose elements stand in the pickle, with the entry of the heap that describes it.
    Array(Value, Box<Array>),
}

impl Described {
    /// Returns its shape.
    pub(super) fn shape(&self) -> &[u64] {
        match self {
            Described::Stored(raw) => &raw.shape,
            Described::Array(_, array) => &array.shape,
        }
    }
}

/// Returns whether a value is a tensor, of whatever kind.
pub(super) fn is_tensor(heap: &Heap, value: Value) -> bool {
    heap.object(value)
        .is_some_and(|object| kind(heap, object.callable) != Kind::None || array::is_array(heap, object))
}

/// Reads a tensor or a NumPy array.
///
/// # Errors
/// As [`tensor`] and [`array::array`].
pub(super) fn described(heap: &Heap, value: Value) -> Result<Described, Diagnostic> {
    match heap.object(value).filter(|object| array::is_array(heap, object)) {
        Some(object) => array::array(heap, object).map(|array| Described::Array(value, Box::new(array))),
        None => tensor(heap, value).map(Described::Stored),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No tensor.
    None,
    /// `_rebuild_tensor`, `_rebuild_tensor_v2`: of a storage with a type.
    Typed,
    /// `_rebuild_tensor_v3`: of a storage without a type.
    Untyped,
    /// The first argument is the tensor.
    Wrapper,
    /// The first argument would make the tensor of the third.
    Subclass,
    /// A tensor of a kind that is not read, in words.
    Other(&'static str),
    /// A tensor that a function unknown here would make.
    Unknown,
}

fn kind(heap: &Heap, callable: Value) -> Kind {
    let Some((module, name)) = heap.global(callable) else { return Kind::None };
    match (module, name) {
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Kind::Typed,
        ("torch._utils", "_rebuild_tensor_v3") => Kind::Untyped,
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state")
        | ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor")
        | ("torch.nn.parameter" | "torch.nn", "Parameter" | "Buffer")
        | ("torch.autograd.variable" | "torch.autograd", "Variable") => Kind::Wrapper,
        ("torch._tensor" | "torch.tensor", "_rebuild_from_type" | "_rebuild_from_type_v2") => Kind::Subclass,
        ("torch._utils", "_rebuild_qtensor") => Kind::Other("a quantised tensor"),
        ("torch._utils", "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor") => {
            Kind::Other("a sparse tensor")
        }
        ("torch._utils", "_rebuild_nested_tensor") => Kind::Other("a nested tensor"),
        ("torch._utils", "_rebuild_meta_tensor_no_storage") => {
            Kind::Other("a tensor on the meta device, which has no values")
        }
        ("torch._utils", "_rebuild_wrapper_subclass") => Kind::Other("a tensor subclass without a storage"),
        ("torch._utils", "_rebuild_device_tensor_from_numpy" | "_rebuild_xla_tensor") => {
            Kind::Other("a device's tensor that was saved as a NumPy array")
        }
        ("numpy.ma.core" | "numpy.ma", "_mareconstruct") => Kind::Other("a masked NumPy array"),
        _ if name.starts_with("_rebuild_") && module.starts_with("torch.") => Kind::Unknown,
        _ => Kind::None,
    }
}

/// Reads a tensor.
///
/// # Errors
/// Returns `format/unsupported-tensor` for a kind that is not read, and `format/bad-tensor` for arguments that no tensor
/// is made of; neither names the tensor yet.
fn tensor(heap: &Heap, value: Value) -> Result<Raw, Diagnostic> {
    let object = heap.object(value).ok_or_else(|| bad("it is no tensor"))?;
    let (mut callable, mut args, mut class) = (object.callable, object.args, None);
    for _ in 0..MOST_WRAPPERS {
        let given = heap.sequence(args).ok_or_else(|| bad("its arguments are no tuple"))?;
        match kind(heap, callable) {
            Kind::Typed => return plain(heap, given, false),
            Kind::Untyped => return plain(heap, given, true),
            Kind::Wrapper => {
                let inner = given.first().and_then(|inner| heap.object(*inner));
                let inner = inner.ok_or_else(|| bad("what its parameter holds is no tensor"))?;
                (callable, args) = (inner.callable, inner.args);
            }
            Kind::Subclass => match given {
                [function, of, inner, ..] => (callable, args, class) = (*function, *inner, Some(*of)),
                _ => return Err(bad("its subclass has too few arguments")),
            },
            Kind::Other(what) => {
                return Err(unsupported(&match class {
                    Some(class) => format!("{what}, of the class {}", path(heap, class)),
                    None => what.to_owned(),
                }));
            }
            Kind::Unknown => {
                let name = heap.global(callable).map_or("", |(_, name)| name);
                return Err(unsupported(&format!("a tensor that `{}` makes", shown(name))));
            }
            Kind::None => return Err(bad("what its parameter holds is no tensor")),
        }
    }
    Err(bad("it is wrapped too often"))
}

fn bad(problem: &str) -> Diagnostic {
    let message = format!("the tensor's description is damaged: {problem}");
    Diagnostic::error(FormatCode::BadTensor, message).help("download or save the file again")
}

fn unsupported(what: &str) -> Diagnostic {
    let help = "load it in Python, make it a plain tensor (as with `.dequantize()`, `.to_dense()`, `.resolve_conj()`, `.full_tensor()`) and \
                save it again";
    Diagnostic::error(FormatCode::UnsupportedTensor, format!("it is {what}, which is not read")).help(help)
}

/// Reads `(storage, offset, size, stride)`, then `requires_grad, hooks` from version 2 on, then `dtype` in version 3, then
/// the bits of the tensor that say how its values are to be seen.
fn plain(heap: &Heap, args: &[Value], has_dtype: bool) -> Result<Raw, Diagnostic> {
    let [storage, offset, size, stride, rest @ ..] = args else {
        return Err(bad("it has fewer than four arguments"));
    };
    let storage = storage_id(heap, *storage)?;
    let element = if has_dtype {
        let dtype = rest.get(2).and_then(|dtype| heap.global(*dtype));
        match dtype {
            Some(("torch", name)) => element::of_dtype(name)
                .ok_or_else(|| unsupported(&format!("a tensor of the type `torch.{}`", shown(name))))?,
            _ => return Err(bad("its type is no type of torch")),
        }
    } else {
        storage.element
    };
    let seen = rest.get(if has_dtype { 3 } else { 2 });
    for (bit, what) in [("conj", "a conjugated view of its values"), ("neg", "a negated view of its values")]
    {
        if seen.and_then(|seen| heap.get(*seen, bit)) == Some(Value::Bool(true)) {
            return Err(unsupported(what));
        }
    }
    let offset = natural(*offset).ok_or_else(|| bad("its offset is no natural number"))?;
    let numbers = |value: Value, what: &str| -> Result<Vec<u64>, Diagnostic> {
        let items = heap.sequence(value).ok_or_else(|| bad(&format!("its {what} are no tuple")))?;
        items
            .iter()
            .map(|item| natural(*item).ok_or_else(|| bad(&format!("its {what} are no natural numbers"))))
            .collect()
    };
    let (shape, strides) = (numbers(*size, "sizes")?, numbers(*stride, "strides")?);
    if shape.len() != strides.len() {
        return Err(bad(&format!("it has {} sizes and {} strides", shape.len(), strides.len())));
    }
    Ok(Raw { storage, element, offset, shape, strides })
}

/// Returns a number that is not negative.
fn natural(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

/// Reads `("storage", type, key, location, count)`, with a view's `(key, offset, count)` or `None` behind them in the file
/// before the zip archive.
pub(super) fn storage_id(heap: &Heap, value: Value) -> Result<StorageId, Diagnostic> {
    let id = match heap.node(value) {
        Some(Node::Persistent(id)) => heap.sequence(*id),
        _ => None,
    };
    let Some([kind, class, key, _location, count, rest @ ..]) = id else {
        return Err(bad("what it lies in is no storage"));
    };
    if heap.str(*kind) != Some("storage") {
        return Err(bad("what it lies in is no storage"));
    }
    let (_, class) = heap.global(*class).ok_or_else(|| bad("its storage has no type"))?;
    let element = element::of_storage(class)
        .ok_or_else(|| unsupported(&format!("a tensor in a storage of the type `{}`", shown(class))))?;
    let key = match *key {
        Value::Int(key) => key.to_string(),
        key => heap.str(key).ok_or_else(|| bad("its storage has no name"))?.to_owned(),
    };
    let count = natural(*count).ok_or_else(|| bad("its storage has no size"))?;
    let view = match rest.first() {
        None | Some(Value::None) => None,
        Some(view) => match heap.sequence(*view) {
            Some([_key, offset, count]) => match (natural(*offset), natural(*count)) {
                (Some(offset), Some(count)) => Some((offset, count)),
                _ => return Err(bad("the part of its storage has no place")),
            },
            _ => return Err(bad("the part of its storage has no place")),
        },
    };
    Ok(StorageId { key, element, count, view })
}

/// Returns what a value is, in words: "a number", "an object of the class argparse.Namespace".
pub(super) fn describe(heap: &Heap, value: Value) -> String {
    let counted = |what: &str, count: usize, one: &str, many: &str| {
        format!("{what} of {count} {}", if count == 1 { one } else { many })
    };
    match value {
        Value::None => "nothing".to_owned(),
        Value::Bool(_) => "a truth value".to_owned(),
        Value::Int(_) | Value::Big(_) | Value::Float(_) => "a number".to_owned(),
        Value::Text(_) => "a string".to_owned(),
        Value::Bytes(_) => "bytes".to_owned(),
        Value::Long(length) => format!("an integer of {length} bytes"),
        Value::Node(_) => match heap.node(value) {
            Some(Node::Tuple(items)) => counted("a tuple", items.len(), "item", "items"),
            Some(Node::List(items)) => counted("a list", items.len(), "item", "items"),
            Some(Node::Set(items)) => counted("a set", items.len(), "item", "items"),
            Some(Node::Dict(entries)) => counted("a dictionary", entries.len(), "entry", "entries"),
            Some(Node::Global(..)) => format!("the name {}", path(heap, value)),
            Some(Node::Long { length, .. }) => format!("a string or bytes of {length} bytes"),
            Some(Node::Persistent(_)) => "a storage without a shape".to_owned(),
            Some(Node::Object(object)) => describe_object(heap, object),
            None => "nothing".to_owned(),
        },
    }
}

fn path(heap: &Heap, value: Value) -> String {
    heap.global(value)
        .map_or("without a name".to_owned(), |(module, name)| shown(&format!("{module}.{name}")))
}

fn describe_object(heap: &Heap, object: &Object) -> String {
    let class = heap.class(object);
    match heap.global(class) {
        Some(("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")) => "a number".to_owned(),
        Some(("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"))
        | Some(("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer")) => "a NumPy array".to_owned(),
        Some(("builtins" | "__builtin__", "getattr")) => "a method of an object".to_owned(),
        Some(("builtins" | "__builtin__", "complex")) => "a number".to_owned(),
        Some(("builtins" | "__builtin__", "set" | "frozenset")) => "a set".to_owned(),
        Some(("_codecs", "encode") | ("builtins" | "__builtin__", "bytes" | "bytearray")) => {
            "bytes".to_owned()
        }
        Some(_) => format!("an object of the class {}", path(heap, class)),
        None => "an object of an unknown class".to_owned(),
    }
}

//! Mapping files made at random: what the library makes of them against a naive reading, index by index.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use qkvconv::bind::BindOptions;
use qkvconv::convert::ConvertOptions;
use qkvconv::mapping::key::{Captures, Template};
use qkvconv::notation::{Text, parse_str};
use qkvconv::span::{Source, Span};
use serde_json::{Map, Value, json};

use crate::kit::{self, Folder, Tensor, Tensors};

/// A stream of choices. Behind its end every choice is the first, so that a shorter stream is a simpler case.
struct Choices<'a> {
    stream: &'a [u16],
    at: usize,
}

impl Choices<'_> {
    fn below(&mut self, count: usize) -> usize {
        let choice = self.stream.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(choice) % count.max(1)
    }

    /// True with a chance of one in `of`.
    fn rarely(&mut self, of: usize) -> bool {
        self.below(of) == of - 1
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            // The first choice leaves all as it is.
            let other = at - self.below(at + 1);
            items.swap(at, other);
        }
    }

    fn part<T: Clone>(&mut self, items: &[T]) -> Vec<T> {
        items.iter().filter(|_| self.below(2) == 1).cloned().collect()
    }
}

/// An expression of the tests' own.
#[derive(Clone, Debug)]
enum Dim {
    Axis(String),
    Size(u64),
    Sum(Vec<Term>),
}

#[derive(Clone, Debug)]
struct Term {
    /// A parameter's name, or `_`.
    label: Option<String>,
    dims: Vec<Dim>,
}

fn print_dims(dims: &[Dim]) -> String {
    dims.iter().map(print_dim).collect::<Vec<_>>().join(" ")
}

fn print_dim(dim: &Dim) -> String {
    match dim {
        Dim::Axis(name) => name.clone(),
        Dim::Size(size) => size.to_string(),
        Dim::Sum(terms) => format!("({})", terms.iter().map(print_term).collect::<Vec<_>>().join(" + ")),
    }
}

fn print_term(term: &Term) -> String {
    match &term.label {
        Some(label) => format!("{label}: {}", print_dims(&term.dims)).trim_end().to_owned(),
        None => print_dims(&term.dims),
    }
}

/// A stored tensor: the axes of its name, each with what is added to the index, and its expression.
#[derive(Clone, Debug)]
struct Stored {
    name: String,
    key: Vec<(String, u64, usize)>,
    expr: Term,
}

impl Stored {
    fn template(&self) -> String {
        let mut text = format!("{{*m}}.{}", self.name);
        for (axis, offset, width) in &self.key {
            let offset = if *offset > 0 { format!("+{offset}") } else { String::new() };
            let width = if *width > 0 { format!(":0{width}") } else { String::new() };
            text.push_str(&format!(".{{{axis}{offset}{width}}}"));
        }
        text
    }

    fn print(&self, module: &str, values: &Values) -> String {
        let mut text = format!("{module}.{}", self.name);
        for (axis, offset, width) in &self.key {
            text.push_str(&format!(".{:0width$}", values[axis] + offset));
        }
        text
    }
}

#[derive(Clone, Debug)]
struct Layout {
    /// Definitions that it restates, as (axis, stored order of the parts).
    restated: BTreeMap<String, Vec<Vec<String>>>,
    tensors: Vec<Stored>,
}

type Values = BTreeMap<String, u64>;

/// A family with two layouts, and sizes.
#[derive(Clone, Debug)]
struct Family {
    sizes: Values,
    /// Composed axes: a sum of products.
    defined: BTreeMap<String, Vec<Vec<String>>>,
    params: Vec<(String, Vec<String>)>,
    layouts: [Layout; 2],
}

impl Family {
    fn size(&self, axis: &str) -> u64 {
        match self.defined.get(axis) {
            Some(parts) => parts.iter().map(|part| self.product(part)).sum(),
            None => self.sizes[axis],
        }
    }

    fn product(&self, axes: &[String]) -> u64 {
        axes.iter().map(|axis| self.size(axis)).product()
    }

    /// Turns an index in an axis's stored order into the canonical one.
    fn canonical(&self, layout: &Layout, axis: &str, index: u64) -> u64 {
        let (Some(stored), Some(defined)) = (layout.restated.get(axis), self.defined.get(axis)) else {
            return index;
        };
        let mut rest = index;
        for part in stored {
            let length = self.product(part);
            if rest >= length {
                rest -= length;
                continue;
            }
            let mut values = Values::new();
            for axis in part.iter().rev() {
                values.insert(axis.clone(), rest % self.size(axis));
                rest /= self.size(axis);
            }
            // The same axes are one part of the definition, in another order.
            let mut start = 0;
            for other in defined {
                if other.iter().all(|axis| part.contains(axis)) && other.len() == part.len() {
                    return start + other.iter().fold(0, |sum, axis| sum * self.size(axis) + values[axis]);
                }
                start += self.product(other);
            }
            panic!("no such part");
        }
        panic!("an index beyond the axis");
    }

    fn dim_size(&self, dim: &Dim) -> u64 {
        match dim {
            Dim::Axis(name) => self.size(name),
            Dim::Size(size) => *size,
            Dim::Sum(terms) => terms.iter().map(|term| self.term_size(term)).sum(),
        }
    }

    fn term_size(&self, term: &Term) -> u64 {
        term.dims.iter().map(|dim| self.dim_size(dim)).product()
    }

    /// Reads one dimension at an index: sets axes' values, and the labels on the way.
    fn read_dim(
        &self,
        layout: &Layout,
        dim: &Dim,
        mut index: u64,
        values: &mut Values,
        labels: &mut Vec<String>,
    ) {
        match dim {
            Dim::Axis(name) => {
                values.insert(name.clone(), self.canonical(layout, name, index));
            }
            Dim::Size(_) => {}
            Dim::Sum(terms) => {
                for term in terms {
                    let length = self.term_size(term);
                    if index < length {
                        labels.extend(term.label.clone());
                        return self.read_dims(layout, &term.dims, index, values, labels);
                    }
                    index -= length;
                }
                panic!("an index beyond the sum");
            }
        }
    }

    fn read_dims(
        &self,
        layout: &Layout,
        dims: &[Dim],
        mut index: u64,
        values: &mut Values,
        labels: &mut Vec<String>,
    ) {
        for dim in dims.iter().rev() {
            let size = self.dim_size(dim);
            self.read_dim(layout, dim, index % size, values, labels);
            index /= size;
        }
    }

    /// Returns an axis's value, also where a part of it or the whole that it is part of was read.
    fn value(&self, axis: &str, values: &Values) -> Option<u64> {
        if let Some(value) = values.get(axis) {
            return Some(*value);
        }
        if let Some([part]) = self.defined.get(axis).map(Vec::as_slice) {
            let inner = part.iter().map(|inner| Some((self.value(inner, values)?, self.size(inner))));
            return inner
                .collect::<Option<Vec<_>>>()
                .map(|all| all.iter().fold(0, |sum, (v, n)| sum * n + v));
        }
        for (outer, parts) in &self.defined {
            let [part] = &parts[..] else { continue };
            if let (Some(at), Some(value)) = (part.iter().position(|inner| inner == axis), values.get(outer))
            {
                return Some(value / self.product(&part[at + 1..]) % self.size(axis));
            }
        }
        None
    }

    /// Returns the tensors of a layout, from the parameters' canonical elements of each module.
    fn store(&self, layout: &Layout, modules: &BTreeMap<String, BTreeMap<String, Vec<u16>>>) -> Tensors {
        let mut all = Tensors::new();
        for (module, data) in modules {
            for tensor in &layout.tensors {
                let sizes: Vec<u64> = tensor.key.iter().map(|(axis, ..)| self.size(axis)).collect();
                for mut number in 0..sizes.iter().product::<u64>() {
                    // The values in the name are stored indices, those of the elements canonical ones.
                    let (mut name, mut key) = (Values::new(), Values::new());
                    for ((axis, ..), size) in tensor.key.iter().zip(&sizes) {
                        name.insert(axis.clone(), number % size);
                        key.insert(axis.clone(), self.canonical(layout, axis, number % size));
                        number /= size;
                    }
                    let shape: Vec<u64> = tensor.expr.dims.iter().map(|dim| self.dim_size(dim)).collect();
                    let mut bytes = Vec::new();
                    for at in 0..shape.iter().product::<u64>() {
                        let mut values = key.clone();
                        let mut labels: Vec<String> = tensor.expr.label.iter().cloned().collect();
                        self.read_dims(layout, &tensor.expr.dims, at, &mut values, &mut labels);
                        bytes.extend(self.element(&labels, &values, data).to_le_bytes());
                    }
                    all.insert(tensor.print(module, &name), Tensor::new("U16", &shape, bytes));
                }
            }
        }
        all
    }

    fn element(&self, labels: &[String], values: &Values, data: &BTreeMap<String, Vec<u16>>) -> u16 {
        if labels.iter().any(|label| label == "_") {
            return 0;
        }
        let name = &labels[0];
        if labels.iter().any(|label| label != name) {
            return 0;
        }
        let (_, axes) = self.params.iter().find(|(other, _)| other == name).expect("a parameter");
        let at = axes.iter().fold(0, |sum, axis| {
            let value =
                self.value(axis, values).unwrap_or_else(|| panic!("{name} lacks {axis} in {values:?}"));
            sum * self.size(axis) + value
        });
        data[name][at as usize]
    }

    fn mapping(&self) -> String {
        let parts = |parts: &[Vec<String>]| match parts {
            [only] => only.join(" "),
            parts => parts.iter().map(|part| format!("({})", part.join(" "))).collect::<Vec<_>>().join(" + "),
        };
        let mut axes = Map::new();
        for axis in self.sizes.keys() {
            axes.insert(axis.clone(), json!("primitive"));
        }
        for (axis, definition) in &self.defined {
            axes.insert(axis.clone(), json!({ "is": parts(definition) }));
        }
        let params: Map<String, Value> =
            self.params.iter().map(|(name, axes)| (name.clone(), json!(axes.join(" ")))).collect();
        let mut layouts = Map::new();
        for (name, layout) in ["a", "b"].iter().zip(&self.layouts) {
            let tensors: Map<String, Value> = layout
                .tensors
                .iter()
                .map(|stored| (stored.template(), json!(print_term(&stored.expr))))
                .collect();
            let restated: Map<String, Value> =
                layout.restated.iter().map(|(axis, stored)| (axis.clone(), json!(parts(stored)))).collect();
            layouts.insert((*name).to_owned(), json!({ "axes": restated, "tensors": tensors }));
        }
        kit::mapping("random", Value::Object(axes), Value::Object(params), Value::Object(layouts))
    }
}

/// What a layout is made of.
struct Maker<'a, 'c> {
    choices: &'a mut Choices<'c>,
    family: &'a Family,
    next: usize,
}

impl Maker<'_, '_> {
    fn layout(&mut self) -> Layout {
        let mut restated = BTreeMap::new();
        for (axis, parts) in &self.family.defined {
            if self.choices.below(2) == 1 {
                let mut stored = parts.clone();
                self.choices.shuffle(&mut stored);
                stored.iter_mut().for_each(|part| self.choices.shuffle(part));
                restated.insert(axis.clone(), stored);
            }
        }
        let mut left: Vec<String> = self.family.params.iter().map(|(name, _)| name.clone()).collect();
        self.choices.shuffle(&mut left);
        let mut tensors = Vec::new();
        while !left.is_empty() {
            let count = 1 + self.choices.below(left.len());
            let params: Vec<String> = left.drain(..count).collect();
            let tensor = self.tensor(&params);
            tensors.push(tensor);
        }
        if self.choices.rarely(6) {
            // A parameter that two tensors hold.
            let at = self.choices.below(self.family.params.len());
            let tensor = self.tensor(&[self.family.params[at].0.clone()]);
            tensors.push(tensor);
        }
        Layout { restated, tensors }
    }

    /// Returns the parameter's axes as a layout may name them: whole, or a composed one by its factors.
    fn axes(&mut self, param: &str) -> Vec<String> {
        let (_, axes) = self.family.params.iter().find(|(name, _)| name == param).expect("a parameter");
        let mut named = Vec::new();
        for axis in axes {
            match self.family.defined.get(axis).map(Vec::as_slice) {
                Some([part]) if self.choices.below(2) == 1 => named.extend(part.iter().cloned()),
                _ => named.push(axis.clone()),
            }
        }
        named
    }

    fn tensor(&mut self, params: &[String]) -> Stored {
        let mut axes: Vec<(String, Vec<String>)> = params.iter().map(|p| (p.clone(), self.axes(p))).collect();
        let mut key = Vec::new();
        // An axis of the name is one that the first has; those that lack it are repeated along it.
        let mut in_name = Vec::new();
        for axis in axes[0].1.clone() {
            if self.choices.rarely(3) && self.is_free(&axis, &axes) {
                in_name.push(axis);
            }
        }
        if self.choices.rarely(8) {
            in_name.extend(self.foreign(&axes));
        }
        self.choices.shuffle(&mut in_name);
        for axis in in_name {
            axes.iter_mut().for_each(|(_, axes)| axes.retain(|other| *other != axis));
            let offset = if self.choices.rarely(4) { 3 } else { 0 };
            let width = if self.choices.rarely(4) { 2 } else { 0 };
            key.push((axis, offset, width));
        }
        let name = format!("t{}", self.next);
        self.next += 1;
        let expr = if let [(param, rest)] = &axes[..] {
            let (param, rest) = (param.clone(), rest.clone());
            if self.choices.rarely(4) {
                Term { label: None, dims: self.joined_dims(&[(param, rest)]) }
            } else {
                let dims = self.dims(rest, &param);
                Term { label: Some(param), dims }
            }
        } else {
            Term { label: None, dims: self.joined_dims(&axes) }
        };
        Stored { name, key, expr }
    }

    /// Whether no other parameter here names a part of the axis, or an axis that it is a part of.
    fn is_free(&self, axis: &str, axes: &[(String, Vec<String>)]) -> bool {
        let related = |other: &str| {
            let inside = |outer: &str, inner: &str| {
                self.family.defined.get(outer).is_some_and(|parts| parts.iter().flatten().any(|a| a == inner))
            };
            let siblings = |first: &str, second: &str| {
                self.family.defined.values().any(|parts| {
                    parts.iter().flatten().any(|a| a == first) && parts.iter().flatten().any(|a| a == second)
                })
            };
            other != axis && (inside(other, axis) || inside(axis, other) || siblings(other, axis))
        };
        !axes.iter().flat_map(|(_, axes)| axes).any(|other| related(other))
            || axes.iter().all(|(_, axes)| axes.iter().any(|other| other == axis))
    }

    /// Returns an axis that none of the parameters has.
    fn foreign(&mut self, axes: &[(String, Vec<String>)]) -> impl Iterator<Item = String> + use<> {
        let has = |param: &str, axis: &String| {
            let (_, own) = self.family.params.iter().find(|(name, _)| name == param).expect("a parameter");
            let parts = |outer: &String| {
                self.family.defined.get(outer).is_some_and(|parts| parts.iter().flatten().any(|a| a == axis))
            };
            own.iter().any(|other| other == axis || parts(other))
        };
        let free: Vec<String> = self
            .family
            .sizes
            .keys()
            .filter(|axis| !axes.iter().any(|(param, _)| has(param, axis)))
            .cloned()
            .collect();
        let at = self.choices.below(free.len());
        free.get(at).cloned().into_iter()
    }

    /// Arranges axes: permuted, composed, with unit axes and repeats between.
    fn dims(&mut self, axes: Vec<String>, param: &str) -> Vec<Dim> {
        let mut dims: Vec<Dim> = axes.iter().cloned().map(Dim::Axis).collect();
        if self.choices.rarely(8) {
            dims.push(Dim::Size(1));
        }
        if self.choices.rarely(10) {
            dims.push(Dim::Size(2));
        }
        if self.choices.rarely(8) {
            dims.extend(self.foreign(&[(param.to_owned(), axes)]).map(Dim::Axis));
        }
        self.choices.shuffle(&mut dims);
        self.compose(dims)
    }

    fn compose(&mut self, dims: Vec<Dim>) -> Vec<Dim> {
        let mut composed: Vec<Dim> = Vec::new();
        let mut rest = dims.into_iter().peekable();
        while let Some(dim) = rest.next() {
            let mut group = vec![dim];
            while rest.peek().is_some() && self.choices.rarely(3) {
                group.extend(rest.next());
            }
            match group.len() {
                1 if !self.choices.rarely(8) => composed.append(&mut group),
                _ => composed.push(Dim::Sum(vec![Term { label: None, dims: group }])),
            }
        }
        composed
    }

    /// Stores parameters beside each other along one dimension.
    fn joined_dims(&mut self, axes: &[(String, Vec<String>)]) -> Vec<Dim> {
        // What stands outside the sum, all have, or repeat.
        let mut outside = Vec::new();
        let named: Vec<String> = axes.iter().flat_map(|(_, axes)| axes.clone()).collect();
        let mut candidates: Vec<String> = Vec::new();
        for axis in named {
            if !candidates.contains(&axis) {
                candidates.push(axis);
            }
        }
        for axis in candidates {
            let shared = axes.iter().all(|(_, axes)| axes.contains(&axis));
            let chance = if shared { 2 } else { 6 };
            if self.choices.rarely(chance) && self.is_free(&axis, axes) {
                outside.push(axis);
            }
        }
        let rest: Vec<(String, Vec<String>)> = axes
            .iter()
            .map(|(param, axes)| {
                let left = axes.iter().filter(|axis| !outside.contains(axis)).cloned().collect();
                (param.clone(), left)
            })
            .collect();
        let mut terms = Vec::new();
        let mut at = 0;
        while at < rest.len() {
            let left = rest.len() - at;
            let count = if left >= 2 && self.choices.rarely(4) { 2 } else { 1 };
            if count == 1 || count == rest.len() {
                let (param, axes) = rest[at].clone();
                let mut dims = self.dims(axes, &param);
                if dims.is_empty() {
                    dims.push(Dim::Size(1));
                }
                terms.push(Term { label: Some(param), dims });
                at += 1;
            } else {
                let dims = self.joined_dims(&rest[at..at + count]);
                terms.push(Term { label: None, dims });
                at += count;
            }
        }
        if terms.len() == 1 || self.choices.rarely(5) {
            let place = self.choices.below(terms.len() + 1);
            let size = 1 + self.choices.below(3) as u64;
            terms.insert(place, Term { label: Some("_".to_owned()), dims: vec![Dim::Size(size)] });
        }
        let mut inside = self.choices.part(&outside);
        outside.retain(|axis| !inside.contains(axis));
        let mut sum = Dim::Sum(terms);
        if !inside.is_empty() {
            self.choices.shuffle(&mut inside);
            let mut dims: Vec<Dim> = inside.into_iter().map(Dim::Axis).collect();
            let place = dims.len() - self.choices.below(dims.len() + 1);
            dims.insert(place, sum);
            sum = Dim::Sum(vec![Term { label: None, dims }]);
        }
        let mut dims: Vec<Dim> = outside.into_iter().map(Dim::Axis).collect();
        dims.insert(0, sum);
        self.choices.shuffle(&mut dims);
        dims
    }
}

fn family(stream: &[u16]) -> Family {
    let mut choices = Choices { stream, at: 0 };
    let axes: Vec<String> = ["a", "b", "c", "e", "f", "u", "x", "y"].map(str::to_owned).to_vec();
    let sizes: Values = axes.iter().map(|axis| (axis.clone(), [2, 3, 1, 4][choices.below(4)])).collect();
    let name = |text: &str| text.to_owned();
    let defined = BTreeMap::from([
        (name("d"), vec![vec![name("c"), name("f")], vec![name("u")]]),
        (name("h"), vec![vec![name("x"), name("y")]]),
    ]);
    let count = 2 + choices.below(3);
    let mut params = Vec::new();
    for at in 0..count {
        // `d` and `h` are composed; `x` and `y` stand alone where `h` does not.
        let mut pool = vec![name("a"), name("b"), name("e"), name("d")];
        if choices.below(3) == 0 {
            pool.extend([name("x"), name("y")]);
        } else {
            pool.push(name("h"));
        }
        choices.shuffle(&mut pool);
        let length = 1 + choices.below(3);
        params.push((format!("p{at}"), pool[..length].to_vec()));
    }
    let empty = Layout { restated: BTreeMap::new(), tensors: Vec::new() };
    let mut family = Family { sizes, defined, params, layouts: [empty.clone(), empty] };
    for at in 0..2 {
        let layout = Maker { choices: &mut choices, family: &family.clone(), next: 0 }.layout();
        family.layouts[at] = layout;
    }
    family
}

/// As many cases as take some seconds; PROPTEST_CASES asks for more.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(600);
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 4096, ..ProptestConfig::default() }
}

/// Choices that print shortly.
#[derive(Clone)]
struct Stream(Vec<u16>);

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} choices", self.0.len())
    }
}

fn stream() -> impl Strategy<Value = Stream> {
    prop::collection::vec(any::<u16>(), 0..160).prop_map(Stream)
}

fn check(Stream(stream): &Stream, give_sizes: bool) -> Result<(), TestCaseError> {
    let family = family(stream);
    let mapping = family.mapping();
    let mut modules = BTreeMap::new();
    for (number, module) in ["m.0", "m.1"].into_iter().enumerate() {
        let mut data = BTreeMap::new();
        for (at, (name, axes)) in family.params.iter().enumerate() {
            // Every element of every parameter is another, and none is zero.
            let base = 1 + 8192 * (at as u16 + 4 * number as u16);
            let elements = (0..family.product(axes) as u16).map(|element| base + element);
            data.insert(name.clone(), elements.collect::<Vec<u16>>());
        }
        modules.insert(module.to_owned(), data);
    }
    let folder = Folder::new();
    let [a, b] = family.layouts.each_ref().map(|layout| family.store(layout, &modules));
    let (in_a, in_b) = (folder.tensors("a.safetensors", &a), folder.tensors("b.safetensors", &b));
    let options = ConvertOptions::default().bind(BindOptions::default().axes(if give_sizes {
        family.sizes.clone().into_iter().collect::<Vec<_>>()
    } else {
        Vec::new()
    }));
    for (from, to, source, expected) in [("a", "b", in_a, b), ("b", "a", in_b, a)] {
        let made = folder.join("out.safetensors");
        match kit::convert(Some(&mapping), (from, to), &source, &made, &options) {
            Ok(()) => {}
            // A repeat inside a block of the same repeat, which a mapping file may not hold.
            Err(errors) if errors.diagnostics()[0].code == "mapping/repeated-axis" => {
                return Err(TestCaseError::reject("an axis twice in one stored axis"));
            }
            Err(errors) if !give_sizes => {
                let open = errors.diagnostics().iter().all(|error| error.code == "bind/open-size");
                prop_assert!(open, "{from} -> {to}: {errors}\n{mapping}\n{:?}", family.sizes);
                continue;
            }
            Err(errors) => {
                let text = errors.diagnostics().iter().map(|error| {
                    format!(
                        "{} {} {:?} {:?} {:?}",
                        error.code, error.message, error.tensors, error.expected, error.found
                    )
                });
                let text = text.collect::<Vec<_>>().join("\n");
                prop_assert!(false, "{from} -> {to}: {text}\n{mapping}\n{:?}", family.sizes);
            }
        }
        let made = kit::read(&made);
        prop_assert_eq!(&made, &expected, "{} -> {}\n{}\n{:?}", from, to, mapping, family.sizes);
    }
    Ok(())
}

/// Parses a template that stands alone.
fn template(text: &str) -> Template {
    let source = Arc::new(Source { name: "template".into(), text: text.into() });
    let span = Span::new(&source, 0, text.len());
    Template::parse(Text { text, span: &span, verbatim: true })
        .unwrap_or_else(|error| panic!("{text}: {error:?}"))
}

/// A template's text and captures that fit it: a path, and indices between fixed words.
fn named() -> impl Strategy<Value = (String, Captures)> {
    let word = "[a-z][a-z0-9_]{0,5}";
    // A dot between two `_` parts no segments: TensorFlow's `layer_._0` is one.
    let segments = prop::collection::vec("[a-z0-9_]{0,3}[a-z0-9]", 0..4);
    let pieces = prop::collection::vec((word, prop::option::of((0_u64..5, 0_usize..4))), 1..4);
    let separator = prop::sample::select(vec!['.', '/']);
    (segments, pieces, separator, 0_u64..2_000, any::<bool>()).prop_map(
        |(segments, pieces, separator, index, path_first)| {
            let path = format!("{{*m}}{separator}");
            let mut text = if path_first { path.clone() } else { String::new() };
            let mut captures = Captures { paths: vec![("m".into(), segments.into())], ..Captures::default() };
            for (at, (word, axis)) in pieces.into_iter().enumerate() {
                if at > 0 {
                    text.push(separator);
                }
                text.push_str(&word);
                if let Some((offset, width)) = axis {
                    let name = format!("a{at}");
                    let offset_text = if offset > 0 { format!("+{offset}") } else { String::new() };
                    let width = if width > 0 { format!(":0{width}") } else { String::new() };
                    text.push_str(&format!("{separator}{{{name}{offset_text}{width}}}"));
                    captures.indices.push((name.into(), index / (at as u64 + 1)));
                }
            }
            if !path_first {
                text.push_str(&format!("{separator}{{*m}}"));
            }
            (text, captures)
        },
    )
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_conversion_agrees_with_a_naive_reading(stream in stream()) {
        check(&stream, true)?;
    }

    #[test]
    fn sizes_that_shapes_tell_need_not_be_given(stream in stream()) {
        check(&stream, false)?;
    }

    #[test]
    fn what_is_printed_parses_back(stream in stream()) {
        for stored in family(&stream.0).layouts.iter().flat_map(|layout| &layout.tensors) {
            let text = print_term(&stored.expr);
            let parsed = parse_str(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error:?}")))?;
            prop_assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn a_printed_name_matches_its_template((text, captures) in named()) {
        let template = template(&text);
        let (_, name) = template.print(&captures).map_err(TestCaseError::fail)?;
        prop_assert_eq!(template.matches("", &name), Some(captures), "{} {}", text, name);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[ a-z0-9():+_.{}*]{0,40}") {
        let _ = parse_str(&text);
        let source = Arc::new(Source { name: "text".into(), text: text.as_str().into() });
        let span = Span::new(&source, 0, text.len());
        let _ = Template::parse(Text { text: &text, span: &span, verbatim: true });
        let _ = qkvconv::mapping::read(&source);
    }
}

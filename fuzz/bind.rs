//! A catalogue as the input describes it, converted between two built-in layouts up to the proof; nothing is written.
//!
//! The first byte of the input chooses the family, the next two its layouts, the fourth options. What follows is lines:
//!
//! - `*N`: all tensors of the source layout, with indices below N (and 4)
//! - `@R.I.J 3 5`: the tensor of rule R with indices I, J, …; without sizes, those that the rule's expression has
//! - `NAME 3 5`: a tensor of that name and shape
//! - `h=12`: the size of an axis, as an option, and of the shapes of the lines that follow
//! - `{…}`: the config
//!
//! A line replaces the tensor of a line before it, so that one number makes a whole checkpoint that others disturb.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use qkvconv::bind::{Allow, BindOptions, Tied};
use qkvconv::convert::{Conversion, ConvertOptions};
use qkvconv::dtype::Dtype;
use qkvconv::mapping::key::Captures;
use qkvconv::mapping::select::{Selection, select};
use qkvconv::mapping::{Layout, Mapping, Rule, builtin};
use qkvconv::notation::{Dim, DimKind, Term};
use qkvconv::provenance::{Document, Provenance};
use qkvconv::report::{Outcome, card, report};

/// The most tensors of one input.
const TENSORS: usize = 2000;

/// The most bytes of one file; it is all holes.
const BYTES: u64 = 1 << 43;

/// Shapes by name, by file.
type Files = BTreeMap<String, BTreeMap<String, Vec<u64>>>;

/// Binds the catalogue that the input describes and returns the codes of its errors.
pub fn bind(input: &[u8]) -> Vec<String> {
    let mut codes = Vec::new();
    let Some((&[family, source, target, options], text)) = input.split_first_chunk::<4>() else {
        return codes;
    };
    let Ok(text) = std::str::from_utf8(text) else { return codes };
    let Some(selection) = selected(family, source, target) else { return codes };
    let options = ConvertOptions::default().bind(bind_options(options));
    super::with_folder(|folder| {
        let input = described(&selection, options, text);
        if let Some(path) = written(folder, &input) {
            codes = prepare(&selection, &path, &input.options);
        }
    });
    codes
}

/// Writes the catalogue that the input describes, of one layout, and returns what is to be opened.
pub fn catalogue(folder: &Path, input: &[u8]) -> Option<PathBuf> {
    let (&[family, source, target, options], text) = input.split_first_chunk::<4>()?;
    let text = std::str::from_utf8(text).ok()?;
    let selection = selected(family, source, target)?;
    let options = ConvertOptions::default().bind(bind_options(options));
    written(folder, &described(&selection, options, text))
}

/// Goes as far as a dry run does.
fn prepare(selection: &Selection, path: &Path, options: &ConvertOptions) -> Vec<String> {
    match Conversion::prepare(selection, path, options) {
        Ok(conversion) => {
            let _ = qkvconv::plan::explain(&conversion.plan, conversion.reader.catalog());
            let _ = report(&conversion, Outcome::default(), Duration::ZERO).to_string();
            let _ = card(&conversion, Outcome::default());
            Vec::new()
        }
        Err(errors) => {
            assert!(!errors.to_string().is_empty(), "refused without a word");
            errors.diagnostics().iter().map(|diagnostic| diagnostic.code.to_string()).collect()
        }
    }
}

fn described<'a>(selection: &'a Selection, options: ConvertOptions, text: &str) -> Input<'a> {
    let mut input = Input { selection, files: Files::new(), options };
    text.lines().for_each(|line| input.line(line));
    input
}

fn selected(family: u8, source: u8, target: u8) -> Option<Selection> {
    let families: Vec<&str> = builtin::names().collect();
    let name = families.get(usize::from(family) % families.len())?;
    let mapping = builtin::family(name)?;
    let layout = |at: u8| mapping.layouts.get_index(usize::from(at) % mapping.layouts.len());
    let (from, to) = (layout(source)?.0, layout(target)?.0);
    select(&format!("{name}/{from}"), &format!("{name}/{to}"), &[]).ok()
}

fn bind_options(bits: u8) -> BindOptions {
    let bit = |at: u32| bits >> at & 1 == 1;
    // A condition on the config is none here, where there seldom is one.
    let mut allow = vec![Allow::MissingConfig];
    let allowed = [Allow::Unmatched, Allow::IndexGap, Allow::Missing, Allow::MixedPrefix];
    allow.extend((0..).zip(allowed).filter(|(at, _)| bit(*at)).map(|(_, allow)| allow));
    BindOptions::default()
        .allow(allow)
        .strip_prefix(if bit(4) { vec!["model".to_owned()] } else { Vec::new() })
        .add_prefix(if bit(5) { "a.b.".to_owned() } else { String::new() })
        .tied(if bit(6) { Tied::Duplicate } else { Tied::KeepOne })
        .dtype(bit(7).then_some(Dtype::F16))
}

struct Input<'a> {
    selection: &'a Selection,
    files: Files,
    options: ConvertOptions,
}

impl Input<'_> {
    fn line(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix('*') {
            let count = count.trim().parse().unwrap_or(1_u64).min(4);
            for rule in &self.selection.source().rules {
                let axes = rule.template.axes().count() as u32;
                for number in 0..count.saturating_pow(axes) {
                    let digits = (0..axes).map(|at| number / count.pow(at) % count);
                    self.rule(rule, &digits.collect::<Vec<u64>>(), None);
                }
            }
        } else if let Some(line) = line.strip_prefix('@') {
            let (rule, sizes) = line.split_once(' ').unwrap_or((line, ""));
            let mut numbers = rule.split('.').map(|number| number.parse::<u64>().unwrap_or_default());
            let rules = &self.selection.source().rules;
            let at = numbers.next().unwrap_or_default() % rules.len().max(1) as u64;
            let Some(rule) = rules.get(at as usize) else { return };
            let shape = numbers_of(sizes.split(' '));
            self.rule(rule, &numbers.collect::<Vec<u64>>(), (!shape.is_empty()).then_some(shape));
        } else if line.starts_with('{') {
            let value = serde_json::from_str(line).ok();
            let config = value.map(|value| Provenance::from(Document::config("config.json", value)));
            self.options.bind.provenance = config.unwrap_or_default();
        } else if let Some((axis, size)) = line.split_once('=') {
            let size = numbers_of([size].into_iter()).first().map(|size| (axis.to_owned(), *size));
            self.options.bind.axes.extend(size);
        } else if let Some((name, sizes)) = line.split_once(' ') {
            self.add(None, name.to_owned(), numbers_of(sizes.split(' ')));
        }
    }

    fn rule(&mut self, rule: &Rule, indices: &[u64], shape: Option<Vec<u64>>) {
        let mut captures = Captures::default();
        let mut axes: Vec<&str> = rule.template.axes().collect();
        axes.sort_unstable();
        let index = |at: usize| indices.get(at).copied().unwrap_or_default();
        captures.indices = axes.iter().enumerate().map(|(at, axis)| ((*axis).into(), index(at))).collect();
        let mut paths: Vec<&str> = rule.template.paths().collect();
        paths.sort_unstable();
        let segments = |path: &str| vec!["m".to_owned(), path.to_owned()];
        captures.paths = paths.iter().map(|path| ((*path).into(), segments(path).into())).collect();
        let Ok((file, name)) = rule.template.print(&captures) else { return };
        let shape = shape.unwrap_or_else(|| {
            let (mapping, layout) = (self.selection.mapping(), self.selection.source());
            let sizes = Sizes { mapping, layout, given: &self.options.bind.axes };
            rule.expr.dims.iter().map(|dim| sizes.dim(dim, 8)).collect()
        });
        self.add(file, name, shape);
    }

    fn add(&mut self, file: Option<String>, name: String, shape: Vec<u64>) {
        if self.files.values().map(BTreeMap::len).sum::<usize>() < TENSORS {
            self.files.entry(file.unwrap_or_default()).or_default().insert(name, shape);
        }
    }
}

/// Returns the numbers: small ones, and those above what a binding accepts. What is between is as many tensors as it says,
/// which takes its time and finds nothing.
fn numbers_of<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<u64> {
    let numbers = texts.filter_map(|text| text.trim().parse().ok());
    numbers.map(|number: u64| if number > 1 << 20 { number } else { number % 64 }).collect()
}

/// The sizes of expressions.
struct Sizes<'a> {
    mapping: &'a Mapping,
    layout: &'a Layout,
    given: &'a [(String, u64)],
}

impl Sizes<'_> {
    fn dim(&self, dim: &Dim, depth: usize) -> u64 {
        match &dim.kind {
            DimKind::Axis(name) => self.axis(name, depth),
            DimKind::Size(size) => *size,
            DimKind::Sum(terms) => self.sum(terms, depth),
        }
    }

    fn sum(&self, terms: &[Term], depth: usize) -> u64 {
        let product = |term: &Term| {
            term.dims.iter().fold(1_u64, |product, dim| product.saturating_mul(self.dim(dim, depth)))
        };
        terms.iter().map(product).fold(0, u64::saturating_add)
    }

    fn axis(&self, name: &str, depth: usize) -> u64 {
        if let Some((_, size)) = self.given.iter().rev().find(|(axis, _)| axis == name) {
            return *size;
        }
        let axis = self.mapping.axis(self.layout, name);
        let composed = axis.and_then(|axis| axis.is.as_ref()).filter(|_| depth > 0);
        if let Some(terms) = composed {
            return self.sum(terms, depth - 1);
        }
        // Most axes have sizes that differ; the groups of heads do divide them.
        let usual = match name {
            "h" => 4,
            "g" => 2,
            _ => 2 + name.bytes().fold(0, |sum, byte| sum * 3 + u64::from(byte)) % 4,
        };
        axis.and_then(|axis| axis.size).unwrap_or(usual)
    }
}

/// Writes the files, as safetensors whose data are holes, and returns what is to be opened.
fn written(folder: &Path, input: &Input<'_>) -> Option<PathBuf> {
    let is_set = input.selection.source().is_file_set();
    for (name, tensors) in &input.files {
        // Names of files come from templates alone, but a template may hold a path.
        let name = name.replace('/', "_");
        write(&folder.join(if name.is_empty() { "a" } else { &name }), tensors)?;
    }
    Some(if is_set { folder.to_owned() } else { folder.join("a") })
}

fn write(path: &Path, tensors: &BTreeMap<String, Vec<u64>>) -> Option<()> {
    let mut header = String::new();
    let mut end = 0_u64;
    for (name, shape) in tensors {
        let bytes = shape.iter().try_fold(4_u64, |product, size| product.checked_mul(*size));
        let start = end;
        end = start.checked_add(bytes?).filter(|end| *end <= BYTES)?;
        let name = serde_json::to_string(name).ok()?;
        let separator = if header.is_empty() { '{' } else { ',' };
        write!(
            header,
            r#"{separator}{name}:{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        )
        .ok()?;
    }
    header.push_str(if header.is_empty() { "{}" } else { "}" });
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = File::create(path).ok()?;
    file.write_all(&(header.len() as u64).to_le_bytes()).ok()?;
    file.write_all(header.as_bytes()).ok()?;
    file.set_len(8 + header.len() as u64 + end).ok()
}

//! `qkvconv inspect --tensor KEY`: one tensor, where its heads lie, and a head taken out of it.

use std::path::PathBuf;

use qkvconv::bind::{Allow, BindOptions, SourceId, SourceTensor, bind, open_size};
use qkvconv::detect::{Candidate, only};
use qkvconv::diag::{Diagnostic, Errors, InspectCode};
use qkvconv::exec::publish::{Existing, Guard, Pending};
use qkvconv::format::output::{OutputLayout, OutputTensor, lay_out_array};
use qkvconv::inspect::{Seen, elements, kind, ranges};
use qkvconv::mapping::{Affine, Layout, Mapping};
use qkvconv::provenance::Provenance;
use serde_json::{Value, json};

use super::json::{kind_json, runs_json};
use super::{InspectArgs, Look};
use crate::cli::ui::Ui;

/// The most heads whose places are listed for programs.
const MOST_HEADS: u64 = 4096;

/// A layout, a tensor's name, a parameter, and where the head lies.
type Found = (String, String, String, Vec<Vec<u64>>);

impl Look<'_> {
    fn wrong(&self, key: &str, message: String) -> Errors {
        Diagnostic::error(InspectCode::Tensor, message).file(&self.catalog.path).tensor(key).into()
    }

    /// Looks at one tensor.
    pub(super) fn tensor(
        &self,
        ui: &Ui,
        args: &InspectArgs,
        key: &str,
        options: &BindOptions,
    ) -> Result<(), Errors> {
        let mut files = self.outputs(args)?;
        let fail = |message: String| self.wrong(key, message);
        let Some(at) = self.catalog.find(key) else {
            return Err(fail("there is no tensor of that name".to_owned()));
        };
        let (candidate, mapping, own) = match self.fit {
            Some(fit) => fit,
            None => {
                return Err(only(self.candidates, self.catalog)
                    .err()
                    .unwrap_or_else(|| fail("nothing explains it".to_owned())));
            }
        };
        let Some(bound) = &candidate.bound else {
            return Err(fail(format!("{}: give it with --axis or --config", candidate.open.join("; "))));
        };
        let Some(number) = bound.sources.iter().position(|source| source.tensor == at).map(SourceId::new)
        else {
            return Err(fail(format!("no rule of {} holds it", candidate.name())));
        };
        let source = &bound.sources[number];
        let params: Vec<&str> =
            source.instances.iter().map(|(param, _)| bound.params[*param].as_str()).collect();
        let chosen: Vec<&str> = match &args.part {
            None => params.clone(),
            Some(part) => params
                .iter()
                .copied()
                .filter(|param| param == part || is_called(mapping, param, part))
                .collect(),
        };
        if chosen.is_empty() {
            return Err(fail(format!("it has no such part; it holds {}", params.join(", "))));
        }
        let Some(head) = args.head else {
            self.whole(ui, args, number, &chosen);
            return self.svg(files.svg.take(), number, key);
        };
        let seen = Seen::new(mapping, own, bound, &source.reading);
        for param in &chosen {
            self.check_heads(&seen, key, param)?;
        }
        let mut found = Vec::new();
        for layout in mapping.layouts.values() {
            found.extend(in_layout(
                mapping,
                layout,
                self,
                (candidate, source.tensor),
                &chosen,
                head,
                options,
            ));
        }
        if found.is_empty() {
            return Err(fail(format!("it has no head {head}")));
        }
        if args.json {
            let entry = |(layout, key, param, place): &Found| {
                let ranges: Vec<String> = place.iter().map(|indices| ranges(indices)).collect();
                json!({
                    "layout": layout, "tensor": key, "part": param, "head": head,
                    "ranges": ranges, "runs": runs_json(place),
                })
            };
            ui.document(&format!("{:#}", Value::Array(found.iter().map(entry).collect())));
        } else {
            for (layout, key, param, place) in &found {
                let ranges: Vec<String> =
                    place.iter().map(|indices| format!("[{}]", ranges(indices))).collect();
                ui.result(&format!("{layout}  {param} head {head}: {key} {}", ranges.join(" ")));
            }
        }
        self.svg(files.svg, number, key)?;
        match files.save {
            Some(file) => self.save(ui, args, source, &chosen, head, file),
            None => Ok(()),
        }
    }

    /// Makes the files that are to be written.
    fn outputs(&self, args: &InspectArgs) -> Result<Files, Errors> {
        let mut guard = Guard::default();
        guard.reads("the checkpoint", &args.source);
        self.catalog.files.iter().for_each(|path| guard.reads("the checkpoint", path));
        args.files.mappings.iter().for_each(|path| guard.reads("a mapping", path));
        let config_file = self.fit.map(|(_, _, layout)| layout.config_file());
        let configs = Provenance::files(&args.source, args.config.as_deref(), config_file);
        configs.iter().for_each(|path| guard.reads("a config", path));
        let existing = Existing::forced(args.force);
        let mut open = |what, path: &Option<PathBuf>| {
            path.as_deref().map(|path| guard.open(what, path, existing)).transpose()
        };
        Ok(Files { svg: open("the picture", &args.svg)?, save: open("the array", &args.save)? })
    }

    /// A head can be pointed at where an axis is one of heads, and where all sizes that tell its place are known.
    fn check_heads(&self, seen: &Seen<'_>, key: &str, param: &str) -> Result<(), Errors> {
        let (mapping, layout) = (seen.mapping(), seen.layout());
        let wrong = |code: InspectCode, message: String| {
            Diagnostic::error(code, message).file(&self.catalog.path).tensor(key)
        };
        if mapping.head_axis(param).is_none() {
            let axes = mapping.params.get(param).map(|param| param.axes.join(" ")).unwrap_or_default();
            let error = wrong(InspectCode::NoHeads, format!("no axis of `{param}` is one of heads"))
                .expected("an axis whose role is `query heads` or `kv heads`")
                .found(format!("`{axes}`"));
            return Err(error
                .help("if it has heads, say so in the mapping file: \"h\": { \"role\": \"query heads\" }")
                .into());
        }
        let Some(open) = seen.open_axis(param) else { return Ok(()) };
        // The head size follows from the number of heads, which a config tells.
        let asked = [mapping.head_axis(param), Some(open)].into_iter().flatten();
        let known = |axis: &&str| seen.known_sizes(param).is_some_and(|sizes| sizes.contains_key(*axis));
        let mut asked = asked.filter(|axis| !known(axis));
        let axis = asked.next().unwrap_or(open);
        Err(open_size(mapping, &[layout], open, axis).file(&self.catalog.path).tensor(key).into())
    }

    /// Tells what the tensor holds, in words and as a picture, or for programs.
    fn whole(&self, ui: &Ui, args: &InspectArgs, number: SourceId, params: &[&str]) {
        let (Some((candidate, mapping, layout)), Some(bound)) = (self.fit, self.bound()) else { return };
        let source = &bound.sources[number];
        let tensor = &self.catalog.tensors[source.tensor];
        let kind = kind(mapping, layout, bound, self.catalog, &[number]);
        if !args.json {
            ui.result(&format!("{}  {} {:?}  {}", tensor.key, tensor.dtype, tensor.shape, candidate.name()));
            kind.words().iter().for_each(|line| ui.result(&format!("  {line}")));
            self.drawing(number, ui.width(), ui.is_coloured())
                .iter()
                .for_each(|line| ui.drawing(&format!("  {line}")));
            return;
        }
        let seen = Seen::new(mapping, layout, bound, &source.reading);
        let Value::Object(mut document) = kind_json(&kind) else { return };
        let parts = document.remove("parts");
        let parts = parts.iter().flat_map(Value::as_array).flatten().filter_map(|part| {
            let name = part["param"].as_str().filter(|name| params.contains(name))?;
            let mut part = part.clone();
            let heads = part["heads"].as_u64().unwrap_or(0).min(MOST_HEADS);
            let places = (0..heads).filter_map(|head| {
                let place = seen.head(&tensor.shape, name, head)?;
                Some(json!({ "head": head, "runs": runs_json(&place) }))
            });
            part["places"] = places.collect();
            Some(part)
        });
        let parts: Value = parts.collect();
        document.retain(|field, _| !matches!(field.as_str(), "names" | "count"));
        document.extend([
            ("version".to_owned(), json!(1)),
            ("layout".to_owned(), json!(candidate.name())),
            ("tensor".to_owned(), json!(tensor.key)),
            ("parts".to_owned(), parts),
        ]);
        ui.document(&format!("{:#}", Value::Object(document)));
    }

    /// Writes the elements of a head as an array.
    fn save(
        &self,
        ui: &Ui,
        args: &InspectArgs,
        source: &SourceTensor,
        params: &[&str],
        head: u64,
        file: Pending,
    ) -> Result<(), Errors> {
        let (Some((_, mapping, layout)), Some(bound)) = (self.fit, self.bound()) else { return Ok(()) };
        let tensor = &self.catalog.tensors[source.tensor];
        let fail = |message: String| self.wrong(&tensor.key, message);
        let [param] = params else {
            return Err(fail(format!("it holds {}; say which with --part", params.join(", "))));
        };
        let seen = Seen::new(mapping, layout, bound, &source.reading);
        let found = elements(&seen, &tensor.shape, param, head).map_err(fail)?;
        let Some(width) = tensor.dtype.byte_width() else {
            return Err(fail(format!(
                "elements of {} share bytes; one head cannot be taken out",
                tensor.dtype
            )));
        };
        let array = OutputTensor { key: &tensor.key, dtype: tensor.dtype, shape: &found.shape };
        let layout = lay_out_array(&array)?;
        let bytes = found
            .read(tensor, width, self.reader)
            .map_err(|error| fail(format!("cannot be read: {error}")))?;
        let path = file.target().to_owned();
        file.publish(&whole(&layout, &bytes))?;
        let axes: Vec<String> =
            found.axes.iter().zip(&found.shape).map(|(axis, size)| format!("{axis} = {size}")).collect();
        let order = if axes.is_empty() { "one element".to_owned() } else { axes.join(", ") };
        let stored = match source.affine {
            affine if affine.is_identity() => String::new(),
            Affine { scale, offset } => format!(", as stored: the parameter × {scale} + {offset}"),
        };
        let said = format!(
            "{}: {param} head {head}, {} [{order}], axes in the canonical order of {}{stored}",
            path.display(),
            tensor.dtype,
            mapping.family
        );
        // A document for programs stands alone on the standard output.
        if args.json {
            ui.say(&said)
        } else {
            ui.result(&said)
        }
        Ok(())
    }

    fn svg(&self, file: Option<Pending>, source: SourceId, key: &str) -> Result<(), Errors> {
        let (Some(file), Some(picture)) = (file, self.picture(source, (48, 64))) else { return Ok(()) };
        file.publish(picture.svg(key).as_bytes())
    }
}

/// The files that are to be written.
struct Files {
    svg: Option<Pending>,
    save: Option<Pending>,
}

/// Returns all bytes of an array's file.
fn whole(layout: &OutputLayout, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let pieces = layout.files.iter().flat_map(|file| &file.pieces);
    let pieces = pieces.map(|(at, piece)| (*at, piece.as_slice()));
    for (at, piece) in pieces.chain(layout.placements.iter().map(|place| (place.offset, data))) {
        let (start, end) = (at as usize, at as usize + piece.len());
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(piece);
    }
    bytes
}

/// Returns whether `--part` means a parameter: its name, its name without `weight` or `bias`, the last word of that, or its
/// role.
fn is_called(mapping: &Mapping, param: &str, part: &str) -> bool {
    let role = mapping.roles().param(param).map(|known| known.role.name());
    let stem = param.strip_suffix(".weight").or_else(|| param.strip_suffix(".bias")).unwrap_or(param);
    param == part || role == Some(part) || stem == part || stem.rsplit('.').next() == Some(part)
}

/// Finds a head of some parameters in another layout of the family.
fn in_layout(
    mapping: &Mapping,
    layout: &Layout,
    look: &Look<'_>,
    (candidate, tensor): (&Candidate, usize),
    params: &[&str],
    head: u64,
    options: &BindOptions,
) -> Vec<Found> {
    let Some(own) = mapping.layouts.get(&candidate.layout) else { return Vec::new() };
    let mut options = options.clone();
    options.allow.push(Allow::MissingConfig);
    let Ok(bound) = bind(mapping, own, layout, look.catalog, &options) else { return Vec::new() };
    let Some(source) = bound.sources.iter().find(|source| source.tensor == tensor) else { return Vec::new() };
    let mut found = Vec::new();
    for target in &bound.targets {
        for (param, instance) in &target.instances {
            let name = bound.params[*param].as_str();
            // Of the same layer and module alone.
            if !params.contains(&name) || !source.instances.contains(&(*param, *instance)) {
                continue;
            }
            let seen = Seen::new(mapping, layout, &bound, &target.reading);
            if let Some(place) = seen.head(&target.shape, name, head) {
                found.push((
                    format!("{}/{}", mapping.family, layout.name),
                    target.key.clone(),
                    name.to_owned(),
                    place,
                ));
            }
        }
    }
    found
}

//! What `qkvconv inspect` does with a checkpoint, by the library: the layouts that it may have, and of the one that it has
//! every kind of tensor in words, its heads, and a picture.

use std::path::Path;

use qkvconv::convert::ConvertOptions;
use qkvconv::detect::{apart, nearly_whole, only};
use qkvconv::dtype::Dtype;
use qkvconv::format::OpenOptions;
use qkvconv::inspect::{Seen, draw, elements, kinds};
use qkvconv::recognise::{Recognised, recognise};

/// Inspects a checkpoint and returns whether one layout explains it.
pub fn inspect(path: &Path) -> bool {
    let open = OpenOptions::default().void_as(vec![Dtype::BF16]);
    let options = ConvertOptions::default().open(open);
    let found = match recognise(&[], &|_, _| true, path, &options) {
        Ok(found) => found,
        Err(errors) => {
            assert!(!errors.to_string().is_empty(), "refused without a word");
            return false;
        }
    };
    let Recognised { reader, mappings, candidates, .. } = found;
    let catalog = reader.catalog();
    let _ = (nearly_whole(&candidates), apart(&candidates.iter().collect::<Vec<_>>()));
    let Ok(candidate) = only(&candidates, catalog) else { return false };
    let mapping = mappings.iter().find(|mapping| mapping.family == candidate.family);
    let layout = mapping.and_then(|mapping| mapping.layouts.get(&candidate.layout));
    let (Some(mapping), Some(layout), Some(bound)) = (mapping, layout, &candidate.bound) else {
        return false;
    };
    for kind in kinds(mapping, layout, bound, catalog).iter().take(64) {
        let _ = kind.words();
        let Some(example) = kind.example else { continue };
        let source = &bound.sources[example];
        let shape = &catalog.tensors[source.tensor].shape;
        let seen = Seen::new(mapping, layout, bound, &source.reading);
        let _ = draw(&seen, shape, (24, 48)).lines(true);
        for part in &kind.parts {
            if let Some(heads) = &part.heads {
                for head in [0, heads.saturating_sub(1), *heads] {
                    let _ = elements(&seen, shape, &part.param, head);
                }
            }
        }
    }
    true
}

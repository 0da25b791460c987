//! The mapping files that are compiled into the library.

use std::sync::Arc;

use super::Mapping;
use super::read::read;
use crate::span::Source;

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../mappings/", $name, ".json")))),*]
    };
}

/// Name and text of each file in `mappings/`.
#[rustfmt::skip]
const FILES: &[(&str, &str)] = files! {
    "attention"
    "bart"
    "beit"
    "bert"
    "bloom"
    "chatglm"
    "clip"
    "dbrx"
    "deepseek"
    "detr"
    "diffusion"
    "falcon"
    "flux"
    "gemma"
    "gpt-neox"
    "gpt2"
    "gptj"
    "llama"
    "megatron"
    "mixtral"
    "mpt"
    "olmo"
    "olmo2"
    "opt"
    "phi"
    "sam"
    "siglip"
    "swin"
    "swinv2"
    "t5"
    "transformer"
    "vae"
    "vit"
    "whisper"
};

/// Returns the names of the built-in families.
pub fn names() -> impl Iterator<Item = &'static str> + Clone {
    FILES.iter().map(|(name, _)| *name)
}

/// Returns the text of a built-in family's file.
pub(super) fn source(name: &str) -> Option<Arc<Source>> {
    let (name, text) = FILES.iter().find(|(file, _)| *file == name)?;
    Some(Arc::new(Source { name: format!("mappings/{name}.json"), text: (*text).to_owned() }))
}

/// Returns a built-in family.
///
/// # Panics
/// Never in a released build: a test reads every built-in file.
pub fn family(name: &str) -> Option<Mapping> {
    match read(&source(name)?) {
        Ok(mapping) => Some(mapping),
        Err(errors) => panic!("the built-in {name} is wrong: {errors}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_file_is_right() {
        for name in names() {
            assert_eq!(family(name).expect("is there").family, name);
        }
    }
}

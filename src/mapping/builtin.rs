//! The mapping files that are compiled into the library.

use std::sync::{Arc, OnceLock};

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
    "albert"
    "attention"
    "attention-pool"
    "bark"
    "bart"
    "beit"
    "bert"
    "blip-vision"
    "bloom"
    "chameleon"
    "chatglm"
    "clip"
    "dbrx"
    "deberta"
    "deepseek"
    "detr"
    "diffusion"
    "distilbert"
    "esm"
    "eva02"
    "falcon"
    "flux"
    "gemma"
    "gpt-neox"
    "gpt2"
    "gptj"
    "llama"
    "megatron"
    "mixtral"
    "mobilebert"
    "moonvit"
    "mpt"
    "musicgen"
    "olmo"
    "olmo2"
    "opt"
    "phi"
    "qwen-vl-vision"
    "roformer"
    "sam"
    "siglip"
    "stable-audio-3"
    "swin"
    "swinv2"
    "t5"
    "tabpfn"
    "tft"
    "transformer"
    "unet-attention"
    "vae"
    "vit"
    "wav2vec2"
    "whisper"
    "xlnet"
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

/// The families that were read, each once.
static READ: [OnceLock<Mapping>; FILES.len()] = [const { OnceLock::new() }; FILES.len()];

/// Returns a built-in family; it is read when it is first asked for.
///
/// # Panics
/// Never in a released build: a test reads every built-in file.
pub fn family(name: &str) -> Option<Mapping> {
    let at = FILES.iter().position(|(file, _)| *file == name)?;
    let source = source(name)?;
    let mapping = READ[at].get_or_init(|| match read(&source) {
        Ok(mapping) => mapping,
        Err(errors) => panic!("the built-in {name} is wrong: {errors}"),
    });
    Some(mapping.clone())
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

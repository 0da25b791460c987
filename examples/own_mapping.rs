//! Converts with a layout of one's own.
//!
//! `own_mapping [MAPPING SRC DST FROM TO]`: without arguments a layout is added to the family `attention`, and the
//! repository's model is converted to it and back.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use qkvconv::{
    Conversion, ConvertOptions, Destination, Errors, Limits, PublishOptions, Source, Verify, open, select,
};

/// Queries and values in one tensor, head by head, and the keys apart, transposed. The family `attention` has declared
/// the axes (`h` heads, `d` head size, `e` width, …) and the parameters.
const MINE: &str = r#"{
  "format": 1, "extends": "attention",
  "layouts": {
    "mine": {
      "about": "queries and values head by head, keys apart",
      "source": "an example",
      "tensors": {
        "{*m}.qv.weight":  "(h (q.weight: d + v.weight: dv)) e",
        "{*m}.qv.bias":    "(h (q.bias: d + v.bias: dv))",
        "{*m}.k.kernel":   "k.weight: e (g d)",
        "{*m}.k.bias":     "k.bias: (g d)",
        "{*m}.out.weight": "o.weight: o (h dv)",
        "{*m}.out.bias":   "o.bias: o"
      },
      "config": { "h": ["num_attention_heads"] },
      "defaults": { "g": "h", "dv": "d" }
    }
  }
}"#;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [mapping, source, target, from, to] => {
            let mapping = Source::read(mapping.as_ref())?;
            Ok(convert(&mapping, source.as_ref(), target.as_ref(), from, to)?)
        }
        [] => there_and_back(),
        _ => Err("usage: own_mapping [MAPPING SRC DST FROM TO]".into()),
    }
}

fn convert(mapping: &Arc<Source>, source: &Path, target: &Path, from: &str, to: &str) -> Result<(), Errors> {
    let layouts = select(from, to, std::slice::from_ref(mapping))?;
    let destination = Destination::resolve(target);
    let options = ConvertOptions::default().for_destination(&destination)?;
    let conversion = Conversion::prepare(&layouts, source, &options)?;
    let (limits, publish) = (Limits::default(), PublishOptions::default());
    conversion.run(&destination, publish, Verify::Full, &limits, &())?.verdict()
}

fn there_and_back() -> Result<(), Box<dyn Error>> {
    let mapping = Arc::new(Source { name: "mine.json".to_owned(), text: MINE.to_owned() });
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/digits");
    let scratch = tempfile::tempdir()?;
    let [mine, back] = ["mine.safetensors", "back.safetensors"].map(|name| scratch.path().join(name));
    convert(&mapping, &source, &mine, "attention/pytorch-fused", "attention/mine")?;
    let reader = open(&mine, &Default::default())?;
    for tensor in reader.catalog().tensors.iter().filter(|tensor| tensor.key.contains("layers.0.self_attn")) {
        println!("{} {:?}", tensor.key, tensor.shape);
    }
    convert(&mapping, &mine, &back, "attention/mine", "attention/pytorch-fused")?;

    // What came back is what went, byte by byte.
    let [first, second] =
        [source.join("model.safetensors"), back].map(|path| open(&path, &Default::default()));
    let (first, second) = (first?, second?);
    for tensor in &first.catalog().tensors {
        let other = second.catalog().find(&tensor.key).ok_or_else(|| format!("{} is lost", tensor.key))?;
        let other = &second.catalog().tensors[other];
        let mut bytes = [vec![0; usize::try_from(tensor.bytes())?], vec![0; usize::try_from(other.bytes())?]];
        first.read_exact_at(tensor.file, tensor.offset, &mut bytes[0])?;
        second.read_exact_at(other.file, other.offset, &mut bytes[1])?;
        if bytes[0] != bytes[1] {
            return Err(format!("{} differs", tensor.key).into());
        }
    }
    println!("{} tensors went there and back", first.catalog().tensors.len());
    Ok(())
}

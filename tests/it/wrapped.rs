//! Names in which frameworks' wrappers stand: FSDP, checkpointing, the compiler, DistributedDataParallel.

use crate::kit::{Folder, Tensors, numbered, read};

/// An attention module of 2 heads of size 3 under width 5, in a model with a norm.
fn model() -> Tensors {
    numbered(&[
        ("layers.0.attn.q_proj.weight", &[6, 5]),
        ("layers.0.attn.k_proj.weight", &[6, 5]),
        ("layers.0.attn.v_proj.weight", &[6, 5]),
        ("layers.0.attn.out_proj.weight", &[5, 6]),
        ("layers.0.norm.weight", &[5]),
        ("head.weight", &[7, 5]),
    ])
}

fn renamed(rename: &dyn Fn(&str) -> String) -> Tensors {
    model().into_iter().map(|(key, tensor)| (rename(&key), tensor)).collect()
}

const FROM: &str = "attention/separate";
const TO: &str = "attention/pytorch-fused";

#[test]
fn wrappers_in_names_are_taken_out_and_said_once() {
    let plain = Folder::new();
    plain.tensors("in.safetensors", &model());
    plain.convert(FROM, TO, &["--axis", "h=2"]).ok();
    let expected = read(&plain.join("out.safetensors"));
    type Rename = fn(&str) -> String;
    let renames: &[(&str, Rename, &[&str])] = &[
        (
            "_fsdp_wrapped_module",
            |key| format!("_fsdp_wrapped_module.{}", key.replace(".attn.", "._fsdp_wrapped_module.attn.")),
            &[],
        ),
        (
            "_checkpoint_wrapped_module",
            |key| key.replace("layers.0.", "layers.0._checkpoint_wrapped_module."),
            &[],
        ),
        ("_orig_mod", |key| format!("_orig_mod.{key}"), &[]),
        ("_orig_mod", |key| format!("_orig_mod.{key}"), &["--strip-prefix", "_orig_mod"]),
        ("module", |key| format!("module.{key}"), &[]),
        ("module", |key| format!("module.{key}"), &["--strip-prefix", "module"]),
        ("module", |key| key.replace("layers.0.", "layers.0.module."), &[]),
        ("module", |key| format!("model.module.{key}"), &["--strip-prefix", "model"]),
    ];
    for (wrapper, rename, more) in renames {
        let folder = Folder::new();
        folder.tensors("in.safetensors", &renamed(rename));
        let run = folder.convert(FROM, TO, &[&["--axis", "h=2"], *more].concat()).ok();
        assert_eq!(run.stderr.matches("wrappers were taken out").count(), 1, "{}", run.stderr);
        assert!(run.stderr.contains(&format!("`{wrapper}.` of ")), "{}", run.stderr);
        assert_eq!(read(&folder.join("out.safetensors")), expected, "{wrapper}");
    }
}

#[test]
fn files_stay_what_they_are_in_a_comparison() {
    let folder = Folder::new();
    folder.tensors("a.safetensors", &model());
    folder.tensors("b.safetensors", &renamed(&|key| format!("_orig_mod.{key}")));
    let run = folder.run(&["diff", "a.safetensors", "b.safetensors"]);
    assert!(run.code != 0 && run.stdout.contains("_orig_mod"), "{}", run.stdout);
}

#[test]
fn the_flat_parameter_of_a_sharded_module_gets_its_reason() {
    let folder = Folder::new();
    let mut tensors = model();
    let flat = numbered(&[("layers.1._fsdp_wrapped_module._flat_param", &[60])]);
    tensors.extend(flat);
    folder.tensors("in.safetensors", &tensors);
    let run = folder.convert(FROM, TO, &["--axis", "h=2"]);
    run.fails(&["bind/flat-parameter", "layers.1._fsdp_wrapped_module._flat_param", "FULL_STATE_DICT"]);
}

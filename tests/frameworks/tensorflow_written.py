"""Whether TensorFlow reads what is written as its checkpoints, by name and by object.

    python tensorflow_written.py QKVCONV

The digits of tests/data, written in a layout by name and one by object: `tf.train.load_checkpoint` gives every value, and
`tf.train.Checkpoint.read` restores every variable of an object that is built after the names (`assert_consumed`). Needs tensorflow and safetensors.
"""
import os, subprocess, sys, tempfile

import numpy as np
import tensorflow as tf
from safetensors.numpy import load_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def convert(binary, layout, out, *more):
    source = os.path.join(ROOT, "tests", "data", "digits", "model.safetensors")
    pair = ["--from", "attention/pytorch-fused", "--to", layout, "--axis", "h=4", "--only", "*self_attn*"]
    subprocess.run([binary, "-q", *pair, *more, source, out], check=True)


def values(folder):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def restored(folder):
    """The values that an object restores, built after the names of its variables."""
    held = {name: value for name, value in values(folder).items() if name.endswith(VALUE)}
    root = tf.Module()

    def at(path):
        node = root
        for name in path:
            if not hasattr(node, name):
                setattr(node, name, tf.Module())
            node = getattr(node, name)
        return node

    paths = {name: name[: -len(VALUE)].split("/") for name in held}
    for name, path in paths.items():
        setattr(at(path[:-1]), path[-1], tf.Variable(np.zeros_like(held[name])))
    status = tf.train.Checkpoint(root).read(tf.train.latest_checkpoint(folder))
    status.assert_consumed()
    status.assert_existing_objects_matched()
    return {name: getattr(at(path[:-1]), path[-1]).numpy() for name, path in paths.items()}


def main(binary):
    with tempfile.TemporaryDirectory() as folder:
        for layout in ["attention/tf", "attention/tf-einsum"]:
            out = os.path.join(folder, layout.replace("/", "-"))
            plain = out + ".safetensors"
            convert(binary, layout, out, "--format", "tensorflow")
            convert(binary, layout, plain)
            wanted = load_file(plain)
            found = {name: value for name, value in values(out).items() if name in wanted}
            assert found.keys() == wanted.keys() and found, layout
            assert all(np.array_equal(found[name], wanted[name]) for name in wanted), layout
            if any(name.endswith(VALUE) for name in wanted):
                objects = restored(out)
                assert all(np.array_equal(objects[name], wanted[name]) for name in wanted), layout
            print(f"{layout}: {len(wanted)} tensors equal" + (", restored by object" if VALUE in "".join(wanted) else ""))


if __name__ == "__main__":
    main(*sys.argv[1:])

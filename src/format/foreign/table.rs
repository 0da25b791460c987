//! The kinds of files and folders that are not read.
//!
//! Where the signs are from is said with each entry: the repository and file that writes them.

use super::looks::{
    is_core_ml, is_ctranslate2, is_empty, is_graph, is_meta_graph, is_onnx, is_openvino, is_saved_model,
};
use super::{Kind, Sign};
use crate::diag::FormatCode;
use Sign::{Beside, Bytes, Ending, Holds, Json, Look, Members, Message, Name, Parts, Tar, Text};

/// What a pointer of Git LFS begins with. (git-lfs/git-lfs, `docs/spec.md`)
pub(super) const LFS: &str = "version https://git-lfs";

/// What files with weights are called, for a message that names some.
pub(super) const WEIGHTS: &[&str] = &[
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.npz",
    "*.h5",
    "*.keras",
    "*.msgpack",
    "*.gguf",
    "*.index",
    "*.index.json",
];

/// What tells a folder that holds folders with checkpoints.
pub(super) const OUTER: &[&str] = &["latest", "latest_checkpointed_iteration.txt"];

const NOT_READ: FormatCode = FormatCode::NotRead;

const UNPACK: &str = "unpack it and name what is inside";
const LOAD_AND_SAVE: &str = "load it with PyTorch and save it again: `torch.save(torch.load(FILE), FILE)`";
const FROM_ORIGINAL: &str = "name the checkpoint that it was made from";
const DCP_FOLDER: &str =
    "name the folder that it belongs into, the one with `.metadata`: it is read as one checkpoint";
const CONSOLIDATE: &str = "join its parts first, with `consolidate_safetensors_files` of \
                           torch.distributed.checkpoint._consolidate_hf_safetensors, or `--allow incomplete` to read this file \
                           as it is";
const ZERO: &str = "join its parts first with DeepSpeed's `zero_to_fp32.py FOLDER model.pt`, then name that file; without \
                    stage 3 the 16-bit weights are whole in `mp_rank_00_model_states.pt` where that is the only such file";
const MEGATRON: &str = "name the folder of one of them, such as `iter_0000100`";
const RANKS: &str = "read the ranks as a set, with a layout whose rules name their files \
                     (`mp_rank_{t:02}/model_optim_rng.pt::NAME`, see mappings/README.md); where there is one rank alone, \
                     its file is the whole model: name it";
const TORCH_DIST: &str = "convert it with the framework that wrote it, such as Megatron-Bridge, or join its parts with \
                          `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt`";
const ORBAX: &str = "restore it with Orbax and save the arrays: \
                     `flax.serialization.msgpack_serialize(params)` or safetensors.flax's `save_file`";
const ZARR: &str = "load the arrays with zarr or tensorstore and save them as safetensors or npz";
const PREFIX: &str =
    "name the checkpoint beside it by its prefix: the name without the ending, or `NAME.index`";
const SAVED_MODEL: &str = "name the folder that it is in: its `variables` are read";

/// Archives one behind the other in one file: the reader of zip archives tells it.
pub(in crate::format) const SEVERAL_ARCHIVES: &Kind = &Kind {
    code: FormatCode::SeveralArchives,
    is: "several zip archives one behind the other, as torch.distributed.checkpoint writes them",
    signs: &[],
    help: DCP_FOLDER,
};

/// Slices of tensors: the reader of safetensors tells it by the metadata.
/// (pytorch/pytorch, `torch/distributed/checkpoint/filesystem.py`)
pub(in crate::format) const SLICES: &Kind = &Kind {
    code: FormatCode::Slices,
    is: "one of several files of torch.distributed.checkpoint, each with a slice of every tensor (`DCP_SHARDING_INFO`)",
    signs: &[Parts(&["shard-*-model-*-of-*.safetensors"])],
    help: CONSOLIDATE,
};

/// One table with data in it: the reader of TensorFlow's tables tells it.
/// (tensorflow/tensorflow, `tensorflow/core/util/saved_tensor_slice.proto`)
pub(in crate::format) const TENSORFLOW_V1: &Kind = &Kind {
    code: NOT_READ,
    is: "a TensorFlow checkpoint of version 1, all in one file, as was written before 2017",
    signs: &[],
    help: "save it again with TensorFlow, which reads it: `tf.compat.v1.train.Saver(write_version=2)` after restoring",
};

/// All kinds that signs tell; the first that fits is named.
pub(super) const KINDS: &[&Kind] = &[
    // What was not fetched.
    &Kind {
        code: FormatCode::Empty,
        is: "an empty file",
        signs: &[Look(is_empty)],
        help: "download or save it again",
    },
    &Kind {
        code: FormatCode::GitLfs,
        is: "a Git LFS pointer, not the file itself",
        signs: &[Text(LFS)],
        help: "run `git lfs pull` in the repository to fetch the file",
    },
    &Kind {
        code: FormatCode::Html,
        is: "an HTML page, not a checkpoint",
        signs: &[Text("<!doctype html"), Text("<html"), Text("<!doctype"), Text("<head"), Text("<body")],
        help: "download the file itself: the link leads to a page about it, or wants a login",
    },
    &Kind {
        code: FormatCode::Html,
        is: "the error message of a server, not a checkpoint",
        signs: &[
            Text("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error>"),
            Text("<Error>"),
            Text("Entry not found"),
        ],
        help: "download the file again: the link has expired, wants a login, or leads nowhere",
    },
    // Parts of one checkpoint over many files.
    &Kind {
        code: NOT_READ,
        is: "one file of a checkpoint of torch.distributed.checkpoint, which holds parts of tensors",
        signs: &[Name("*.distcp")],
        help: DCP_FOLDER,
    },
    // NVIDIA/Megatron-LM, `megatron/core/dist_checkpointing/strategies/common.py`
    &Kind {
        code: NOT_READ,
        is: "one file of a distributed checkpoint of Megatron-Core (torch_dist): what the ranks have in common, without weights",
        signs: &[
            Beside("common.pt", "metadata.json"),
            Beside("common.pt", ".metadata"),
            Beside("common.pt", "*.distcp"),
        ],
        help: TORCH_DIST,
    },
    // NVIDIA/Megatron-LM, `megatron/core/dist_checkpointing/core.py`
    &Kind {
        code: NOT_READ,
        is: "a distributed checkpoint of Megatron-Core (torch_dist), which is not read",
        signs: &[
            Parts(&["metadata.json", "common.pt"]),
            Parts(&["common.pt", "*.distcp"]),
            Beside(".metadata", "common.pt"),
            Json(&["sharded_backend"]),
        ],
        help: TORCH_DIST,
    },
    &Kind {
        code: FormatCode::MissingShard,
        is: "an unfinished checkpoint of torch.distributed.checkpoint: `*.distcp` without `.metadata`, which is written last",
        signs: &[Parts(&["*.distcp"])],
        help: "copy `.metadata` too, whose name hides it; where there is none, saving never ended: take the checkpoint before",
    },
    SLICES,
    // deepspeedai/DeepSpeed, `deepspeed/runtime/engine.py`
    &Kind {
        code: NOT_READ,
        is: "a file of one rank of DeepSpeed ZeRO, which holds parts of the weights",
        signs: &[
            Name("zero_pp_rank_*_optim_states.pt"),
            Name("bf16_zero_pp_rank_*_optim_states.pt"),
            Name("fp16_zero_pp_rank_*_optim_states.pt"),
            Name("zero_pp_rank_*_model_states.pt"),
        ],
        help: ZERO,
    },
    &Kind {
        code: NOT_READ,
        is: "a checkpoint of DeepSpeed ZeRO, which is not read",
        signs: &[Parts(&["*zero_pp_rank_*_states.pt"]), Holds(&["latest", "global_step*"])],
        help: ZERO,
    },
    // NVIDIA/Megatron-LM, `megatron/training/checkpointing.py`
    &Kind {
        code: NOT_READ,
        is: "a folder of Megatron's checkpoints",
        signs: &[Holds(&["latest_checkpointed_iteration.txt"])],
        help: MEGATRON,
    },
    &Kind {
        code: FormatCode::RankFolders,
        is: "a checkpoint of Megatron with a folder for each rank, whose tensors may be parts",
        signs: &[Holds(&["mp_rank_00"]), Holds(&["mp_rank_00_000"]), Holds(&["mp_rank_00_000_000"])],
        help: RANKS,
    },
    // google/orbax, `checkpoint/orbax/checkpoint/_src/metadata/checkpoint.py`; google/tensorstore, `tensorstore/kvstore/ocdbt`
    &Kind {
        code: NOT_READ,
        is: "an Orbax checkpoint, which is not read",
        signs: &[
            Parts(&["_METADATA"]),
            Parts(&["_CHECKPOINT_METADATA"]),
            Parts(&["manifest.ocdbt"]),
            Json(&["tree_metadata"]),
            Json(&["item_handlers"]),
            Bytes(&[(0, b"\x0c\xdb\x3a\x2a")]),
        ],
        help: ORBAX,
    },
    &Kind {
        code: NOT_READ,
        is: "zarr, which is not read",
        signs: &[
            Parts(&[".zgroup"]),
            Parts(&[".zarray"]),
            Parts(&[".zmetadata"]),
            Parts(&["zarr.json"]),
            Json(&["zarr_format"]),
            Json(&["zarr_consolidated_format"]),
        ],
        help: ZARR,
    },
    // Archives. NVIDIA-NeMo/NeMo, `nemo/core/connectors/save_restore_connector.py`
    &Kind {
        code: NOT_READ,
        is: "a NeMo archive: a tar archive of a model's configuration and weights",
        signs: &[
            Members(&["model_config.yaml", "model_weights.ckpt"]),
            Members(&["model_config.yaml", "*.distcp"]),
        ],
        help: "unpack it with `tar xf FILE` and name `model_weights.ckpt`",
    },
    &Kind {
        code: FormatCode::Tar,
        is: "a tar archive, as PyTorch wrote before version 0.1.10",
        signs: &[Members(&["storages", "tensors", "pickle"])],
        help: LOAD_AND_SAVE,
    },
    &Kind {
        code: FormatCode::Tar,
        is: "a tar archive",
        signs: &[Tar],
        help: "unpack it with `tar xf FILE` and name the file or folder of the weights",
    },
    // pytorch/pytorch, `torch/export/pt2_archive/constants.py`
    &Kind {
        code: NOT_READ,
        is: "a program of torch.export (`.pt2`), which is not read",
        signs: &[
            Members(&["archive_format", "*/models/*.json"]),
            Members(&["serialized_exported_program.json"]),
        ],
        help: "save its weights: `torch.save(torch.export.load(FILE).state_dict, \"model.pt\")`",
    },
    &Kind {
        code: FormatCode::Compressed,
        is: "a gzip file",
        signs: &[Bytes(&[(0, b"\x1f\x8b\x08")])],
        help: "unpack it: `tar xzf FILE` for an archive, such as `.nemo`, and `gunzip FILE` for a single file",
    },
    &Kind {
        code: FormatCode::Compressed,
        is: "a bzip2 file",
        signs: &[Bytes(&[(0, b"BZh"), (4, b"1AY&SY")])],
        help: "unpack it: `tar xjf FILE` for an archive, and `bunzip2 FILE` for a single file",
    },
    &Kind {
        code: FormatCode::Compressed,
        is: "an xz file",
        signs: &[Bytes(&[(0, b"\xfd7zXZ\0")])],
        help: "unpack it: `tar xJf FILE` for an archive, and `unxz FILE` for a single file",
    },
    &Kind {
        code: FormatCode::Compressed,
        is: "a Zstandard file",
        signs: &[Bytes(&[(0, b"\x28\xb5\x2f\xfd")])],
        help: "unpack it: `tar --zstd -xf FILE` for an archive, and `unzstd FILE` for a single file",
    },
    &Kind {
        code: FormatCode::Compressed,
        is: "an LZ4 file",
        signs: &[Bytes(&[(0, b"\x04\x22\x4d\x18")])],
        help: "unpack it with `unlz4 FILE` and name the result",
    },
    &Kind {
        code: FormatCode::Compressed,
        is: "a 7-Zip archive",
        signs: &[Bytes(&[(0, b"7z\xbc\xaf\x27\x1c")])],
        help: UNPACK,
    },
    &Kind {
        code: FormatCode::Compressed,
        is: "a RAR archive",
        signs: &[Bytes(&[(0, b"Rar!\x1a\x07")])],
        help: UNPACK,
    },
    // Models of other frameworks. ggml-org/llama.cpp, `convert_llama_ggml_to_gguf.py`; ggml-org/whisper.cpp, `src/whisper.cpp`
    &Kind {
        code: NOT_READ,
        is: "a ggml file from before GGUF (ggml, ggmf, ggjt), which is not read",
        signs: &[Bytes(&[(0, b"lmgg")]), Bytes(&[(0, b"fmgg")]), Bytes(&[(0, b"tjgg")])],
        help: "name the checkpoint that it was made from; for a model of llama.cpp, a GGUF file of it does too",
    },
    &Kind {
        code: NOT_READ,
        is: "a LoRA adapter of llama.cpp from before GGUF (ggla), which is not read",
        signs: &[Bytes(&[(0, b"algg")])],
        help: FROM_ORIGINAL,
    },
    // karpathy/llama2.c, `export.py`
    &Kind {
        code: NOT_READ,
        is: "a model of llama2.c",
        signs: &[Bytes(&[(0, b"24ka")])],
        help: FROM_ORIGINAL,
    },
    // tensorflow/tensorflow, `tensorflow/compiler/mlir/lite/schema/schema.fbs`: the file identifier
    &Kind {
        code: NOT_READ,
        is: "a TensorFlow Lite model, which is not read",
        signs: &[Bytes(&[(4, b"TFL3")])],
        help: FROM_ORIGINAL,
    },
    // pytorch/executorch, `schema/program.fbs`: the file identifier
    &Kind {
        code: NOT_READ,
        is: "an ExecuTorch program, which is not read",
        signs: &[Bytes(&[(4, b"ET12")])],
        help: FROM_ORIGINAL,
    },
    &Kind {
        code: NOT_READ,
        is: "a TensorRT engine, which holds weights in the form of one device",
        signs: &[
            Bytes(&[(0, b"ftrt")]),
            Bytes(&[(0, b"ptrt")]),
            Ending("*.engine"),
            Ending("*.plan"),
            Ending("*.trt"),
        ],
        help: FROM_ORIGINAL,
    },
    // apache/mxnet, `src/ndarray/ndarray.cc`: kMXAPINDArrayListMagic
    &Kind {
        code: NOT_READ,
        is: "a file of MXNet's parameters, which is not read",
        signs: &[Bytes(&[(0, b"\x12\x01\0\0\0\0\0\0")])],
        help: "load it with `mx.nd.load` and save the arrays with `numpy.savez`",
    },
    // OpenNMT/CTranslate2, `python/ctranslate2/specs/model_spec.py`: a version, the name of a specification
    &Kind {
        code: NOT_READ,
        is: "a model of CTranslate2, which is not read",
        signs: &[Look(is_ctranslate2)],
        help: FROM_ORIGINAL,
    },
    // openvinotoolkit/openvino, `src/core/src/pass/serialize.cpp`
    &Kind {
        code: NOT_READ,
        is: "a model of OpenVINO (`.xml` with its `.bin`), which is not read",
        signs: &[Look(is_openvino), Holds(&["openvino_model.xml"])],
        help: FROM_ORIGINAL,
    },
    // onnx/onnx, `onnx/onnx.proto`: ModelProto
    &Kind {
        code: NOT_READ,
        is: "an ONNX model, which is not read",
        signs: &[Message(is_onnx), Ending("*.onnx"), Ending("*.onnx.data"), Ending("*.onnx_data")],
        help: "name the checkpoint that it was made from, or save its initializers: `onnx.numpy_helper.to_array`, `numpy.savez`",
    },
    // apple/coremltools, `mlmodel/format/Model.proto`
    &Kind {
        code: NOT_READ,
        is: "a Core ML model, which is not read",
        signs: &[
            Message(is_core_ml),
            Ending("*.mlmodel"),
            Holds(&["Manifest.json", "Data"]),
            Json(&["rootModelIdentifier"]),
        ],
        help: FROM_ORIGINAL,
    },
    // tensorflow/tensorflow, `tensorflow/core/protobuf/{saved_model,meta_graph}.proto`, `tensorflow/core/framework/graph.proto`
    &Kind {
        code: NOT_READ,
        is: "the graph of a TensorFlow SavedModel, which holds no weights",
        signs: &[Message(is_saved_model), Ending("saved_model.pb")],
        help: SAVED_MODEL,
    },
    &Kind {
        code: NOT_READ,
        is: "a TensorFlow SavedModel whose `variables` are not there",
        signs: &[Holds(&["saved_model.pb"]), Holds(&["saved_model.pbtxt"])],
        help: "fetch its folder `variables` too; a frozen graph has none: name the checkpoint that it was made from",
    },
    &Kind {
        code: NOT_READ,
        is: "the graph of a TensorFlow checkpoint (`.meta`), which holds no weights",
        signs: &[Message(is_meta_graph), Ending("*.meta")],
        help: PREFIX,
    },
    &Kind {
        code: NOT_READ,
        is: "a TensorFlow graph (a frozen one has its weights as constants), which is not read",
        signs: &[Message(is_graph), Ending("*.pb"), Ending("*.pbtxt")],
        help: "name the checkpoint or SavedModel that it was made from",
    },
    &Kind {
        code: NOT_READ,
        is: "the list of a folder's TensorFlow checkpoints, which holds no weights",
        signs: &[Text("model_checkpoint_path:")],
        help: "name its folder, or one checkpoint by its prefix",
    },
    &Kind {
        code: NOT_READ,
        is: "a data file of a TensorFlow checkpoint whose index (`NAME.index`) is not beside it",
        signs: &[Ending("*.data-*-of-*")],
        help: "fetch the index too, and name the checkpoint by its prefix",
    },
    // tensorflow/tfjs, `tfjs-converter/python/tensorflowjs/write_weights.py`
    &Kind {
        code: NOT_READ,
        is: "a TensorFlow.js model, which is not read",
        signs: &[Json(&["weightsManifest"]), Holds(&["model.json", "group1-shard*"])],
        help: FROM_ORIGINAL,
    },
    // Files beside the weights.
    &Kind {
        code: FormatCode::NoWeights,
        is: "a configuration, not weights",
        signs: &[
            Json(&["model_type"]),
            Json(&["architectures"]),
            Json(&["peft_type"]),
            Json(&["class_name", "config"]),
            Json(&["_class_name"]),
            Json(&["tokenizer_class"]),
            Json(&["added_tokens", "model"]),
        ],
        help: "name the folder that it is in, or the file of the weights",
    },
    &Kind {
        code: FormatCode::NoWeights,
        is: "a table of data (Parquet, Arrow), not weights",
        signs: &[Bytes(&[(0, b"PAR1")]), Bytes(&[(0, b"ARROW1")])],
        help: "name the file of the weights",
    },
    &Kind {
        code: FormatCode::NoWeights,
        is: "a document or a picture, not weights",
        signs: &[
            Bytes(&[(0, b"%PDF-")]),
            Bytes(&[(0, b"\x89PNG\r\n\x1a\n")]),
            Bytes(&[(0, b"\xff\xd8\xff")]),
            Bytes(&[(0, b"GIF8")]),
        ],
        help: "name the file of the weights",
    },
    &Kind {
        code: FormatCode::NoWeights,
        is: "a program, not weights",
        signs: &[Bytes(&[(0, b"\x7fELF")]), Bytes(&[(0, b"MZ")]), Bytes(&[(0, b"#!/")])],
        help: "name the file of the weights; a llamafile is a zip archive with a GGUF file in it: `unzip FILE`",
    },
];

//! The arguments that subcommands share, and what they take.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, ValueEnum};
use qkvconv::bind::{Allow, Tied};
use qkvconv::convert::Verify;
use qkvconv::dtype::Dtype;
use qkvconv::format::Format;

/// Mapping files beside those that are built in.
#[derive(Clone, Debug, Args)]
pub(super) struct MappingFiles {
    /// A mapping file of your own; may be given several times.
    ///
    /// Example: --mapping my-model.json
    #[arg(long = "mapping", value_name = "FILE")]
    pub(super) mappings: Vec<PathBuf>,
}

/// The layouts, and how the source is read.
#[derive(Debug, Args)]
pub(super) struct LayoutArgs {
    /// The layout of the source, or `auto`.
    ///
    /// `family/layout` or bare; `auto` takes the one that explains the source.
    ///
    /// Example: --from pytorch-fused
    #[arg(long, value_name = "LAYOUT", required = true)]
    pub(super) from: Option<String>,

    /// The layout of the destination.
    ///
    /// Example: --to attention/per-head
    #[arg(long, value_name = "LAYOUT", required = true)]
    pub(super) to: Option<String>,

    #[command(flatten)]
    pub(super) files: MappingFiles,

    #[command(flatten)]
    pub(super) open: OpenArgs,

    /// The size of an axis; may be given several times.
    ///
    /// Example: --axis h=12 --axis g=4
    #[arg(long = "axis", value_name = "AXIS=SIZE", value_parser = axis_size)]
    pub(super) axes: Vec<(String, u64)>,

    /// The source's config; without it config.json or params.json beside the source is read.
    ///
    /// Example: --config config.json
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    pub(super) config: Option<PathBuf>,

    /// Take only tensors whose names match.
    ///
    /// Example: --only 'encoder.*'
    #[arg(long, value_name = "GLOB", help_heading = "Source")]
    pub(super) only: Vec<String>,

    /// Convert only the modules whose paths match, what stands before the names of a family's tensors, and pass all others
    /// through as they are; `!` before a glob leaves out those that match. May be given several times.
    ///
    /// Example: --modules 'language_model.*' --modules '!*.cross_attn'
    #[arg(long, value_name = "GLOB", help_heading = "Source", hide_short_help = true)]
    pub(super) modules: Vec<String>,

    /// Leave out tensors whose names match.
    ///
    /// Example: --drop '*.rotary_emb.inv_freq'
    #[arg(long, value_name = "GLOB", help_heading = "Source")]
    pub(super) drop: Vec<String>,

    /// Remove leading components from all names, as often as they stand there.
    ///
    /// Example: --strip-prefix module
    #[arg(long, value_name = "PREFIX", help_heading = "Source", hide_short_help = true)]
    pub(super) strip_prefix: Vec<String>,

    /// Put a prefix before all names of the output.
    ///
    /// Example: --add-prefix model.
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true,
        help_heading = "Output",
        hide_short_help = true
    )]
    pub(super) add_prefix: String,

    /// Cast all tensors of F64, F32, F16 and BF16.
    ///
    /// Kept ones too; other types stay as they are, FP8 with scales is refused, and a value that overflows is an error.
    ///
    /// Example: --dtype bf16
    #[arg(long, value_name = "TYPE", help_heading = "Output")]
    pub(super) dtype: Option<FloatType>,

    /// What becomes of tied tensors that pass through: one is kept and the others are named in the metadata, or each is
    /// written.
    ///
    /// Example: --tied duplicate
    #[arg(
        long,
        value_name = "HOW",
        default_value = "keep-one",
        help_heading = "Output",
        hide_short_help = true
    )]
    pub(super) tied: TiedHow,

    /// Allow what is an error otherwise; may be given several times.
    ///
    /// Example: --allow unmatched
    #[arg(long, value_name = "WHAT")]
    pub(super) allow: Vec<Allowed>,

    /// Let --from and --axis overrule what the source records and what its weights say.
    #[arg(long, hide_short_help = true)]
    pub(super) trust_layout: bool,

    /// How many threads to use; the output does not depend on it.
    ///
    /// Example: --threads 4
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        env = "QKVCONV_THREADS",
        hide_env_values = true
    )]
    pub(super) threads: Option<u16>,
}

/// How checkpoints are opened.
#[derive(Clone, Debug, Args)]
pub(super) struct OpenArgs {
    /// The container that holds the weights, in a file that nests them among other things.
    ///
    /// Example: --root model
    #[arg(long, value_name = "NAME", help_heading = "Source", hide_short_help = true)]
    pub(super) root: Option<String>,

    /// What raw bytes without a type are, as NumPy stores bfloat16 (`|V2`); one for each width.
    ///
    /// Example: --void-as bf16
    #[arg(long, value_name = "TYPE", help_heading = "Source", hide_short_help = true)]
    pub(super) void_as: Vec<VoidType>,

    /// The most bytes of a config that is read; without it 64MiB.
    ///
    /// Example: --max-config-size 1GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, help_heading = "Source", hide_short_help = true)]
    pub(super) max_config_size: Option<u64>,

    /// The most memory that one compressed chunk of an HDF5 file may take; without it 256MiB and four times the file's
    /// size.
    ///
    /// Example: --max-chunk-size 2GiB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, help_heading = "Source", hide_short_help = true)]
    pub(super) max_chunk_size: Option<u64>,
}

/// What `--void-as` takes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum VoidType {
    Bf16,
    #[value(name = "f8-e4m3", alias = "f8e4m3")]
    F8E4m3,
    #[value(name = "f8-e5m2", alias = "f8e5m2")]
    F8E5m2,
}

impl From<VoidType> for Dtype {
    fn from(void: VoidType) -> Dtype {
        match void {
            VoidType::Bf16 => Dtype::BF16,
            VoidType::F8E4m3 => Dtype::F8E4M3,
            VoidType::F8E5m2 => Dtype::F8E5M2,
        }
    }
}

/// What `--format` takes: the formats that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutputFormat(pub(super) Format);

impl ValueEnum for OutputFormat {
    fn value_variants<'a>() -> &'a [OutputFormat] {
        static WRITTEN: LazyLock<Vec<OutputFormat>> = LazyLock::new(|| {
            let written = Format::ALL.iter().filter(|format| format.is_written());
            written.map(|format| OutputFormat(*format)).collect()
        });
        &WRITTEN
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.name()))
    }
}

/// The conversion.
#[derive(Debug, Args)]
pub(super) struct ConvertArgs {
    #[command(flatten)]
    pub(super) layouts: LayoutArgs,

    /// The source: a checkpoint's file, index, prefix or folder.
    ///
    /// A file in any of the formats, a sharded checkpoint's index, the prefix of a TensorFlow checkpoint, or the folder that
    /// holds one.
    #[arg(value_name = "SRC", required = true)]
    pub(super) source: Option<PathBuf>,

    /// The destination: a file where the name ends as one (.safetensors, .pt, …), else a folder.
    ///
    /// A name that ends as a format's files do (.safetensors, .bin, .pt, .npz, .h5, .msgpack, .gguf) is a file of that
    /// format, any other a folder.
    #[arg(value_name = "DST", required = true)]
    pub(super) destination: Option<PathBuf>,

    /// What to check of the output before it is published.
    ///
    /// Example: --verify readback
    #[arg(long, value_name = "HOW", default_value = "full", env = "QKVCONV_VERIFY", hide_env_values = true)]
    pub(super) verify: VerifyHow,

    /// The most bytes of tensors in one file of a destination folder.
    ///
    /// Example: --max-shard-size 2GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, help_heading = "Output", hide_short_help = true, env = "QKVCONV_MAX_SHARD_SIZE", hide_env_values = true)]
    pub(super) max_shard_size: Option<u64>,

    /// The most bytes of a file beside the weights that goes along; without it 256MiB.
    ///
    /// Example: --max-companion-size 1GB
    #[arg(long, value_name = "SIZE", value_parser = byte_size, help_heading = "Output", hide_short_help = true)]
    pub(super) max_companion_size: Option<u64>,

    /// The format of the output; without it the destination's ending says.
    ///
    /// Example: --format pytorch
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub(super) format: Option<OutputFormat>,

    /// A GGUF file whose metadata the output takes over.
    ///
    /// Example: --template original.gguf
    #[arg(long, value_name = "FILE", help_heading = "Output", hide_short_help = true)]
    pub(super) template: Option<PathBuf>,

    /// Replace what is at the destination, and the file of --report.
    #[arg(long, help_heading = "Output")]
    pub(super) force: bool,

    /// Wait until the output is on the device, so that it survives a power failure.
    #[arg(long, help_heading = "Output", hide_short_help = true)]
    pub(super) sync: bool,

    /// Keep finished files when the run is interrupted, and go on from those of an earlier run.
    #[arg(long, help_heading = "Output")]
    pub(super) resume: bool,

    /// Show the plan and write nothing.
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Write a report, also of a run that fails: JSON, or a short Markdown card where the name ends in .md.
    ///
    /// Example: --report report.json
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,

    /// Print errors alone.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// `qkvconv verify`
#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    pub(super) layouts: LayoutArgs,

    /// The source of the conversion.
    #[arg(value_name = "SRC", required = true)]
    pub(super) source: Option<PathBuf>,

    /// What the conversion made.
    #[arg(value_name = "DST", required = true)]
    pub(super) destination: Option<PathBuf>,

    /// The container that holds the weights in DST, as --root says it of SRC.
    ///
    /// Example: --to-root model
    #[arg(long, value_name = "NAME")]
    pub(super) to_root: Option<String>,

    /// Write a report, also of a run that fails: JSON, or a short Markdown card where the name ends in .md.
    ///
    /// Example: --report report.json
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,

    /// Replace the file of --report.
    #[arg(long)]
    pub(super) force: bool,

    /// Print errors alone.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// What `--color` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Colour {
    /// Where there is a terminal that takes colours (NO_COLOR, CLICOLOR_FORCE and TERM count).
    #[default]
    Auto,
    /// Also into files and pipes.
    Always,
    /// No colours.
    Never,
}

/// What `--verify` takes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum VerifyHow {
    /// Nothing is checked.
    None,
    /// Every element is read back.
    Readback,
    /// Every element is read back, and the attention modules are computed from both files.
    Full,
}

impl From<VerifyHow> for Verify {
    fn from(how: VerifyHow) -> Verify {
        match how {
            VerifyHow::None => Verify::None,
            VerifyHow::Readback => Verify::Readback,
            VerifyHow::Full => Verify::Full,
        }
    }
}

/// What `--tied` takes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum TiedHow {
    /// One of them is kept.
    KeepOne,
    /// Each is written.
    Duplicate,
}

impl From<TiedHow> for Tied {
    fn from(how: TiedHow) -> Tied {
        match how {
            TiedHow::KeepOne => Tied::KeepOne,
            TiedHow::Duplicate => Tied::Duplicate,
        }
    }
}

/// What `--dtype` takes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum FloatType {
    F64,
    F32,
    F16,
    Bf16,
}

impl From<FloatType> for Dtype {
    fn from(wanted: FloatType) -> Dtype {
        match wanted {
            FloatType::F64 => Dtype::F64,
            FloatType::F32 => Dtype::F32,
            FloatType::F16 => Dtype::F16,
            FloatType::Bf16 => Dtype::BF16,
        }
    }
}

/// What `--allow` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// While binding.
    Bind(Allow),
    /// While opening.
    Open(OpenAllow),
    /// An output that is larger than the room that the file system tells.
    LowSpace,
}

/// What `--allow` takes where checkpoints are opened and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OpenAllow {
    /// A symbolic link that leaves the checkpoint's folder.
    OutsideLink,
    /// A file that is one part of a checkpoint, read without the others.
    Incomplete,
}

impl ValueEnum for Allowed {
    fn value_variants<'a>() -> &'a [Allowed] {
        const OPEN: [OpenAllow; 2] = [OpenAllow::OutsideLink, OpenAllow::Incomplete];
        const COUNT: usize = Allow::ALL.len() + OPEN.len() + 1;
        const ALL: [Allowed; COUNT] = {
            let mut all = [Allowed::LowSpace; COUNT];
            let mut at = 0;
            while at + 1 < COUNT {
                all[at] = if at < Allow::ALL.len() {
                    Allowed::Bind(Allow::ALL[at].0)
                } else {
                    Allowed::Open(OPEN[at - Allow::ALL.len()])
                };
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        match self {
            Allowed::LowSpace => {
                let help = "the output may be larger than the free space that the file system tells";
                Some(clap::builder::PossibleValue::new("low-space").help(help))
            }
            Allowed::Open(allow) => allow.to_possible_value(),
            Allowed::Bind(allow) => {
                let (_, name) = Allow::ALL.iter().find(|(other, _)| other == allow)?;
                Some(clap::builder::PossibleValue::new(*name).help(allow.about()))
            }
        }
    }
}

pub(super) fn axis_size(text: &str) -> Result<(String, u64), String> {
    let (axis, size) = text.split_once('=').ok_or("write AXIS=SIZE, such as h=12")?;
    let size = size.parse().map_err(|_| format!("`{size}` is no whole number"))?;
    if axis.is_empty() || size == 0 && axis != "u" {
        return Err("a size is a whole number from 1".into());
    }
    Ok((axis.to_owned(), size))
}

/// Parses a size as the ecosystem writes it: `5GB` is decimal, `5GiB` binary.
pub(super) fn byte_size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(format!("`{unit}` is no unit; write B, KB, MB, GB, KiB, MiB or GiB")),
    };
    let number: u64 = number.parse().map_err(|_| "a size begins with a whole number".to_owned())?;
    number
        .checked_mul(factor)
        .filter(|size| *size > 0)
        .ok_or_else(|| "a size is from 1 byte to 16 EiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(byte_size("5GB"), Ok(5_000_000_000));
        assert_eq!(byte_size("1KiB"), Ok(1024));
        for text in ["", "GB", "5XB", "0", "99999999999999999GB"] {
            assert!(byte_size(text).is_err(), "{text}");
        }
        assert_eq!(axis_size("h=12"), Ok(("h".to_owned(), 12)));
        for text in ["h", "h=", "h=x", "=3", "h=0", "h=-1"] {
            assert!(axis_size(text).is_err(), "{text}");
        }
    }
}

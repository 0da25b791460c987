//! The formats: which there are, and what each is like.

use std::fmt;
use std::path::Path;

use super::spec::{Shards, Spec};
use super::{Format, dcp, gguf, hdf5, msgpack, numpy, pytorch, safetensors, tensorflow};

/// Lists every format with its specification; the compiler demands that none is left out.
macro_rules! formats {
    ($($format:ident => $spec:path,)*) => {
        impl Format {
            /// Every format, in the order in which files are asked whether they are of it.
            pub const ALL: &[Format] = &[$(Format::$format),*];

            /// Returns what the format is like.
            pub(super) const fn spec(self) -> &'static Spec {
                match self {
                    $(Format::$format => &$spec,)*
                }
            }
        }
    };
}

formats! {
    Safetensors => safetensors::SPEC,
    Dcp => dcp::SPEC,
    PyTorch => pytorch::SPEC,
    Keras => hdf5::KERAS,
    Npz => numpy::NPZ,
    Npy => numpy::NPY,
    Gguf => gguf::SPEC,
    Hdf5 => hdf5::SPEC,
    Msgpack => msgpack::SPEC,
    TensorFlow => tensorflow::SPEC,
}

impl Format {
    /// Returns the name of the format, as `--format` takes it.
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns whether checkpoints are written in the format.
    pub const fn is_written(self) -> bool {
        self.spec().write.is_some()
    }

    /// Returns whether checkpoints of the format can be cut into several files.
    pub const fn has_shards(self) -> bool {
        matches!(self.spec().shards, Shards::Index | Shards::Numbered(_))
    }

    /// Returns whether a checkpoint is a folder of files, whatever its size.
    pub const fn is_folder(self) -> bool {
        matches!(self.spec().shards, Shards::Apart)
    }

    /// Returns whether the several files of a checkpoint have an index.
    pub const fn has_index(self) -> bool {
        matches!(self.spec().shards, Shards::Index)
    }

    /// Returns the format that a file's name asks for by its ending, for a file that is to be written.
    pub fn of_ending(path: &Path) -> Option<Format> {
        let ending = path.extension()?.to_str()?;
        let has = |format: &&Format| format.is_written() && format.spec().endings.contains(&ending);
        Format::ALL.iter().find(has).copied()
    }

    /// Returns the endings of files that are written, without the dot.
    pub(crate) fn written_endings() -> impl Iterator<Item = &'static str> {
        let written = Format::ALL.iter().filter(|format| format.is_written() && !format.is_folder());
        written.flat_map(|format| format.spec().endings.iter().copied())
    }

    /// Returns the name of a checkpoint of one file.
    pub(crate) const fn single_name(self) -> &'static str {
        self.spec().file_name
    }

    /// Returns the ending of a new file, with its dot.
    pub(super) fn ending(self) -> &'static str {
        let name = self.single_name();
        name.rfind('.').map_or("", |dot| &name[dot..])
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_formats_say_of_themselves_agrees() {
        for (at, format) in Format::ALL.iter().enumerate() {
            let spec = format.spec();
            assert_eq!(format.ending(), format!(".{}", spec.endings[0]), "{format}");
            for other in &Format::ALL[at + 1..] {
                assert_ne!(spec.name, other.name());
                assert!(!spec.endings.iter().any(|ending| other.spec().endings.contains(ending)), "{other}");
            }
        }
        assert_eq!(Format::of_ending(Path::new("a.bin")), Some(Format::PyTorch));
        assert_eq!(Format::of_ending(Path::new("a.npy")), None);
        assert_eq!(Format::of_ending(Path::new("a")), None);
    }
}

//! The codes of diagnostics, one enum per stage, made of one table.
//!
//! What follows from a code follows from its row: the name, the stable text `stage/kind`, and the class, from which the
//! command line's exit status follows. `src/codes.md` documents each; a test holds the two against each other.

use std::fmt;
use std::str::FromStr;

use super::nearest::nearest;

/// What a run that ends with errors has come to; the exit status of the command line follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Something is wrong with the checkpoint, the mapping or the machine.
    Failed,
    /// The command line, or what a caller asks for, is wrong.
    Usage,
    /// Two checkpoints do not hold the same.
    Differs,
    /// Whoever watches has stopped the work.
    Cancelled,
}

/// Makes the enums of a table: per stage its name and text, and per code its name, the second part of its text, its class.
macro_rules! codes {
    ($(
        $(#[$about:meta])*
        $stage:ident($codes:ident) = $text:literal { $($code:ident = $kind:literal: $class:ident,)+ }
    )+) => {
        /// The stages that find what is wrong, the part of a code before the stroke.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Stage {
            $($(#[$about])* $stage,)+
        }

        impl Stage {
            /// Every stage, in alphabetical order.
            pub const ALL: &[Stage] = &[$(Stage::$stage,)+];

            /// Returns its name, such as `bind`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Stage::$stage => $text,)+
                }
            }
        }

        /// What a diagnostic is about: the stage that found it, and what it found. Its text is `stage/kind`.
        ///
        /// ```
        /// use qkvconv::diag::{BindCode, Class, Code, Stage, VerifyCode};
        ///
        /// let code: Code = "bind/open-size".parse()?;
        /// assert_eq!((code, code.stage()), (Code::Bind(BindCode::OpenSize), Stage::Bind));
        /// assert_eq!(Code::from(VerifyCode::Differs).class(), Class::Differs);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$about])* $stage($codes),)+
        }

        impl Code {
            /// Every code, in alphabetical order.
            pub const ALL: &[Code] = &[$($(Code::$stage($codes::$code),)+)+];

            /// Returns the stage that finds it.
            pub const fn stage(self) -> Stage {
                match self {
                    $(Code::$stage(_) => Stage::$stage,)+
                }
            }

            /// Returns its stable text, `stage/kind`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($(Code::$stage($codes::$code) => concat!($text, "/", $kind),)+)+
                }
            }

            /// Returns what a run that ends with it has come to.
            pub const fn class(self) -> Class {
                match self {
                    $($(Code::$stage($codes::$code) => Class::$class,)+)+
                }
            }
        }

        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            #[non_exhaustive]
            pub enum $codes {
                $(
                    #[doc = concat!("`", $text, "/", $kind, "`")]
                    $code,
                )+
            }

            impl From<$codes> for Code {
                fn from(code: $codes) -> Code {
                    Code::$stage(code)
                }
            }

            impl PartialEq<$codes> for Code {
                fn eq(&self, other: &$codes) -> bool {
                    *self == Code::$stage(*other)
                }
            }
        )+
    };
}

codes! {
    /// A checkpoint held against two layouts.
    Bind(BindCode) = "bind" {
        Ambiguous = "ambiguous": Failed,
        Collision = "collision": Failed,
        Condition = "condition": Failed,
        ConfigValue = "config-value": Failed,
        Count = "count": Failed,
        FileName = "file-name": Failed,
        FlatParameter = "flat-parameter": Failed,
        Formula = "formula": Failed,
        IndexCount = "index-count": Failed,
        IndexGap = "index-gap": Failed,
        Indivisible = "indivisible": Failed,
        LeftBehind = "left-behind": Failed,
        Missing = "missing": Failed,
        MixedDtype = "mixed-dtype": Failed,
        Modules = "modules": Failed,
        Name = "name": Failed,
        NoFile = "no-file": Failed,
        NoPlace = "no-place": Failed,
        NotCast = "not-cast": Failed,
        Nothing = "nothing": Failed,
        OpenSize = "open-size": Failed,
        Overflow = "overflow": Failed,
        Prefix = "prefix": Failed,
        Rank = "rank": Failed,
        ScaledCast = "scaled-cast": Failed,
        SizeConflict = "size-conflict": Failed,
        Tied = "tied": Failed,
        TooMany = "too-many": Failed,
        UnknownAxis = "unknown-axis": Failed,
        Unmatched = "unmatched": Failed,
        Wrappers = "wrappers": Failed,
    }
    /// Tensors that lie in several parts.
    Catalog(CatalogCode) = "catalog" {
        Extent = "extent": Failed,
        Missing = "missing": Failed,
    }
    /// The model's configuration.
    Config(ConfigCode) = "config" {
        Json = "json": Failed,
        Read = "read": Failed,
        Rope = "rope": Failed,
    }
    /// Beside the output.
    Convert(ConvertCode) = "convert" {
        Companion = "companion": Failed,
        Config = "config": Failed,
        NoTensor = "no-tensor": Failed,
    }
    /// What the plan requires of the weights.
    Data(DataCode) = "data" {
        Nonzero = "nonzero": Failed,
        Unequal = "unequal": Failed,
    }
    /// Which layout a checkpoint has.
    Detect(DetectCode) = "detect" {
        None = "none": Failed,
        Several = "several": Failed,
        UnknownModel = "unknown-model": Failed,
    }
    /// Two checkpoints compared.
    Diff(DiffCode) = "diff" {
        Cancelled = "cancelled": Cancelled,
        Nothing = "nothing": Failed,
        Read = "read": Failed,
    }
    /// A mapping file begun.
    Draft(DraftCode) = "draft" {
        Empty = "empty": Failed,
        Name = "name": Failed,
    }
    /// What the weights themselves say.
    Evidence(EvidenceCode) = "evidence" {
        Contradicts = "contradicts": Failed,
        Read = "read": Failed,
    }
    /// The conversion as it runs.
    Exec(ExecCode) = "exec" {
        Cancelled = "cancelled": Cancelled,
        ConvertType = "convert-type": Failed,
        Overflow = "overflow": Failed,
        Read = "read": Failed,
        Write = "write": Failed,
    }
    /// Files of weights.
    Format(FormatCode) = "format" {
        AmbiguousFolder = "ambiguous-folder": Failed,
        AmbiguousRoot = "ambiguous-root": Failed,
        BadEntry = "bad-entry": Failed,
        BadHeader = "bad-header": Failed,
        BadIndex = "bad-index": Failed,
        BadOffsets = "bad-offsets": Failed,
        BadPickle = "bad-pickle": Failed,
        BadShape = "bad-shape": Failed,
        BadStorage = "bad-storage": Failed,
        BadTensor = "bad-tensor": Failed,
        BigEndian = "big-endian": Failed,
        CannotHold = "cannot-hold": Failed,
        Changed = "changed": Failed,
        ChunkSize = "chunk-size": Failed,
        Compressed = "compressed": Failed,
        DuplicateKey = "duplicate-key": Failed,
        Empty = "empty": Failed,
        Ending = "ending": Failed,
        GitLfs = "git-lfs": Failed,
        Hdf5 = "hdf5": Failed,
        Hdf5Link = "hdf5-link": Failed,
        Hdf5Storage = "hdf5-storage": Failed,
        HeaderTooLarge = "header-too-large": Failed,
        Hole = "hole": Failed,
        Html = "html": Failed,
        IndexDecides = "index-decides": Failed,
        IndexTensorNotInShard = "index-tensor-not-in-shard": Failed,
        Io = "io": Failed,
        Keras = "keras": Failed,
        MetadataConflict = "metadata-conflict": Failed,
        MetadataDropped = "metadata-dropped": Failed,
        MetadataNotString = "metadata-not-string": Failed,
        MissingShard = "missing-shard": Failed,
        NestedTooDeep = "nested-too-deep": Failed,
        NoCheckpoint = "no-checkpoint": Failed,
        NoJson = "no-json": Failed,
        NoLatest = "no-latest": Failed,
        NoRoot = "no-root": Failed,
        NoSets = "no-sets": Failed,
        NoShards = "no-shards": Failed,
        NoTemplate = "no-template": Failed,
        NoTensors = "no-tensors": Failed,
        NoWeights = "no-weights": Failed,
        NotAFile = "not-a-file": Failed,
        NotIndexed = "not-indexed": Failed,
        NotPytorch = "not-pytorch": Failed,
        NotRead = "not-read": Failed,
        NotWritten = "not-written": Failed,
        Npy = "npy": Failed,
        ObjectArray = "object-array": Failed,
        OneShard = "one-shard": Failed,
        OpaqueDtype = "opaque-dtype": Failed,
        OtherWeights = "other-weights": Failed,
        Overlap = "overlap": Failed,
        OverlappingViews = "overlapping-views": Failed,
        PathEscape = "path-escape": Failed,
        PickleTooLarge = "pickle-too-large": Failed,
        RankFolders = "rank-folders": Failed,
        ReservedName = "reserved-name": Failed,
        SeveralArchives = "several-archives": Failed,
        ShapeOverflow = "shape-overflow": Failed,
        SizeMismatch = "size-mismatch": Failed,
        Skipped = "skipped": Failed,
        Slices = "slices": Failed,
        SubByte = "sub-byte": Failed,
        Tar = "tar": Failed,
        TotalSize = "total-size": Failed,
        TrailingBytes = "trailing-bytes": Failed,
        Truncated = "truncated": Failed,
        Unknown = "unknown": Failed,
        UnknownDtype = "unknown-dtype": Failed,
        UnsafePickle = "unsafe-pickle": Failed,
        UnsupportedDtype = "unsupported-dtype": Failed,
        UnsupportedTensor = "unsupported-tensor": Failed,
        Version = "version": Failed,
        ViewOutOfStorage = "view-out-of-storage": Failed,
        Zip = "zip": Failed,
        ZipMethod = "zip-method": Failed,
    }
    /// What an earlier conversion recorded.
    Identity(IdentityCode) = "identity" {
        Axis = "axis": Failed,
        Layout = "layout": Failed,
        Mapping = "mapping": Failed,
        Model = "model": Failed,
    }
    /// Rules found from two checkpoints.
    Infer(InferCode) = "infer" {
        Into = "into": Failed,
        Nothing = "nothing": Failed,
        Read = "read": Failed,
    }
    /// Heads and pictures.
    Inspect(InspectCode) = "inspect" {
        NoHeads = "no-heads": Failed,
        Tensor = "tensor": Failed,
    }
    /// Mapping files checked without a checkpoint.
    Lint(LintCode) = "lint" {
        Ambiguous = "ambiguous": Failed,
        Forward = "forward": Failed,
        ForwardTensor = "forward-tensor": Failed,
        List = "list": Failed,
        LostAxis = "lost-axis": Failed,
        Misplaced = "misplaced": Failed,
        Name = "name": Failed,
        Never = "never": Failed,
        NoMatch = "no-match": Failed,
        NoPlace = "no-place": Failed,
        NoRule = "no-rule": Failed,
        OpenSize = "open-size": Failed,
        Role = "role": Failed,
        SameName = "same-name": Failed,
        Target = "target": Failed,
        TooLarge = "too-large": Failed,
        UnusedAxis = "unused-axis": Failed,
        UnusedParam = "unused-param": Failed,
    }
    /// Mapping files read.
    Mapping(MappingCode) = "mapping" {
        AmbiguousName = "ambiguous-name": Failed,
        AxisName = "axis-name": Failed,
        Captures = "captures": Failed,
        ConfigFile = "config-file": Failed,
        Cycle = "cycle": Failed,
        Duplicate = "duplicate": Failed,
        Extends = "extends": Failed,
        Families = "families": Failed,
        Family = "family": Failed,
        File = "file": Failed,
        Format = "format": Failed,
        Formula = "formula": Failed,
        Forward = "forward": Failed,
        Json = "json": Failed,
        Label = "label": Failed,
        Like = "like": Failed,
        MissingAxis = "missing-axis": Failed,
        MissingField = "missing-field": Failed,
        Param = "param": Failed,
        ParamName = "param-name": Failed,
        Prefix = "prefix": Failed,
        RepeatedAxis = "repeated-axis": Failed,
        Setting = "setting": Failed,
        Sparse = "sparse": Failed,
        Template = "template": Failed,
        Tied = "tied": Failed,
        TooLarge = "too-large": Failed,
        Type = "type": Failed,
        UnknownAxis = "unknown-axis": Failed,
        UnknownField = "unknown-field": Failed,
        UnknownLayout = "unknown-layout": Failed,
        UnknownParam = "unknown-param": Failed,
        UnknownValue = "unknown-value": Failed,
        Unlabelled = "unlabelled": Failed,
    }
    /// Expressions read.
    Notation(NotationCode) = "notation" {
        AxisName = "axis-name": Failed,
        Depth = "depth": Failed,
        EmptyGroup = "empty-group": Failed,
        EmptyTerm = "empty-term": Failed,
        LabelPlace = "label-place": Failed,
        Size = "size": Failed,
        Unclosed = "unclosed": Failed,
        Unexpected = "unexpected": Failed,
    }
    /// What will be copied, proved.
    Plan(PlanCode) = "plan" {
        CutBlock = "cut-block": Failed,
        Uncovered = "uncovered": Failed,
        Unproved = "unproved": Failed,
    }
    /// Files written and put in their place.
    Publish(PublishCode) = "publish" {
        Busy = "busy": Failed,
        Exists = "exists": Failed,
        Finished = "finished": Failed,
        Foreign = "foreign": Failed,
        Io = "io": Failed,
        Name = "name": Failed,
        NoFolder = "no-folder": Failed,
        NotAFile = "not-a-file": Failed,
        NotAFolder = "not-a-folder": Failed,
        OverSource = "over-source": Failed,
        Record = "record": Failed,
        Sharded = "sharded": Failed,
        Space = "space": Failed,
        Twice = "twice": Failed,
    }
    /// Interrupted runs.
    Resume(ResumeCode) = "resume" {
        Kept = "kept": Failed,
    }
    /// The command line.
    Usage(UsageCode) = "usage" {
        Against = "against": Usage,
        Code = "code": Usage,
        Destination = "destination": Usage,
        Glob = "glob": Usage,
        Layouts = "layouts": Usage,
        Name = "name": Usage,
        Resume = "resume": Usage,
    }
    /// The output checked.
    Verify(VerifyCode) = "verify" {
        Differs = "differs": Differs,
        Read = "read": Failed,
    }
}

/// As people see it, its text.
impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl PartialEq<str> for Code {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Code {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Code, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A text that is no code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnknownCode {
    /// The text.
    pub text: String,
    /// The code that may be meant: one that differs in a slip of the pen, or one of that name in another stage.
    pub nearest: Option<Code>,
}

impl fmt::Display for UnknownCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no code of an error or warning", self.text)
    }
}

impl std::error::Error for UnknownCode {}

impl FromStr for Code {
    type Err = UnknownCode;

    /// Reads a code's text, `stage/kind`.
    ///
    /// # Errors
    /// Returns the text where it is no code, and the code that may be meant.
    fn from_str(text: &str) -> Result<Code, UnknownCode> {
        let all = || Code::ALL.iter().copied();
        let called = |name: &str| all().find(|code| *code == name);
        called(text).ok_or_else(|| {
            let kind = text.rsplit('/').next().unwrap_or(text);
            let same_kind =
                || all().find(|code| code.as_str().split_once('/').is_some_and(|(_, its)| its == kind));
            let near = nearest(text, all().map(Code::as_str)).and_then(called);
            UnknownCode { text: text.to_owned(), nearest: near.or_else(same_kind) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_its_text() {
        for &code in Code::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
            assert_eq!(serde_json::to_value(code).expect("a text"), code.as_str());
            assert_eq!(serde_json::from_value::<Code>(code.as_str().into()).expect("a code"), code);
            assert!(code == code.as_str() && format!("{code} {code:?}") == format!("{0} {0}", code.as_str()));
            let (stage, kind) = code.as_str().split_once('/').expect("two parts");
            assert_eq!(stage, code.stage().as_str());
            assert!(
                kind.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "{code}"
            );
        }
        let texts: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert!(texts.is_sorted_by(|one, next| one < next), "alphabetical, each once: {texts:?}");
        assert_eq!(format!("[{:16}]", Code::from(BindCode::Tied)), "[bind/tied       ]");
    }

    #[test]
    fn a_slip_of_the_pen_is_told() {
        let near = |text: &str| text.parse::<Code>().expect_err("no code").nearest;
        assert_eq!(near("bind/open-sise"), Some(BindCode::OpenSize.into()));
        assert_eq!(near("open-size"), Some(BindCode::OpenSize.into()));
        assert_eq!(near("zzzzzzzz"), None);
        let error = serde_json::from_str::<Code>("\"bind/tide\"").expect_err("no code");
        assert!(error.to_string().contains("`bind/tide` is no code"), "{error}");
    }

    #[test]
    fn the_class_follows_from_the_code() {
        let of = |class: Class| Code::ALL.iter().filter(move |code| code.class() == class);
        assert_eq!(of(Class::Differs).collect::<Vec<_>>(), [&Code::Verify(VerifyCode::Differs)]);
        assert_eq!(
            of(Class::Cancelled).collect::<Vec<_>>(),
            [&Code::Diff(DiffCode::Cancelled), &Code::Exec(ExecCode::Cancelled)]
        );
        assert!(
            Code::ALL.iter().all(|code| (code.class() == Class::Usage) == (code.stage() == Stage::Usage))
        );
    }
}

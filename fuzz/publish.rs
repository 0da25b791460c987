//! A conversion into a place where anything may lie, and which may be killed.
//!
//! The first byte of the input holds options, the second the call at which the run is killed (0 for none). What follows is
//! lines, each of which makes something in the folder `place`, in which the destination `dst` or `dst.safetensors` lies:
//!
//! - `NAME/`: a folder
//! - `NAME=TEXT`: a file; in the text `$OUT` is a folder that is nobody's business, `$STAMP{NAME}` what a work folder notes of
//!   that file or folder, so that an input can hold what an honest run would believe
//! - `NAME>TARGET`: a symbolic link, with `$OUT` as above
//! - `NAME&OTHER`: a hard link to what a line before it made
//!
//! Whatever lies there, nothing outside of `place` changes, a destination that is reported whole is whole, and one of which
//! an error is reported holds what it held.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use qkvconv::convert::{Conversion, ConvertOptions, Verify};
use qkvconv::exec::Limits;
use qkvconv::exec::publish::{Destination, PublishOptions};
use qkvconv::format::{OpenOptions, open};
use qkvconv::mapping::select::select;
use qkvconv::progress::Progress;

/// The most lines of one input.
const LINES: usize = 64;

/// How one run is made.
#[derive(Clone, Debug)]
pub struct Job {
    /// The checkpoint that is converted, in `attention/separate` with two heads.
    pub source: PathBuf,
    /// Where `attention/timm` goes: a file, or a folder.
    pub destination: PathBuf,
    /// Whether the destination may be replaced.
    pub force: bool,
    /// Whether finished files stay.
    pub resume: bool,
    /// Whether every tensor gets a file of its own.
    pub shards: bool,
}

impl Job {
    /// The most bytes of a file, where there are several.
    pub const SHARD: u64 = 1;

    /// Runs it in this process; returns whether it succeeded.
    pub fn run(&self) -> bool {
        let layouts = select("attention/separate", "attention/timm", &[]).expect("both are built in");
        let mut options =
            ConvertOptions::default().max_shard_size(self.shards.then_some(Job::SHARD)).resume(self.resume);
        options.bind.axes.push(("h".to_owned(), 2));
        let Ok(conversion) = Conversion::prepare(&layouts, &self.source, &options) else { return false };
        let publish = PublishOptions::default().force(self.force);
        let destination = Destination::resolve(&self.destination);
        let limits = Limits::default().threads(1);
        conversion.run(&destination, publish, Verify::Readback, &limits, &Silent).is_ok()
    }
}

struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}

    fn cancelled(&self) -> bool {
        false
    }
}

/// Runs a job that ends at the call of that number; returns whether it succeeded.
type Killed<'a> = &'a dyn Fn(&Job, u8) -> bool;

/// Makes the place that the input describes and converts into it, twice; `killed` is there where runs can be killed.
pub fn publish(input: &[u8], killed: Option<Killed<'_>>) {
    let Some((&[bits, kill], text)) = input.split_first_chunk::<2>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    super::with_folder(|folder| {
        let bit = |at: u32| bits >> at & 1 == 1;
        let place = folder.join("place");
        let job = Job {
            source: folder.join("in.safetensors"),
            destination: place.join(if bit(0) { "dst.safetensors" } else { "dst" }),
            force: bit(1),
            resume: bit(2) && !bit(0),
            shards: bit(3) && !bit(0),
        };
        let believed = made(folder, &job.source, text);
        let outside = |all: &Held| -> Held {
            let outer = all.iter().filter(|(path, _)| !path.starts_with("place"));
            outer.map(|(path, content)| (path.clone(), content.clone())).collect()
        };
        let first = held(folder);
        let mut before = first.clone();
        for round in 0..2 {
            let kills = killed.filter(|_| kill > 0 && round == 0);
            let succeeded = kills.map_or_else(|| job.run(), |killed| killed(&job, kill));
            let after = held(folder);
            let changed = changes(&outside(&first), &outside(&after));
            assert!(changed.is_empty(), "outside of the place these changed: {changed:?}");
            if succeeded {
                check_whole(&job);
            } else if kills.is_none() && !believed && round == 0 {
                // A publication that is believed is finished, even if the run then ends in an error.
                let changed = changes(&before, &after);
                assert!(changed.is_empty(), "an error, and yet these changed: {changed:?}");
            }
            check_kept(&before, &after, &job, believed);
            before = after;
        }
    });
}

/// Checks that the output opens and holds the module.
fn check_whole(job: &Job) {
    let reader = open(&job.destination, &OpenOptions::default());
    let reader = reader.unwrap_or_else(|errors| panic!("the output does not open: {errors}"));
    let mut names: Vec<&str> = reader.catalog().tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a.proj.bias", "a.proj.weight", "a.qkv.bias", "a.qkv.weight"]);
}

/// Checks that nobody's files are lost: what is neither an output, nor of an older checkpoint, nor in a work folder.
fn check_kept(before: &Held, after: &Held, job: &Job, believed: bool) {
    for (path, content) in before {
        let ours = path.split('/').any(|name| name.contains(".qkvconv-"));
        let checkpoint = Path::new(path)
            .extension()
            .is_some_and(|ending| ["safetensors", "json"].iter().any(|known| ending == *known));
        if ours || believed || job.force && checkpoint {
            continue;
        }
        // Without --force an older checkpoint stays too; a folder that is there may be another of that name.
        assert_eq!(after.get(path), Some(content), "{path} is lost");
    }
}

/// What lies at each path: a file's bytes, where a link leads, or nothing for a folder.
type Held = BTreeMap<String, Option<Vec<u8>>>;

/// Returns the paths at which not the same lies.
fn changes(before: &Held, after: &Held) -> Vec<String> {
    let all = before.keys().chain(after.keys().filter(|path| !before.contains_key(*path)));
    all.filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

fn held(folder: &Path) -> Held {
    fn add(folder: &Path, prefix: &str, all: &mut Held) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if let Ok(target) = fs::read_link(&path) {
                all.insert(name, Some(target.into_os_string().into_encoded_bytes()));
            } else if path.is_dir() {
                add(&path, &format!("{name}/"), all);
                all.insert(name, None);
            } else {
                all.insert(name, fs::read(&path).ok());
            }
        }
    }
    let mut all = Held::new();
    add(folder, "", &mut all);
    all
}

/// Makes the source, what is outside, and the place; returns whether what lies there may be believed to be of a run.
fn made(folder: &Path, source: &Path, text: &str) -> bool {
    let (place, outside) = (folder.join("place"), folder.join("outside"));
    let made = fs::create_dir(&place)
        .and_then(|()| fs::create_dir_all(outside.join("new")))
        .and_then(|()| fs::write(outside.join("precious"), "precious"))
        .and_then(|()| fs::write(outside.join("new/model.safetensors"), "precious too"))
        .and_then(|()| fs::write(source, model()));
    made.expect("a temporary folder can be written to");
    let mut believed = false;
    for line in text.lines().take(LINES) {
        believed |= line.contains("$STAMP{");
        // What cannot be made is left out.
        let _ = entry(&place, &outside, line);
    }
    believed
}

fn entry(place: &Path, outside: &Path, line: &str) -> Option<()> {
    let at = line.find(['=', '>', '&']).unwrap_or(line.len());
    let (name, rest) = line.split_at(at);
    let path = inside(place, name)?;
    let substituted = |text: &str| text.replace("$OUT", &outside.to_string_lossy());
    match rest.chars().next() {
        None => fs::create_dir_all(path).ok(),
        Some('=') => fs::write(path, stamped(place, &substituted(&rest[1..]))).ok(),
        #[cfg(unix)]
        Some('>') => std::os::unix::fs::symlink(substituted(&rest[1..]), path).ok(),
        _ => fs::hard_link(inside(place, rest.get(1..)?)?, path).ok(),
    }
}

/// Returns the path of a name below the place; the input is not to leave it itself.
fn inside(place: &Path, name: &str) -> Option<PathBuf> {
    let mut path = place.to_owned();
    for part in Path::new(name).components() {
        // Nothing is made through a link.
        if path.is_symlink() {
            return None;
        }
        match part {
            Component::Normal(part) => path.push(part),
            _ => return None,
        }
    }
    (path != place && !name.contains('\0')).then_some(path)
}

/// Replaces `$STAMP{NAME}` by what `src/exec/publish/system.rs` notes of that file.
fn stamped(place: &Path, text: &str) -> String {
    let mut parts = text.split("$STAMP{");
    let mut stamped = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        let metadata = inside(place, name).and_then(|path| path.symlink_metadata().ok());
        let made = metadata.as_ref().and_then(|there| there.created().ok());
        let made = made.and_then(|made| made.duration_since(std::time::UNIX_EPOCH).ok());
        let made = made.map_or("null".to_owned(), |made| made.as_nanos().to_string());
        stamped += &format!("{{\"place\":{},\"made\":{made}}}{rest}", identity(metadata.as_ref()));
    }
    stamped
}

#[cfg(unix)]
fn identity(metadata: Option<&fs::Metadata>) -> String {
    use std::os::unix::fs::MetadataExt;
    metadata.map_or("null".to_owned(), |there| format!("[{},{}]", there.dev(), there.ino()))
}

#[cfg(not(unix))]
fn identity(_metadata: Option<&fs::Metadata>) -> String {
    "null".to_owned()
}

/// One attention module of width 6 in `attention/separate`, without data that anything depends on.
fn model() -> Vec<u8> {
    let (mut header, mut end) = (String::from("{"), 0_u64);
    for part in ["q_proj", "k_proj", "v_proj", "out_proj"] {
        for (name, shape, count) in [("bias", "[6]", 6), ("weight", "[6,6]", 36)] {
            let start = end;
            end += 4 * count;
            let separator = if start == 0 { "" } else { "," };
            header += &format!(
                r#"{separator}"a.{part}.{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#
            );
        }
    }
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..end / 4).flat_map(|at| (at as f32).to_le_bytes()));
    file
}

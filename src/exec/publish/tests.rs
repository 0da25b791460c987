//! Publishing by hand, without a conversion.

use super::*;
use crate::format::Format;
use crate::format::output::OutputIndex;

const FORCE: PublishOptions = PublishOptions { force: true, sync: true, low_space: false };
const PLAIN: PublishOptions = PublishOptions { force: false, sync: false, low_space: false };
const INDEX_NAME: &str = "model.safetensors.index.json";
const SINGLE_NAME: &str = "model.safetensors";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

fn layout(files: &[(&str, u64, &[u8])], index: Option<&[u8]>) -> OutputLayout {
    let file = |&(name, size, head): &(&str, u64, &[u8])| OutputFile {
        name: name.to_owned(),
        pieces: vec![(0, head.to_vec())],
        size,
        checksums: Vec::new(),
    };
    let index = index.map(|text| OutputIndex {
        name: INDEX_NAME.to_owned(),
        bytes: text.to_vec(),
        ..OutputIndex::default()
    });
    let files = files.iter().map(file).collect();
    OutputLayout {
        format: Format::Safetensors,
        single_name: "model.safetensors".to_owned(),
        files,
        index,
        placements: Vec::new(),
        companions: Vec::new(),
        warnings: Vec::new(),
    }
}

fn one() -> OutputLayout {
    layout(&[(SINGLE_NAME, 6, b"head")], None)
}

fn two() -> OutputLayout {
    layout(&[(SHARDS[0], 2, b"1"), (SHARDS[1], 2, b"2")], Some(br#"{"weight_map":{"a":"new"}}"#))
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn codes<T>(result: Result<T, Errors>) -> Vec<&'static str> {
    let errors = result.err().expect("refused");
    errors.diagnostics().iter().map(|diagnostic| diagnostic.code.as_str()).collect()
}

fn old_sharded(folder: &Path) {
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"old.safetensors",
        "c":"../outside.safetensors","d":"config.json"}}"#;
    fs::write(folder.join(INDEX_NAME), index).expect("writes");
    for name in
        ["model-00001-of-00002.safetensors", "old.safetensors", "config.json", "../outside.safetensors"]
    {
        fs::write(folder.join(name), "old").expect("writes");
    }
}

#[test]
fn the_ending_tells_a_file_from_a_folder() {
    let base = tempfile::tempdir().expect("folder");
    let path = base.path().join("a.safetensors");
    assert_eq!(Destination::resolve(&path), Destination::File(path.clone()));
    assert!(matches!(Destination::resolve(Path::new("out/")), Destination::Folder(_)));
    assert!(matches!(Destination::resolve(Path::new("a.safetensors/")), Destination::Folder(_)));
    fs::create_dir(&path).expect("folder");
    assert_eq!(Destination::resolve(&path), Destination::Folder(path));
}

#[test]
fn a_file_appears_when_it_is_published() {
    let base = tempfile::tempdir().expect("folder");
    let path = base.path().join("a.safetensors");
    let destination = Destination::resolve(&path);
    drop(Staging::create(&destination, &one(), &[], PLAIN, None, None).expect("stages"));
    assert!(names(base.path()).is_empty());

    let staging = Staging::create(&destination, &one(), &[], PLAIN, None, None).expect("stages");
    assert!(names(base.path())[0].starts_with(".a.safetensors.qkvconv-"));
    assert_eq!(fs::read(&staging.temporary_paths()[0]).expect("reads"), b"head\0\0");
    std::thread::scope(|scope| {
        for at in [4_u64, 5] {
            let staging = &staging;
            scope.spawn(move || staging.write_all_at(0, at, &[at as u8]).expect("writes"));
        }
    });
    for (file, offset) in [(0, 6), (0, u64::MAX), (1, 0)] {
        let error = staging.write_all_at(file, offset, b"x").expect_err("outside");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(staging.publish(), Ok(vec![path.clone()]));
    assert_eq!(
        (fs::read(&path).expect("reads").as_slice(), names(base.path()).len()),
        (&b"head\x04\x05"[..], 1)
    );

    let errors = Staging::create(&destination, &one(), &[], PLAIN, None, None).expect_err("exists");
    assert!(format!("{errors:?}").contains("--force") && errors.to_string().contains("`a.safetensors`"));
    Staging::create(&destination, &one(), &[], FORCE, None, None)
        .expect("stages")
        .publish()
        .expect("replaces");
    assert_eq!(fs::read(&path).expect("reads"), b"head\0\0");
    assert_eq!(codes(Staging::create(&destination, &two(), &[], FORCE, None, None)), ["publish/sharded"]);
}

#[test]
fn a_new_folder_appears_whole() {
    let base = tempfile::tempdir().expect("folder");
    let path = base.path().join("out");
    let destination = Destination::resolve(&path);
    let staging = Staging::create(&destination, &two(), &[], PLAIN, None, None).expect("stages");
    assert!(!path.exists());
    drop(staging);
    assert!(names(base.path()).is_empty());
    let paths = Staging::create(&destination, &two(), &[], FORCE, None, None)
        .expect("stages")
        .publish()
        .expect("works");
    assert_eq!(paths[2], path.join(INDEX_NAME));
    assert_eq!((names(&path).len(), names(base.path())), (3, vec!["out".to_owned()]));

    let race = Destination::resolve(&base.path().join("race"));
    let staging = Staging::create(&race, &one(), &[], PLAIN, None, None).expect("stages");
    fs::create_dir(race.path()).expect("folder");
    fs::write(race.path().join("theirs"), "").expect("writes");
    assert_eq!(codes(staging.publish()), ["publish/exists"]);
    assert_eq!(names(base.path()), ["out", "race"]);
}

#[cfg(unix)]
#[test]
fn files_and_folders_have_the_usual_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir().expect("folder");
    let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode();
    let (plain_file, plain_folder) = (base.path().join("f"), base.path().join("d"));
    fs::write(&plain_file, "").expect("writes");
    fs::create_dir(&plain_folder).expect("folder");
    for folder in ["d", "new"] {
        let path = base.path().join(folder);
        let staging =
            Staging::create(&Destination::resolve(&path), &one(), &[], PLAIN, None, None).expect("stages");
        let published = staging.publish().expect("works");
        assert_eq!((mode(&published[0]), mode(&path)), (mode(&plain_file), mode(&plain_folder)));
    }
}

#[test]
fn an_old_checkpoint_is_replaced_whole_or_not_at_all() {
    let base = tempfile::tempdir().expect("folder");
    let path = base.path().join("out");
    fs::create_dir(&path).expect("folder");
    old_sharded(&path);
    let destination = Destination::resolve(&path);
    // Neither file is an output of this run, but beside it they would be a mix.
    let refused = Staging::create(&destination, &one(), &[], PLAIN, None, None);
    assert_eq!(codes(refused), ["publish/exists"; 3]);
    assert_eq!(codes(Staging::create(&destination, &two(), &[], PLAIN, None, None)), ["publish/exists"; 3]);

    drop(Staging::create(&destination, &one(), &[], FORCE, None, None).expect("stages"));
    assert_eq!(names(&path).len(), 4);
    Staging::create(&destination, &two(), &[], FORCE, None, None).expect("stages").publish().expect("works");
    assert_eq!(names(&path), ["config.json", SHARDS[0], SHARDS[1], INDEX_NAME]);
    assert_eq!(fs::read(path.join(SHARDS[0])).expect("reads"), b"1\0");

    old_sharded(&path);
    Staging::create(&destination, &one(), &[], FORCE, None, None).expect("stages").publish().expect("works");
    assert_eq!(names(&path), ["config.json", "model-00002-of-00002.safetensors", SINGLE_NAME]);
    fs::remove_file(path.join("model-00002-of-00002.safetensors")).expect("removes");
    Staging::create(&destination, &two(), &[], FORCE, None, None).expect("stages").publish().expect("works");
    assert_eq!(names(&path), ["config.json", SHARDS[0], SHARDS[1], INDEX_NAME]);
    assert!(base.path().join("outside.safetensors").exists());
}

#[test]
fn a_file_that_appears_in_the_meantime_is_kept() {
    let base = tempfile::tempdir().expect("folder");
    let destination = Destination::resolve(base.path());
    let staging = Staging::create(&destination, &two(), &[], PLAIN, None, None).expect("stages");
    fs::write(base.path().join(SHARDS[1]), "theirs").expect("writes");
    assert_eq!(codes(staging.publish()), ["publish/exists"]);
    assert_eq!(names(base.path()), [SHARDS[1]]);
    assert_eq!(fs::read(base.path().join(SHARDS[1])).expect("reads"), b"theirs");
}

#[test]
fn a_source_is_never_replaced() {
    let base = tempfile::tempdir().expect("folder");
    let source = base.path().join("source.safetensors");
    fs::write(&source, "source").expect("writes");
    let refused = |path: &Path, sources: &[PathBuf]| {
        assert_eq!(
            codes(Staging::create(&Destination::resolve(path), &one(), sources, FORCE, None, None)),
            ["publish/over-source"]
        );
    };
    refused(&source, std::slice::from_ref(&source));
    let hard = base.path().join("hard.safetensors");
    fs::hard_link(&source, &hard).expect("links");
    refused(&hard, std::slice::from_ref(&source));
    #[cfg(unix)]
    {
        let soft = base.path().join("soft.safetensors");
        std::os::unix::fs::symlink(&source, &soft).expect("links");
        refused(&soft, std::slice::from_ref(&source));
    }
    let folder = base.path().join("folder");
    fs::create_dir(&folder).expect("folder");
    fs::hard_link(&source, folder.join(SINGLE_NAME)).expect("links");
    refused(&folder, std::slice::from_ref(&source));

    // The outputs have other names, but the old index and its shards would go.
    let sharded = base.path().join("sharded");
    fs::create_dir(&sharded).expect("folder");
    old_sharded(&sharded);
    refused(&sharded, &[sharded.join("old.safetensors")]);
    refused(&sharded, std::slice::from_ref(&sharded));
    assert_eq!(names(&sharded).len(), 4);
}

#[test]
fn what_cannot_be_written_is_told_before_anything_is() {
    let base = tempfile::tempdir().expect("folder");
    let stage = |name: &str| {
        codes(Staging::create(&Destination::resolve(&base.path().join(name)), &one(), &[], PLAIN, None, None))
    };
    assert_eq!(stage("no/a.safetensors"), ["publish/no-folder"]);
    assert_eq!(stage("no/out"), ["publish/no-folder"]);
    fs::write(base.path().join("file"), "").expect("writes");
    assert_eq!(stage("file"), ["publish/not-a-folder"]);
    assert_eq!(stage("file/out"), ["publish/not-a-folder"]);
    let full = io_error(Path::new("a"), "write it", &io::ErrorKind::StorageFull.into());
    assert_eq!((full.code.as_str(), full.help.is_some()), ("publish/io", true));
}

struct Nobody;

impl crate::progress::Progress for Nobody {
    fn advance(&self, _: u64) {}

    fn cancelled(&self) -> bool {
        false
    }
}

#[test]
fn what_the_source_no_longer_has_is_not_published_after_a_resume() {
    let base = tempfile::tempdir().expect("folder");
    let destination = Destination::resolve(&base.path().join("out"));
    let plan = Fingerprint { sources: "a".to_owned(), plan: "b".to_owned() };
    let companion = |name: &str| Companion { name: name.to_owned(), content: Content::Bytes(b"x".to_vec()) };
    let with =
        |names: &[&str]| OutputLayout { companions: names.iter().map(|n| companion(n)).collect(), ..two() };
    let stage = |names: &[&str]| Staging::create(&destination, &with(names), &[], PLAIN, Some(&plan), None);
    let mut first = stage(&["vocab.txt", "gone.txt"]).expect("stages");
    first.finished(0, &[], &Nobody).expect("notes");
    // As a kill leaves it.
    first.work.leave = Leave::Everything;
    drop(first);
    assert!(base.path().join(".out.qkvconv-work/new/gone.txt").exists());
    let mut second = stage(&["vocab.txt"]).expect("stages");
    assert_eq!(second.check_kept(&with(&["vocab.txt"]), 1, &Nobody).expect("reads").files, 1);
    second.publish().expect("works");
    assert_eq!(names(destination.path()), [SHARDS[0], SHARDS[1], INDEX_NAME, "vocab.txt"]);
    assert_eq!(names(base.path()), ["out"]);
}

/// Returns which folder that is, whatever its name.
#[cfg(unix)]
fn inode(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).expect("is there").ino()
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_is_exchanged_with_all_that_is_to_stay() {
    use std::os::unix::fs::PermissionsExt;
    let base = tempfile::tempdir().expect("folder");
    let path = base.path().join("out");
    fs::create_dir(&path).expect("folder");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("changes");
    old_sharded(&path);
    std::os::unix::fs::symlink("nowhere", path.join("link")).expect("links");
    let link = base.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("links");
    let before = (inode(&path), inode(&path.join("config.json")));
    let staging =
        Staging::create(&Destination::resolve(&link), &two(), &[], FORCE, None, None).expect("stages");
    staging.publish().expect("works");
    assert_eq!(names(&path), ["config.json", "link", SHARDS[0], SHARDS[1], INDEX_NAME]);
    assert_eq!(fs::metadata(&path).expect("is there").permissions().mode() & 0o777, 0o750);
    assert!(inode(&path) != before.0 && inode(&path.join("config.json")) == before.1);
    assert_eq!(names(base.path()), ["link", "out", "outside.safetensors"]);
}

#[cfg(unix)]
#[test]
fn a_folder_whose_parent_is_out_of_reach_is_worked_in() {
    let base = tempfile::tempdir().expect("folder");
    let path = base.path().join("out");
    // As if an earlier run had found that it can only work inside.
    fs::create_dir_all(path.join(".out.qkvconv-work")).expect("folder");
    old_sharded(&path);
    let before = inode(&path);
    let destination = Destination::resolve(&path);
    let staging = Staging::create(&destination, &one(), &[], FORCE, None, None).expect("stages");
    assert!(staging.temporary_paths()[0].starts_with(path.canonicalize().expect("is there")));
    staging.publish().expect("works");
    assert_eq!(
        (names(&path), inode(&path)),
        (vec!["config.json".to_owned(), SINGLE_NAME.to_owned()], before)
    );
}

#[test]
fn a_folder_that_appears_in_the_meantime_is_kept() {
    let base = tempfile::tempdir().expect("folder");
    let path = base.path().join("out");
    fs::create_dir(&path).expect("folder");
    old_sharded(&path);
    let staging =
        Staging::create(&Destination::resolve(&path), &two(), &[], FORCE, None, None).expect("stages");
    fs::create_dir_all(path.join(SHARDS[1]).join("theirs")).expect("folder");
    assert_eq!(codes(staging.publish()), ["publish/exists"]);
    assert!(path.join(SHARDS[1]).join("theirs").exists());
    assert_eq!(fs::read(path.join(SHARDS[0])).expect("reads"), b"old");
    assert_eq!(names(base.path()), ["out", "outside.safetensors"]);
}

#[test]
fn a_record_that_makes_no_sense_is_left_to_a_person() {
    let base = tempfile::tempdir().expect("folder");
    let work = base.path().join(".out.qkvconv-work");
    fs::create_dir_all(work.join("old")).expect("folder");
    fs::write(work.join("old/precious"), "").expect("writes");
    let destination = Destination::resolve(&base.path().join("out"));
    let whole = r#"{"replaced":["a"],"placed":["b"],"exchanged":null}"#;
    let escaping = r#"{"replaced":["../a"],"placed":[],"exchanged":null}"#;
    for text in ["{", whole, escaping] {
        fs::write(work.join("publication.json"), text).expect("writes");
        // None of ours.
        assert_eq!(codes(Staging::create(&destination, &two(), &[], FORCE, None, None)), ["publish/foreign"]);
        assert!(work.join("old/precious").exists());
    }
    fs::remove_dir_all(&work).expect("removes");
    // Ours, but with records that another run has not written.
    fs::create_dir(destination.path()).expect("folder");
    for text in ["{", whole, escaping] {
        let mut ours = Work::beside(destination.path()).expect("opens");
        ours.leave = Leave::Everything;
        fs::write(work.join("publication.json"), text).expect("writes");
        drop(ours);
        assert_eq!(codes(Staging::create(&destination, &two(), &[], FORCE, None, None)), ["publish/record"]);
        assert!(work.join("publication.json").exists());
    }
}

/// Parts without an index are one checkpoint by their names alone.
#[test]
fn older_parts_of_gguf_do_not_mix_with_the_new_file() {
    let base = tempfile::tempdir().expect("folder");
    let folder = base.path().join("out");
    fs::create_dir(&folder).expect("folder");
    let (kept, single) = ("other-00001-of-00002.gguf", "model.gguf");
    let old = ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"];
    old.iter().chain([&kept]).for_each(|name| fs::write(folder.join(name), "old").expect("writes"));
    let new = OutputLayout {
        format: Format::Gguf,
        single_name: "model.gguf".to_owned(),
        ..layout(&[(single, 4, b"head")], None)
    };
    let destination = Destination::resolve(&folder);
    let errors = Staging::create(&destination, &new, &[], PLAIN, None, None).expect_err("would mix");
    assert!(old.iter().all(|name| format!("{errors:?}").contains(name)), "{errors:?}");
    Staging::create(&destination, &new, &[], FORCE, None, None).expect("stages").publish().expect("replaces");
    assert_eq!(names(&folder), [single, kept]);
}

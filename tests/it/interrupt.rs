//! Nothing is ever lost: runs that are killed or fail at every call that changes a file, and runs that go on where
//! another has ended.
//!
//! `tests/shim` makes the faults. It stands before the calls of libc, so these tests need Linux with glibc.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::OnceLock;

use crate::kit::{Folder, Run, Tensor, Tensors};

/// All calls that change what a file or a folder holds.
const CHANGES: &str =
    "open64,write,pwrite64,ftruncate64,fsync,rename,linkat,unlink,unlinkat,mkdir,rmdir,chmod";

/// More calls than any of the runs here makes.
const MANY: usize = 3000;

pub(crate) const KILLED: i32 = -9;

/// Builds the shim, once.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shim/shim.rs");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let built = folder.join(format!("shim-{}.so", std::process::id()));
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let status = Command::new(compiler)
            .args(["--edition", "2024", "--crate-type", "cdylib", "-o"])
            .args([&built, &source])
            .status();
        assert!(status.expect("rustc runs").success());
        let library = folder.join("shim.so");
        std::fs::rename(built, &library).expect("renames");
        library
    })
}

/// A fault: what happens, at which call of which.
#[derive(Clone, Copy)]
struct Fault<'a>(&'a str, usize, &'a str);

/// Runs the binary, which is killed at that call of those that change a file, and returns its exit code.
pub(crate) fn killed_at(args: &[OsString], at: usize) -> i32 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qkvconv"));
    command.args(args).env("LD_PRELOAD", shim()).env("QKVCONV_FAULT", format!("signal9:{at}:{CHANGES}"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(command.spawn().expect("the binary runs")).code
}

/// A conversion that is run over and over again, each time in a copy of a folder.
struct Scene {
    /// What is there before.
    before: Rc<Folder>,
    args: Vec<&'static str>,
    /// The destination.
    name: &'static str,
    /// Whether a kill may leave a folder without an index, until the next run.
    in_place: bool,
}

/// What a file or a folder holds, without what is ours and hidden.
type State = Option<BTreeMap<String, Vec<u8>>>;

fn state(path: &Path) -> State {
    fn add(path: &Path, name: &str, all: &mut BTreeMap<String, Vec<u8>>) {
        if path.is_dir() && !path.is_symlink() {
            for entry in std::fs::read_dir(path).expect("a folder") {
                let entry = entry.expect("an entry");
                let own = entry.file_name().into_string().expect("UTF-8");
                if !own.contains(".qkvconv-") {
                    add(&entry.path(), &format!("{name}/{own}"), all);
                }
            }
        } else if path.is_symlink() {
            let target = std::fs::read_link(path).expect("a link");
            all.insert(name.to_owned(), target.into_os_string().into_encoded_bytes());
        } else {
            all.insert(name.to_owned(), std::fs::read(path).expect("readable"));
        }
    }
    path.exists().then(|| {
        let mut all = BTreeMap::new();
        add(path, "", &mut all);
        all
    })
}

/// Returns the names of what a run has left, in the folder and in the destination.
fn left(folder: &Folder, destination: &str) -> BTreeSet<String> {
    let inside = std::fs::read_dir(folder.join(destination)).into_iter().flatten();
    let inside = inside.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    folder.names().into_iter().chain(inside).filter(|name| name.contains(".qkvconv-")).collect()
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        if path.is_symlink() {
            let target = std::fs::read_link(&path).expect("a link");
            std::os::unix::fs::symlink(target, copied).expect("a link");
        } else if path.is_dir() {
            std::fs::create_dir(&copied).expect("a folder");
            copy(&path, &copied);
        } else {
            std::fs::copy(&path, copied).expect("copies");
        }
    }
}

fn prepared(prepare: impl FnOnce(&Folder)) -> Rc<Folder> {
    let folder = Folder::new();
    prepare(&folder);
    Rc::new(folder)
}

impl Scene {
    fn folder(&self) -> Folder {
        let folder = Folder::new();
        copy(self.before.path(), folder.path());
        folder
    }

    fn command(&self, folder: &Folder, more: &[&str], fault: Option<Fault<'_>>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qkvconv"));
        command.current_dir(folder.path()).args(&self.args).args(more).args(["--threads", "1"]);
        if let Some(Fault(action, at, calls)) = fault {
            command.env("LD_PRELOAD", shim()).env("QKVCONV_FAULT", format!("{action}:{at}:{calls}"));
            command.env("QKVCONV_FAULT_FILE", folder.join("in.safetensors"));
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, folder: &Folder, more: &[&str], fault: Option<Fault<'_>>) -> Run {
        finish(self.command(folder, more, fault).spawn().expect("the binary runs"))
    }

    fn state(&self, folder: &Folder) -> State {
        state(&folder.join(self.name))
    }

    /// The states before and after a run.
    fn both(&self, more: &[&str]) -> (State, State) {
        let folder = self.folder();
        let old = self.state(&folder);
        self.run(&folder, more, None).ok();
        assert_eq!(left(&folder, self.name), BTreeSet::new());
        let new = self.state(&folder);
        assert_ne!(old, new);
        (old, new)
    }

    /// Runs with that fault at the first call, the second and so on, until there are no more; demands that the
    /// destination is old or new afterwards, that the sources are as they were, and that the next run leaves nothing.
    fn sweep(&self, action: &str, calls: &str, more: &[&str]) {
        let (old, new) = self.both(more);
        let source = |folder: &Folder| std::fs::read(folder.join("in.safetensors")).expect("is there");
        let (mut killed, mut was_old, mut was_new) = (0, 0, 0);
        for at in 1..MANY {
            let folder = self.folder();
            let before = source(&folder);
            let place = format!("{} {action} at {at}", self.name);
            let run = self.run(&folder, more, Some(Fault(action, at, calls)));
            assert!([0, 1, KILLED].contains(&run.code), "{place}: {run:?}");
            assert!(source(&folder) == before, "{place}: the source");
            let now = self.state(&folder);
            let whole = now == old || now == new;
            assert!(run.code != 0 || now == new, "{place}: {}", run.stderr);
            let headless =
                |state: &State| !state.iter().flatten().any(|(name, _)| name.ends_with("index.json"));
            assert!(whole || self.in_place && run.code == KILLED && headless(&now), "{place}: {now:?}");
            was_old += usize::from(now == old);
            was_new += usize::from(now == new);
            let kinds = ["work", "new"].map(|kind| format!(".{}.qkvconv-{kind}", self.name));
            let leavings = left(&folder, self.name);
            assert!(leavings.iter().all(|name| kinds.contains(name)), "{place}: {leavings:?}");

            // A run that replaces nothing cleans up, and finishes what had begun.
            let without: Vec<&str> = self.args.iter().copied().filter(|arg| *arg != "--force").collect();
            let plain = Scene { args: without, before: Rc::clone(&self.before), ..*self };
            let next = plain.run(&folder, more, None);
            let now = self.state(&folder);
            assert!(now == new || now == old && next.code == 1, "{place}, next: {next:?}");
            assert_eq!(left(&folder, self.name), BTreeSet::new(), "{place}");
            if now != new {
                self.run(&folder, more, None).ok();
                assert!(self.state(&folder) == new, "{place}, again");
                assert_eq!(left(&folder, self.name), BTreeSet::new(), "{place}");
            }
            // A kill is never missed, but some errors do no harm.
            if run.code != 0 {
                killed = at;
            } else if action.starts_with("signal") || killed + 10 < at {
                break;
            }
        }
        assert!(was_old > 5 && was_new > 0 && killed > 5, "{action}: {killed} {was_old} {was_new}");
    }
}

fn finish(child: Child) -> Run {
    use std::os::unix::process::ExitStatusExt;
    let output = child.wait_with_output().expect("it ends");
    let code = output.status.code().or(output.status.signal().map(|signal| -signal));
    Run::of(output, code)
}

/// A model of 3 heads of 2 in a width of 7, two layers.
fn model(base: u64) -> Tensors {
    let mut tensors = Tensors::from([("embed.weight".to_owned(), Tensor::index(&[11, 7], base))]);
    for layer in 0..2 {
        for (at, part) in ["q_proj", "k_proj", "v_proj", "out_proj"].iter().enumerate() {
            let base = base + 1000 * (layer * 4 + at as u64 + 1);
            let (shape, width) = if *part == "out_proj" { ([7, 6], 7) } else { ([6, 7], 6) };
            tensors.insert(format!("layers.{layer}.attn.{part}.weight"), Tensor::index(&shape, base));
            tensors.insert(format!("layers.{layer}.attn.{part}.bias"), Tensor::index(&[width], base + 500));
        }
    }
    tensors
}

const CONVERT: [&str; 7] =
    ["--from", "attention/separate", "--to", "attention/timm", "--axis", "h=3", "in.safetensors"];

const SHARDS: [&str; 2] = ["--max-shard-size", "520"];

fn source(folder: &Folder) {
    folder.tensors("in.safetensors", &model(1));
}

/// Writes a checkpoint with the same names for its files, and other files beside it.
fn old_checkpoint(folder: &Folder) {
    folder.tensors("old.safetensors", &model(50_000));
    let args = [&CONVERT[..6], &["old.safetensors", "out"], &SHARDS].concat();
    folder.run(&args).ok();
    std::fs::remove_file(folder.join("old.safetensors")).expect("removes");
    folder.put("out/notes.txt", "mine");
    source(folder);
}

fn sharded(prepare: fn(&Folder), more: &[&'static str]) -> Scene {
    let args = [&CONVERT[..], &["out"], &SHARDS, more].concat();
    Scene { before: prepared(prepare), args, name: "out", in_place: false }
}

fn replacing() -> Scene {
    sharded(old_checkpoint, &["--force"])
}

#[test]
fn a_new_file_survives_a_kill_at_every_call() {
    let args = [&CONVERT[..], &["out.safetensors"]].concat();
    let scene = Scene { before: prepared(source), args, name: "out.safetensors", in_place: false };
    scene.sweep("signal9", CHANGES, &[]);
    scene.sweep("error5", CHANGES, &["--sync"]);
}

#[test]
fn a_replaced_file_survives_a_kill_at_every_call() {
    fn prepare(folder: &Folder) {
        source(folder);
        folder.tensors("out.safetensors", &model(7));
    }
    let args = [&CONVERT[..], &["out.safetensors", "--force"]].concat();
    let scene = Scene { before: prepared(prepare), args, name: "out.safetensors", in_place: false };
    scene.sweep("signal9", CHANGES, &["--sync"]);
    scene.sweep("error28", CHANGES, &[]);
}

#[test]
fn a_new_folder_survives_a_kill_at_every_call() {
    let scene = sharded(source, &[]);
    scene.sweep("signal9", CHANGES, &[]);
    scene.sweep("error28", CHANGES, &["--sync"]);
}

#[test]
fn an_older_sharded_checkpoint_survives_a_kill_at_every_call() {
    replacing().sweep("signal9", CHANGES, &[]);
}

#[test]
fn an_older_sharded_checkpoint_survives_an_error_of_every_call() {
    replacing().sweep("error5", CHANGES, &["--sync"]);
}

#[test]
fn a_folder_with_subfolders_is_old_or_new_after_the_next_run() {
    fn prepare(folder: &Folder) {
        old_checkpoint(folder);
        std::fs::create_dir(folder.join("out/onnx")).expect("a folder");
        folder.put("out/onnx/theirs", "precious");
    }
    let scene = Scene { in_place: true, ..sharded(prepare, &["--force"]) };
    scene.sweep("signal9", CHANGES, &[]);
    scene.sweep("error5", CHANGES, &["--sync"]);
}

#[test]
fn a_folder_with_other_files_survives_a_kill_at_every_call() {
    fn prepare(folder: &Folder) {
        source(folder);
        std::fs::create_dir(folder.join("out")).expect("a folder");
        folder.put("out/notes.txt", "mine");
        std::os::unix::fs::symlink("nowhere", folder.join("out/link")).expect("a link");
    }
    sharded(prepare, &[]).sweep("signal9", CHANGES, &[]);
}

const RANKS: &str = r#"{ "format": 1, "family": "tp",
  "axes": { "t": "shards", "h": "heads", "ht": "heads of a shard", "d": "head size", "e": { "per": "parameter" } },
  "params": { "q": "h d e", "norm": "e" },
  "layouts": {
    "one": { "tensors": { "q": "q: (h d) e", "norm": "norm: e" } },
    "ranks": { "axes": { "h": "t ht" }, "tensors": { "rank{t:02}.safetensors::q": "q: (ht d) e",
                                                     "rank{t:02}.safetensors::norm": "norm: e" } } } }"#;

#[test]
fn a_set_of_files_survives_a_kill_at_every_call() {
    fn checkpoint(folder: &Folder, base: u64) {
        let q = Tensor::index(&[6 * 5, 7], base);
        let tensors = Tensors::from([("q".to_owned(), q), ("norm".to_owned(), Tensor::index(&[7], base))]);
        folder.tensors("in.safetensors", &tensors);
    }
    const ARGS: [&str; 11] = [
        "--mapping",
        "tp.json",
        "--from",
        "tp/one",
        "--to",
        "tp/ranks",
        "--axis",
        "h=6",
        "--axis",
        "t=3",
        "in.safetensors",
    ];
    fn prepare(folder: &Folder) {
        folder.put("tp.json", RANKS);
        checkpoint(folder, 9000);
        folder.run(&[&ARGS[..], &["out"]].concat()).ok();
        checkpoint(folder, 1);
    }
    /// More ranks than the new set has.
    fn prepare_more(folder: &Folder) {
        folder.put("tp.json", RANKS);
        checkpoint(folder, 9000);
        let args = [&ARGS[..9], &["t=6", ARGS[10], "out"]].concat();
        folder.run(&args).ok();
        checkpoint(folder, 1);
    }
    for prepare in [prepare, prepare_more] {
        let args = [&ARGS[..], &["out", "--force"]].concat();
        let scene = Scene { before: prepared(prepare), args, name: "out", in_place: false };
        scene.sweep("signal9", CHANGES, &[]);
    }
}

#[test]
fn a_device_that_cannot_be_read_ends_the_run() {
    let scene = replacing();
    let (old, _) = scene.both(&[]);
    let mut failed = 0;
    for at in 1..MANY {
        let folder = scene.folder();
        let run = scene.run(&folder, &[], Some(Fault("error5", at, "pread64")));
        if run.code == 0 {
            break;
        }
        failed = at;
        assert!(run.code == 1 && run.stderr.contains("Input/output error"), "{at}: {run:?}");
        assert!(scene.state(&folder) == old, "{at}");
        assert_eq!(left(&folder, "out"), BTreeSet::new(), "{at}");
    }
    assert!(failed > 50, "{failed}");
}

#[test]
fn a_source_that_is_cut_while_it_is_read_is_no_success() {
    let scene = replacing();
    let (old, _) = scene.both(&[]);
    // The last reads compare the source and the output; after them the source's size and time are looked at again.
    for at in 1..40 {
        let folder = scene.folder();
        let run = scene.run(&folder, &[], Some(Fault("cut", at, "pread64")));
        run.fails(&["in.safetensors"]);
        assert!(scene.state(&folder) == old, "{at}");
        assert_eq!(left(&folder, "out"), BTreeSet::new(), "{at}");
    }
}

#[test]
fn a_full_disk_and_a_read_only_one_are_named() {
    let scene = replacing();
    let folder = scene.folder();
    let old = scene.state(&folder);
    let full = |at, calls| scene.run(&folder, &[], Some(Fault("error28", at, calls)));
    full(2, "pwrite64").fails(&["free some space"]);
    full(2, "ftruncate64").fails(&["free some space"]);
    full(7, "pwrite64").fails(&["the disk is full"]);
    for at in 1..3 {
        let run = scene.run(&folder, &[], Some(Fault("error30", at, "mkdir")));
        assert!(run.code == 0 || run.stderr.contains("write to a folder that you may write to"), "{run:?}");
    }
    let (_, new) = scene.both(&[]);
    let now = scene.state(&folder);
    assert!(now == old || now == new);
    assert_eq!(left(&folder, "out"), BTreeSet::new());
}

#[test]
fn a_second_run_to_a_destination_is_refused_while_the_first_lives() {
    for scene in [replacing(), sharded(source, &[])] {
        let (_, new) = scene.both(&[]);
        let folder = scene.folder();
        // The first is halted while it writes.
        let mut first =
            scene.command(&folder, &[], Some(Fault("signal19", 6, "pwrite64"))).spawn().expect("runs");
        let work = folder.join(".out.qkvconv-work");
        while !work.join("new/model.safetensors.index.json").exists() || !halted(&first) {
            assert!(first.try_wait().expect("is there").is_none(), "it is halted");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        scene.run(&folder, &[], None).fails(&["another run is writing to this destination"]);
        scene.run(&folder, &["--resume"], None).fails(&["publish/busy"]);
        assert!(work.exists());
        let going_on = Command::new("kill").args(["-CONT", &first.id().to_string()]).status();
        assert!(going_on.expect("kill runs").success());
        finish(first).ok();
        assert!(scene.state(&folder) == new);
        assert_eq!(left(&folder, "out"), BTreeSet::new());
    }
}

fn halted(child: &Child) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

#[test]
fn runs_at_once_give_one_of_their_outputs() {
    let scene = replacing();
    let other = |folder: &Folder| {
        let args = [&CONVERT[..3], &["attention/per-head"], &CONVERT[4..], &["out"], &SHARDS, &["--force"]];
        let scene =
            Scene { before: Rc::clone(&scene.before), args: args.concat(), name: "out", in_place: false };
        scene.command(folder, &[], None)
    };
    let (_, one) = scene.both(&[]);
    let folder = scene.folder();
    finish(other(&folder).spawn().expect("runs")).ok();
    let two = scene.state(&folder);
    for _ in 0..6 {
        let commands =
            (0..4).map(|at| if at % 2 == 0 { scene.command(&folder, &[], None) } else { other(&folder) });
        let children: Vec<Child> = commands.map(|mut command| command.spawn().expect("runs")).collect();
        let runs: Vec<Run> = children.into_iter().map(finish).collect();
        assert!(runs.iter().any(|run| run.code == 0), "{runs:?}");
        for run in runs.iter().filter(|run| run.code != 0) {
            assert!(run.code == 1 && run.stderr.contains("publish/busy"), "{run:?}");
        }
        let now = scene.state(&folder);
        assert!(now == one || now == two);
        assert_eq!(left(&folder, "out"), BTreeSet::new());
    }
}

/// Returns how many files a run says it kept.
fn kept(run: &Run) -> usize {
    let said = run.stderr.lines().find_map(|line| line.strip_prefix("--resume: kept "));
    said.map_or(0, |said| said.split(' ').next().expect("a word").parse().expect("a number"))
}

#[test]
fn finished_files_are_kept_for_resume() {
    for more in
        [&["--format", "safetensors"][..], &["--format", "pytorch"], &["--dtype", "f16", "--verify", "none"]]
    {
        let scene = sharded(source, &["--resume", "--report", "report.json"]);
        let report = |folder: &Folder| {
            let text = std::fs::read_to_string(folder.join("report.json")).expect("a report");
            let mut report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            report["time"] = serde_json::Value::Null;
            report
        };
        let whole = scene.folder();
        scene.run(&whole, more, None).ok();
        let (new, expected) = (scene.state(&whole), report(&whole));
        let mut most = 0;
        for at in 1..MANY {
            let folder = scene.folder();
            let run = scene.run(&folder, more, Some(Fault("signal9", at, CHANGES)));
            if run.code == 0 {
                break;
            }
            let now = scene.state(&folder);
            assert!(now.is_none() || now == new, "{at}");
            if now == new {
                continue;
            }
            let run = scene.run(&folder, more, None).ok();
            most = most.max(kept(&run));
            assert!(scene.state(&folder) == new, "{at}: {}", run.stderr);
            assert_eq!(report(&folder), expected, "{at}");
            assert_eq!(left(&folder, "out"), BTreeSet::new(), "{at}");
        }
        let files = new.iter().flatten().filter(|(name, _)| name.contains("-of-")).count();
        assert!(files > 2 && most == files, "{most} of {files}");
    }
}

/// A folder in which a run with `--resume` was killed when it had finished two files.
fn half_done(scene: &Scene) -> Folder {
    let folder = scene.folder();
    for at in 1..MANY {
        let run = scene.run(&folder, &["--resume"], Some(Fault("signal9", at, "fsync")));
        assert_eq!(run.code, KILLED);
        if std::fs::read_dir(folder.join(".out.qkvconv-work/done")).is_ok_and(|done| {
            done.flatten().filter(|entry| entry.path().extension() == Some("json".as_ref())).count() >= 2
        }) {
            break;
        }
        std::fs::remove_dir_all(folder.join(".out.qkvconv-work")).expect("removes");
    }
    folder
}

#[test]
fn resume_never_trusts_what_does_not_fit() {
    let scene = replacing();
    let (_, new) = scene.both(&[]);
    let folder = half_done(&scene);
    assert_eq!(kept(&scene.run(&folder, &["--resume"], None).ok()), 2);
    assert!(scene.state(&folder) == new);

    // A kept file that was damaged is written again.
    let folder = half_done(&scene);
    let shard = std::fs::read_dir(folder.join(".out.qkvconv-work/done")).expect("a folder").next();
    let name = shard.expect("a file").expect("an entry").file_name().into_string().expect("UTF-8");
    let path = folder.join(".out.qkvconv-work/new").join(name.trim_end_matches(".json"));
    let mut bytes = std::fs::read(&path).expect("is there");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(&path, bytes).expect("writes");
    assert_eq!(kept(&scene.run(&folder, &["--resume", "--verify", "none"], None).ok()), 1);
    assert!(scene.state(&folder) == new);

    // Another cut, another source: nothing is used, and that is said.
    let folder = half_done(&scene);
    let run = scene.run(&folder, &["--resume", "--add-prefix", "net"], None).ok();
    assert!(run.stderr.contains("another conversion of this source") && kept(&run) == 0, "{}", run.stderr);
    let folder = half_done(&scene);
    source(&folder);
    let run = scene.run(&folder, &["--resume"], None).ok();
    assert!(run.stderr.contains("the source has changed") && kept(&run) == 0, "{}", run.stderr);
    assert!(scene.state(&folder) == new);

    // A run without it neither uses nor leaves anything.
    let folder = half_done(&scene);
    let run = scene.run(&folder, &[], Some(Fault("error28", 6, "pwrite64")));
    assert_eq!((run.code, left(&folder, "out")), (1, BTreeSet::new()));
    scene.run(&folder, &[], Some(Fault("signal9", 6, "pwrite64")));
    assert_eq!(kept(&scene.run(&folder, &["--resume"], None).ok()), 0);
    assert!(scene.state(&folder) == new);
}

#[test]
fn an_interrupt_and_a_full_disk_keep_finished_files_for_resume_alone() {
    let scene = sharded(source, &[]);
    let (_, new) = scene.both(&[]);
    for (action, code) in [("signal2", 130), ("error28", 1)] {
        let mut most = 0;
        for at in 1..40 {
            let fault = Some(Fault(action, at, "pwrite64"));
            let folder = scene.folder();
            let run = scene.run(&folder, &[], fault);
            assert!([0, code].contains(&run.code), "{run:?}");
            assert_eq!(left(&folder, "out"), BTreeSet::new(), "{action} {at}");
            let folder = scene.folder();
            let run = scene.run(&folder, &["--resume"], fault);
            if run.code == 0 {
                continue;
            }
            assert_eq!(run.code, code, "{run:?}");
            assert!(run.stderr.contains("stay for --resume") || !folder.join(".out.qkvconv-work").exists());
            // What is not finished takes no space.
            let there = std::fs::read_dir(folder.join(".out.qkvconv-work/new")).map_or(0, Iterator::count);
            let run = scene.run(&folder, &["--resume"], None).ok();
            assert_eq!(kept(&run), there, "{action} {at}");
            most = most.max(there);
            assert!(scene.state(&folder) == new);
        }
        assert!(most > 1, "{action}: {most}");
    }
}

#[test]
fn resume_is_for_folders() {
    let folder = Folder::new();
    source(&folder);
    let run = folder.run(&[&CONVERT[..], &["out.safetensors", "--resume"]].concat());
    assert!(run.code == 2 && run.stderr.contains("--max-shard-size"), "{run:?}");
}

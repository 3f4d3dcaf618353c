//! `skep copy` from and to a mounted cluster. The tests cover all kinds of entries, an interrupted
//! copy, a full destination, and a source that changes during the copy.

use serde_json::Value;
use skep_testkit::cluster::program;
use skep_testkit::program::{finish, run};
use skep_testkit::{Cluster, PATIENCE, Random, Scratch, Shape, cluster, files, schema, wait_for};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit for one copy. The limit is long, because the machine may be busy with other work.
const LONG: Duration = Duration::from_secs(300);

/// A process that is killed at the end of the test, even if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Runs `skep copy`, and returns the printed JSON value.
fn copy(options: &[&str], from: &Path, to: &Path) -> Value {
    let mut command = Command::new(program());
    command.arg("copy").args(options).args([from, to]).args(["--output", "json"]);
    let printed = finish(&mut command, LONG).expect_success();
    let value = serde_json::from_str(&printed).expect("one JSON value");
    schema::check("copy", &value);
    value
}

fn start(options: &[&str], from: &Path, to: &Path) -> Running {
    let mut command = Command::new(program());
    command.arg("copy").args(options).args([from, to]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Running(command.spawn().expect("the program starts"))
}

/// Returns a line for each entry with its type, mode, owner, number of names, time and link target.
/// For files, the line also contains the length and the checksum.
fn listing(top: &Path) -> String {
    let script = "cd \"$1\"\n\
        find . -printf '%P %y %m %U %G %T@ %l\\n' | sort\n\
        find . ! -type d -printf '%P %n\\n' | sort\n\
        find . -type f -printf '%P %s\\n' | sort\n\
        find . -type f -exec sha256sum {} + | sort -k 2\n\
        find . -print0 | sort -z | xargs -0 getfattr --no-dereference --dump 2>/dev/null || true";
    run("sh", ["-ec", script, "sh", &text(top)])
}

fn random(bytes: usize) -> Vec<u8> {
    Random::new(bytes as u64).bytes(bytes)
}

/// Creates entries of all kinds in the directory `top`.
fn fill(top: &Path) {
    for directory in 0..5 {
        let directory = top.join(format!("directory-{directory}/below"));
        files::create_dir_all(&directory);
        for file in 0..30 {
            files::write(directory.join(format!("file-{file}")), random(file * 3001));
        }
    }
    let script = "cd \"$1\"\n\
        ln directory-0/below/file-9 directory-1/second-name\n\
        ln directory-0/below/file-9 third-name\n\
        ln -s ../nowhere broken; ln -s directory-2 link\n\
        mkfifo -m 640 fifo; mknod -m 600 device c 1 3\n\
        chown 1234:4321 directory-3/below/file-3; chown -h 77:88 link\n\
        chmod 4755 directory-3/below/file-4; chmod 1777 directory-4\n\
        printf x >'a name \" with\\ signs'\n\
        truncate -s 40M sparse\n\
        printf middle | dd of=sparse bs=1M seek=20 conv=notrunc status=none\n\
        touch -d '2001-02-03 04:05:06.789012345' directory-2/below/file-5 directory-2\n\
        touch -h -d '2001-02-03 04:05:06' broken";
    run("sh", ["-ec", script, "sh", &text(top)]);
    run("setfattr", ["-n", "user.note", "-v", "a value", &text(&top.join("third-name"))]);
}

/// Command: skep copy.
#[test]
fn tree_is_copied_into_and_out_of_a_cluster() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    fill(&source);
    let inside = cluster.path().join("inside");
    let copied = copy(&["--verify"], &source, &inside);
    assert_eq!(listing(&source), listing(&inside));
    assert_eq!(copied["problem_count"], 0);
    // The copy has 150 plain files, the file with holes, and the file with an unusual name.
    assert_eq!((copied["files"].as_u64(), copied["directories"].as_u64()), (Some(152), Some(11)));
    let blocks = std::os::unix::fs::MetadataExt::blocks(&files::metadata(inside.join("sparse")));
    assert!(blocks * 512 < 20 << 20, "the sparse file has {blocks} blocks");
    let outside = scratch.join("outside");
    copy(&["--verify"], &inside, &outside);
    assert_eq!(listing(&source), listing(&outside));
    // For a copy within the cluster, storage targets copy the bytes.
    let second = cluster.path().join("second");
    copy(&["--verify"], &inside, &second);
    assert_eq!(listing(&source), listing(&second));
    let again = copy(&["--resume"], &source, &inside);
    assert_eq!((again["files"].as_u64(), again["bytes"].as_u64()), (Some(0), Some(0)));
    cluster.stop_checked(&[]);
}

#[test]
fn killed_copy_continues_with_the_missing_pieces() {
    let cluster = Cluster::start(Shape::small());
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    fill(&source);
    let bytes = 200 << 20;
    files::write(source.join("large"), random(bytes));
    let inside = cluster.path().join("inside");
    let running = start(&["--rate", "80MiB", "--threads", "2"], &source, &inside);
    // The list of pieces consists of a header line, and a byte for each piece. The byte is `1` if
    // the piece is finished.
    let finished_pieces = || {
        let entries = std::fs::read_dir(&inside).ok()?;
        let mut names = entries.filter_map(|it| it.ok().map(|it| it.path()));
        let list = names.find(|it| text(it).ends_with(".pieces"))?;
        let list = std::fs::read(list).ok()?;
        let notes = list.split(|byte| *byte == b'\n').next_back()?;
        notes.contains(&b'1').then_some(())
    };
    wait_for("the first piece is complete", PATIENCE, finished_pieces);
    drop(running);
    assert!(!inside.join("large").exists(), "the copy was killed before its end");
    let resumed = copy(&["--resume", "--verify"], &source, &inside);
    let copied = resumed["bytes"].as_u64().expect("a number");
    assert!(
        copied <= bytes as u64 - (64 << 20) + (12 << 20),
        "the resumed copy copied {copied} bytes again"
    );
    assert_eq!(listing(&source), listing(&inside));
    run(
        "diff",
        ["--recursive", "--no-dereference", "--exclude=fifo", "--exclude=device"]
            .map(str::to_owned)
            .into_iter()
            .chain([text(&source), text(&inside)]),
    );
    cluster.stop_checked(&[]);
}

#[test]
fn full_destination_ends_a_copy_that_the_next_run_continues() {
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    for file in 0..40 {
        files::write(source.join(format!("file-{file}")), random(400_000));
    }
    let destination = scratch.directory("destination");
    // When the script ends, its mount namespace ends, and the kernel removes the tmpfs.
    let script = "mount -t tmpfs -o size=8m tmpfs \"$2\"\n\
        if \"$3\" copy \"$1\" \"$2/copy\" --output json >\"$4\" 2>&1; then exit 9; fi\n\
        find \"$2\" -name '.skep-copy-*' | grep . && exit 8\n\
        mount -o remount,size=64m \"$2\"\n\
        \"$3\" copy --resume --verify \"$1\" \"$2/copy\"\n\
        diff -r \"$1\" \"$2/copy\"";
    let log = scratch.join("log");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
    command.args([&source, &destination]).arg(program()).arg(&log);
    let printed = finish(&mut command, LONG).expect_success();
    assert!(printed.contains("Left out"), "{printed}");
    let log = files::read_to_string(&log);
    for word in ["\"is_full\": true", "the destination is full", "--resume", "NoSpace"] {
        assert!(log.contains(word), "{word}: {log}");
    }
}

#[test]
fn source_that_changes_during_the_copy_is_reported() {
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    files::write(source.join("log"), random(12 << 20));
    let destination = scratch.directory("destination");
    let mut command = Command::new(program());
    command.args(["copy", "--rate", "4MiB"]).args([&source, &destination]);
    let copying = std::thread::spawn(move || finish(&mut command, LONG));
    let begun = || std::fs::read_dir(&destination).ok()?.next().map(|_| ());
    wait_for("the copy begins", PATIENCE, begun);
    let file = files::open_with(std::fs::OpenOptions::new().append(true), source.join("log"));
    files::write_all(&file, b"one line more");
    let failed = copying.join().expect("no panic").expect_failure();
    assert!(failed.contains("a program changed the source during the copy"), "{failed}");
    // The copy must never give the final name to a file that contains bytes of two versions of the
    // source.
    assert!(begun().is_none(), "an incomplete copy was left");
    copy(&["--resume", "--verify"], &source, &destination);
    assert_eq!(listing(&source), listing(&destination));
}

/// Users often may enter the directory above their own directory, but not list that directory, as
/// in a `/home` with the mode 711.
#[test]
fn source_in_a_directory_without_read_permission_is_copied() {
    const USER: u32 = 23_456;
    let scratch = Scratch::new();
    files::set_permissions(scratch.path(), Permissions::from_mode(0o755));
    // Copy the program `skep` to a directory that other users may access.
    let skep = scratch.join("skep");
    files::copy(program(), &skep);
    let home = scratch.directory("home");
    let [own, to] = ["home/ada", "copies"].map(|name| scratch.directory(name));
    files::write(own.join("file"), "x");
    for path in [&own, &own.join("file"), &to] {
        files::chown(path, Some(USER), Some(USER));
    }
    files::set_permissions(&home, Permissions::from_mode(0o711));
    let copy = |from: &Path, to: &Path| {
        let mut command = Command::new(&skep);
        command.arg("copy").args([from, to]).uid(USER).gid(USER);
        finish(&mut command, LONG)
    };
    copy(&own, &to.join("ada")).expect_success();
    assert_eq!(files::read(to.join("ada/file")), b"x");
    // The error names the directory that cannot be read, and not the parent of this directory.
    files::set_permissions(&own, Permissions::from_mode(0o700));
    files::chown(&own, Some(0), Some(0));
    let refusal = copy(&own, &to.join("other")).expect_failure();
    assert!(refusal.contains(&format!("{}: Permission denied", text(&own))), "{refusal}");
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_copied() {
    let scratch = Scratch::new();
    let source = scratch.directory("source");
    files::write(source.join("file"), "x");
    let refused =
        |arguments: &[&str]| cluster::skep([&["copy"], arguments].concat()).expect_failure();
    let [from, inside] = [text(&source), text(&source.join("inside"))];
    assert!(refused(&[&from]).contains("the destination is missing"));
    assert!(refused(&[&from, &inside]).contains("name a destination outside"));
    let missing = text(&scratch.join("missing"));
    assert!(refused(&[&missing, &inside]).contains(&missing));
    assert!(refused(&[&from, &inside, "--threads", "0"]).contains("--threads"));
    assert!(refused(&[&from, &inside, "--rate", "fast"]).contains("invalid size 'fast'"));
    assert!(refused(&[&from, &inside, "--rate", "0"]).contains("at least one byte"));
    assert!(!source.join("inside").exists());
}

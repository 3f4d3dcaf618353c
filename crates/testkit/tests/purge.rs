//! `skep purge` on a mounted cluster: the exact set of removed files, hostile entries, and files in
//! use.
//!
//! No program can set the change time of a file. So most tests use `--by mtime`.

use serde_json::Value;
use skep_testkit::cluster::program;
use skep_testkit::program::{finish, run};
use skep_testkit::view::Typed;
use skep_testkit::{
    Cluster, PATIENCE, Scratch, Shape, Transport, cluster, files, schema, wait_for,
};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the arguments of a purge that prints JSON.
fn arguments<'a>(directory: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["purge", directory, "--output", "json"][..], options].concat()
}

/// Runs `skep purge`, and returns the printed JSON value.
fn purge(directory: &Path, options: &[&str]) -> Value {
    let printed = cluster::skep(arguments(&text(directory), options)).expect_success();
    let value = serde_json::from_str(&printed).expect("one JSON value");
    schema::check("purge", &value);
    value
}

/// Returns the output of a purge that must fail.
fn refused(directory: &Path, options: &[&str]) -> String {
    cluster::skep(arguments(&text(directory), options)).expect_failure()
}

/// Returns the paths of all entries below a directory.
fn entries(directory: &Path) -> Vec<String> {
    let script = "cd \"$1\"; find . -mindepth 1 -printf '%P\\n' | LC_ALL=C sort";
    let printed = run("sh", ["-ec", script, "sh", &text(directory)]);
    printed.lines().map(str::to_owned).collect()
}

/// Creates the directory `scratch` in a mount, and entries in this directory by a shell script. The
/// script can call `old`, which sets the modification times of entries to a time 40 days ago.
fn scratch(mount: &Path, script: &str) -> PathBuf {
    let directory = mount.join("scratch");
    let old = "old() { touch -h -d '40 days ago' \"$@\"; }";
    let script = format!("mkdir \"$1\"; cd \"$1\"\n{old}\n{script}");
    run("sh", ["-ec", &script, "sh", &text(&directory)]);
    directory
}

const OLD: [&str; 4] = ["--by", "mtime", "--older-than", "30d"];

/// Command: skep purge.
#[test]
fn purge_removes_exactly_the_old_files_on_all_mounts() {
    let mut cluster = Cluster::start(Shape::small());
    let second = cluster.mount(Transport::Device);
    let directory = scratch(
        cluster.path(),
        "mkdir -p alice/run bob/keep gone empty-old empty-young\n\
         head -c 1000 /dev/zero >alice/old-1; head -c 2000 /dev/zero >alice/run/old-2\n\
         head -c 3000 /dev/zero >bob/old-3; head -c 500 /dev/zero >gone/old-5\n\
         echo x >alice/run/young; echo x >bob/keep/old-4; echo x >bob/image.sif\n\
         ln -s ../alice old-link; chown 1234 bob/old-3\n\
         old alice/old-1 alice/run/old-2 bob/old-3 bob/keep/old-4 bob/image.sif gone/old-5\n\
         old old-link gone empty-old",
    );
    let before = entries(&directory);
    let outside = Scratch::new();
    let [list, log] = ["list", "log"].map(|name| text(&outside.join(name)));
    let exclusions = ["--exclude", "bob/keep", "--exclude", "*.sif", "--empty-directories"];
    let options = [&OLD[..], &exclusions].concat();

    let dry = purge(&directory, &[&options[..], &["--list", &list]].concat());
    assert_eq!(entries(&directory), before);
    let too_many = refused(&directory, &[&options[..], &["--apply"]].concat());
    assert!(too_many.contains("5 of 7 files would be removed"), "{too_many}");
    assert_eq!(entries(&directory), before);
    let more = ["--apply", "--max-share", "80%", "--log", &log];
    let done = purge(&directory, &[&options[..], &more].concat());

    for outcome in [&dry, &done] {
        let numbers = ["scanned", "files", "bytes", "directories"];
        assert_eq!(numbers.map(|name| outcome[name].number()), [7, 5, 6500, 2]);
        assert_eq!(outcome["skipped"]["excluded"], 2);
        let users: Vec<_> = outcome["by_user"].list().iter().map(|it| &it["uid"]).collect();
        assert_eq!(users, [0, 1234]);
    }
    let left = [
        "alice",
        "alice/run",
        "alice/run/young",
        "bob",
        "bob/image.sif",
        "bob/keep",
        "bob/keep/old-4",
        "empty-young",
    ];
    assert_eq!(entries(&directory), left);
    wait_for("the second mount sees the removals", PATIENCE, || {
        (entries(&second.path().join("scratch")) == left).then_some(())
    });
    let list = files::read_to_string(&list);
    assert_eq!(list.lines().count(), 7);
    for line in list.lines() {
        schema::check("purge-list", &serde_json::from_str(line).expect("one JSON value"));
    }
    let log = files::read_to_string(&log);
    assert_eq!(log.lines().count(), 7);
    let line = log.lines().find(|line| line.ends_with("/scratch/bob/old-3")).expect("its line");
    assert!(line.contains(" size=3000 uid=1234 mtime="), "{line}");
    second.unmount();
    cluster.stop_checked(&[]);
}

#[test]
fn purge_computes_the_age_from_the_change_time_by_default() {
    let cluster = Cluster::start(Shape::small());
    // The modification times are old, as after the extraction of an archive.
    let directory = scratch(cluster.path(), "echo x >a; echo x >b; old a b");
    assert_eq!(purge(&directory, &["--older-than", "1h"])["files"], 0);
    wait_for("both files are a second old", PATIENCE, || {
        (purge(&directory, &["--older-than", "1s"])["files"] == 2).then_some(())
    });
    assert_eq!(entries(&directory), ["a", "b"]);
    let everything = ["--older-than", "1s", "--apply", "--max-share", "100%"];
    assert_eq!(purge(&directory, &everything)["files"], 2);
    assert_eq!(entries(&directory), Vec::<String>::new());
}

#[test]
fn purge_removes_all_names_of_a_file_in_one_run() {
    let cluster = Cluster::start(Shape::small());
    let directory = scratch(
        cluster.path(),
        "mkdir a b; head -c 3000 /dev/zero >a/first; ln a/first a/second; ln a/first b/third",
    );
    let age = ["--older-than", "1s", "--max-share", "100%"];
    wait_for("the file is a second old", PATIENCE, || {
        let outcome = purge(&directory, &age);
        (outcome["files"] == 3 && outcome["bytes"] == 3000).then_some(())
    });
    // Each removal of a name sets the change time of the file. If the purge counted its own
    // removals as uses, the file would be too young for the removal of its last name, because the
    // rate is low.
    let slowly = ["--apply", "--limit-rate", "2", "--threads", "1"];
    let outcome = purge(&directory, &[&age[..], &slowly].concat());
    assert_eq!((outcome["files"].number(), outcome["bytes"].number()), (3, 3000));
    assert_eq!(entries(&directory), ["a", "b"]);
    cluster.stop_checked(&[]);
}

#[test]
fn purge_empties_a_directory_with_many_files_in_one_run() {
    let cluster = Cluster::start(Shape::small());
    let script = "mkdir many; cd many; seq 5000 | xargs touch -d '40 days ago'; echo x >young";
    let directory = scratch(cluster.path(), script);
    let apply = ["--apply", "--max-share", "100%"];
    let outcome = purge(&directory, &[&OLD[..], &apply].concat());
    assert_eq!((outcome["scanned"].number(), outcome["files"].number()), (5001, 5000));
    assert_eq!(entries(&directory), ["many", "many/young"]);
    cluster.stop_checked(&[]);
}

#[test]
fn purge_follows_no_symlinks_and_enters_no_mounts() {
    let cluster = Cluster::start(Shape::small());
    let directory = scratch(
        cluster.path(),
        "mkdir ../home mounted; echo x >../home/old; echo x >old; ln -s ../home link\n\
         echo x >covered; old ../home/old old link covered ../home",
    );
    let home = cluster.path().join("home");
    // A second mount of a directory or file of the same file system has the same device number. The
    // new mount namespace ends with the command.
    let script = "mount --bind \"$1\" \"$2/mounted\"\n\
        mount --bind \"$1/old\" \"$2/covered\"\n\
        exec \"$3\" purge \"$2\" --by mtime --older-than 30d --apply --max-share 100% \
        --empty-directories --output json";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh"]);
    command.args([&home, &directory, &program()]);
    let printed = finish(&mut command, PATIENCE).expect_success();
    let outcome: Value = serde_json::from_str(&printed).expect("one JSON value");
    schema::check("purge", &outcome);
    assert_eq!(outcome["files"], 2);
    assert_eq!(outcome["skipped"]["mount_points"], 2);
    assert_eq!(entries(&directory), ["covered", "mounted"]);
    assert_eq!(entries(&home), ["old"]);
}

#[test]
fn purge_keeps_a_file_that_another_mount_has_open_to_write() {
    let mut cluster = Cluster::start(Shape::small());
    let second = cluster.mount(Transport::Device);
    let directory = scratch(cluster.path(), "echo x >written; echo x >read; old written read");
    let elsewhere = second.path().join("scratch");
    let writer = files::open_with(OpenOptions::new().write(true), elsewhere.join("written"));
    let reader = files::open(elsewhere.join("read"));
    let options = [&OLD[..], &["--apply", "--max-share", "100%"]].concat();
    let outcome = purge(&directory, &options);
    assert_eq!(outcome["files"], 1);
    assert_eq!(outcome["skipped"]["in_use"], 1);
    assert_eq!(entries(&directory), ["written"]);
    let mut bytes = [0; 2];
    files::read_exact(&reader, &mut bytes);
    assert_eq!(&bytes, b"x\n");
    drop(writer);
    wait_for("the file is not in use any more", PATIENCE, || {
        (purge(&directory, &options)["files"] == 1).then_some(())
    });
    assert_eq!(entries(&directory), Vec::<String>::new());
}

#[test]
fn interrupted_purge_prints_and_logs_all_removed_files() {
    let cluster = Cluster::start(Shape::small());
    let directory = scratch(cluster.path(), "seq 100 | xargs touch -d '40 days ago'");
    let outside = Scratch::new();
    let log = text(&outside.join("log"));
    let script = "\"$1\" purge \"$2\" --by mtime --older-than 30d --apply --max-share 100% \
        --limit-rate 4 --threads 1 --log \"$3\" &\n\
        until [ -s \"$3\" ]; do sleep 0.1; done\n\
        kill -TERM $!\nwait $!";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args([&text(&program()), &text(&directory), &log]);
    let output = finish(&mut command, PATIENCE).expect_failure();
    assert!(output.contains("a signal interrupted the purge"), "{output}");
    let removed = files::read_to_string(&log).lines().count();
    assert!(output.contains(&format!("Removed {removed} file")), "{output}");
    let left = entries(&directory).len();
    assert!(left > 0);
    assert_eq!(left + removed, 100);
    cluster.stop_checked(&[]);
}

/// A shell without job control makes its background commands ignore SIGINT, so Ctrl-C ends only the
/// command in the foreground. Before the fix, this signal also ended a purge in the background.
#[test]
fn purge_in_the_background_of_a_script_ignores_ctrl_c() {
    let cluster = Cluster::start(Shape::small());
    let directory = scratch(cluster.path(), "seq 20 | xargs touch -d '40 days ago'");
    let outside = Scratch::new();
    let log = text(&outside.join("log"));
    let script = "\"$1\" purge \"$2\" --by mtime --older-than 30d --apply --max-share 100% \
        --limit-rate 10 --threads 1 --log \"$3\" &\n\
        until [ -s \"$3\" ]; do sleep 0.1; done\n\
        kill -INT $!\nwait $!";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args([&text(&program()), &text(&directory), &log]);
    finish(&mut command, PATIENCE).expect_success();
    assert_eq!(entries(&directory), Vec::<String>::new());
    cluster.stop_checked(&[]);
}

#[test]
fn purge_refuses_dangerous_arguments() {
    let cluster = Cluster::start(Shape::small());
    let directory = scratch(cluster.path(), "echo x >file; old file; ln -s . link");
    let outside = Scratch::new();
    files::write(outside.join("file"), "x");
    let all = ["--older-than", "1ms", "--apply", "--max-share", "100%"];
    let check = |directory: &Path, options: &[&str], words: &str| {
        let output = refused(directory, options);
        assert!(output.contains(words), "{words}: {output}");
    };
    check(Path::new("/"), &[&all[..], &["--any"]].concat(), "root directory");
    check(&outside.join(""), &all, "--any");
    check(&directory.join("link"), &all, "symbolic link");
    check(&directory.join("file"), &all, "Not a directory");
    check(&directory, &["--older-than", "0d", "--apply"], "age 0");
    check(&directory, &["--older-than", "soon"], "invalid time");
    check(&directory, &["--older-than", "1d", "--log", "/tmp/log"], "--apply");
    check(&directory, &["--older-than", "1d", "--user", "no-such-user"], "no-such-user");
    check(&directory, &["--older-than", "1d", "--list", "-"], "standard output");
    let whole = text(&directory.join("file"));
    check(&directory, &[&all[..], &["--exclude", &whole]].concat(), "below this directory");
    check(&directory, &[&all[..], &["--exclude", "./file"]].concat(), "invalid pattern");
    assert_eq!(entries(&directory), ["file", "link"]);
    let other = purge(&outside.join(""), &[&all[..], &["--any"]].concat());
    assert_eq!(other["files"], 1);
    assert!(!outside.join("file").exists());
}

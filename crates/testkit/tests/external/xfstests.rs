//! Runs the tests of the xfstests group `generic`, from a source tree that is already built.
//!
//! This program starts two clusters, for the *test* and the *scratch* file system. Each cluster has
//! its own small disk, so that a test that fills a file system does not fill the machine's disk.
//! Each test runs in its own mount and process namespace. In this namespace, the mount helper is in
//! `/sbin`, and all users that the tests need exist. The kernel also ends the mounts and processes
//! that a test has left when the namespace ends.
//!
//! # Settings
//! - `SKEP_XFSTESTS_TREE`: path of the built tree.
//! - `SKEP_XFSTESTS_TESTS`: test numbers, separated by commas. If this variable is not set, all
//!   tests run.
//! - `SKEP_XFSTESTS_PATIENCE`: time limit of each test in seconds. The default is 300.
//! - `SKEP_XFSTESTS_TRANSPORT`: transport of the mounts, as in the mount option. If this variable
//!   is not set, the mounts use their default transport.
//! - `SKEP_EXTERNAL_RESULTS`: directory for the results.

use crate::text;
use skep_testkit::files;
use skep_testkit::program::run;
use skep_testkit::view::Typed;
use skep_testkit::{Cluster, Scratch, Shape, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Length of each disk in bytes. The disks are sparse files.
const DISK_BYTES: u64 = 10 << 30;
/// The page with the list of the tests that fail for a known reason.
const KNOWN: &str = include_str!("../../../../docs/tests/xfstests.md");

/// Shell script that creates the environment for the test `$1`, and then runs the test.
const AROUND: &str = "\
    mount --bind sbin /sbin; mount --bind passwd /etc/passwd; mount --bind group /etc/group; \
    export HOST_OPTIONS=$PWD/config RESULT_BASE=$PWD/results; \
    cd \"$TREE\"; ./check generic/$1; umount \"$PLACE/test\" \"$PLACE/scratch\" 2>/dev/null";

/// The outcome of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ended {
    Passed,
    /// The test did not run. The test has printed this reason.
    NotRun(String),
    Failed,
    /// The test had not ended at its time limit.
    TimedOut,
}

/// The *test* or the *scratch* file system.
struct Side {
    cluster: Cluster,
    disk: PathBuf,
}

impl Side {
    fn new(scratch: &Scratch, name: &str) -> Self {
        let image = scratch.join(&format!("{name}.image"));
        File::create(&image).and_then(|file| file.set_len(DISK_BYTES)).expect("a sparse file");
        run("mkfs.xfs", ["-q", text(&image)]);
        let disk = scratch.directory(&format!("{name}-disk"));
        run("mount", ["-o", "loop,discard", text(&image), text(&disk)]);
        let shape = Shape { targets_per_service: 2, ..Shape::default() };
        let cluster = Cluster::start_in(&disk, shape);
        scratch.directory(name);
        let token = cluster.skep(&["cluster", "token"]);
        files::write(scratch.join(&format!("{name}.token")), token);
        Self { cluster, disk }
    }

    /// Returns the address of management.
    fn address(&self) -> String {
        self.cluster.nodes("management")[0]["addresses"][0].text().to_owned()
    }

    fn end(self) {
        self.cluster.stop();
        run("umount", [text(&self.disk)]);
    }
}

/// Creates in the scratch directory the files that the namespaces of the tests need.
fn prepare(scratch: &Scratch, addresses: [String; 2], transport: Option<&str>) {
    let sbin = scratch.directory("sbin");
    run("cp", ["-a", "/sbin/.", text(&sbin)]);
    for name in ["mount.skep", "mount.fuse.skep"] {
        files::symlink(skep_testkit::cluster::program(), sbin.join(name));
    }
    let mut users = files::read_to_string("/etc/passwd");
    let mut groups = files::read_to_string("/etc/group");
    for (number, name) in (30_001..).zip(["fsgqa", "123456-fsgqa", "fsgqa2"]) {
        users.push_str(&format!("{name}:*:{number}:{number}::/:/bin/bash\n"));
        groups.push_str(&format!("{name}:x:{number}:\n"));
    }
    files::write(scratch.join("passwd"), users);
    files::write(scratch.join("group"), groups);
    // The tests expect the file system type `fuse` in the output of `df`.
    let df = "#!/bin/sh\ndf -T -P \"$@\" | sed 's/ fuse\\.skep / fuse /'\n";
    files::write(scratch.join("df"), df);
    files::set_permissions(scratch.join("df"), fs::Permissions::from_mode(0o755));
    let place = text(scratch.path());
    let [test, other] = addresses;
    let transport = transport.map(|it| format!(",transport={it}")).unwrap_or_default();
    let options = |name: &str| {
        format!("-otoken_file={place}/{name}.token,log_file={place}/{name}.log{transport}")
    };
    let (test_options, scratch_options) = (options("test"), options("scratch"));
    let config = format!(
        "export FSTYP=fuse FUSE_SUBTYP=.skep DF_PROG={place}/df\n\
         export TEST_DEV={test} TEST_DIR={place}/test\n\
         export SCRATCH_DEV={other} SCRATCH_MNT={place}/scratch\n\
         export TEST_FS_MOUNT_OPTS={test_options}\n\
         export MOUNT_OPTIONS={scratch_options}\n"
    );
    files::write(scratch.join("config"), config);
    scratch.directory("results");
}

/// Runs one test, and writes its output to a file whose name contains the id of the test.
fn run_test(scratch: &Scratch, tree: &Path, test: &str, patience: Duration) -> Ended {
    let log = scratch.join(&format!("results/{test}.log"));
    let output = files::create(&log);
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "bash", "-c", AROUND, "bash", test]);
    command.env("TREE", tree).env("PLACE", scratch.path()).current_dir(scratch.path());
    command.stdin(Stdio::null()).stdout(output.try_clone().expect("a log")).stderr(output);
    let mut child = command.spawn().expect("unshare is installed");
    let ended = eventually(patience, || child.try_wait().expect("our own child"));
    if ended.is_none() {
        // This call kills the first process of the namespace. When that process exits, the kernel
        // ends all other processes of the namespace.
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        return Ended::TimedOut;
    }
    let printed = fs::read(&log).unwrap_or_default();
    let printed = String::from_utf8_lossy(&printed);
    if printed.contains("\nNot run: ") {
        let reason = scratch.join(&format!("results/generic/{test}.notrun"));
        let reason = fs::read_to_string(reason).unwrap_or_default();
        return Ended::NotRun(reason.lines().next().unwrap_or_default().to_owned());
    }
    if printed.contains("\nPassed all 1 tests") { Ended::Passed } else { Ended::Failed }
}

/// Returns the numbers in the first column of the page's table of failures.
fn known_failures() -> BTreeSet<String> {
    let table = KNOWN.split("## Failures").nth(1).expect("the page has that part");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| "));
    let numbers = rows.filter_map(|row| row.split(' ').next());
    numbers.filter(|it| it.len() == 3 && it.parse::<u32>().is_ok()).map(str::to_owned).collect()
}

/// Formats a list of numbers. Consecutive numbers are written as a range, as in `001-005, 007`.
fn ranges(numbers: &[&str]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers.iter().filter_map(|it| it.parse().ok()) {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let shown = parts.iter().map(|(first, last)| match first == last {
        true => format!("{first:03}"),
        false => format!("{first:03}-{last:03}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Removes the names of files and devices from the reason why a test did not run. Two reasons that
/// differ only in such names become equal.
fn kind_of_reason(reason: &str) -> String {
    let words = reason.split_whitespace().map(|word| match word {
        word if word.contains("127.0.0.1") => "the device",
        word if word.starts_with('/') => "a file",
        word => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the version of a Git work tree: its last tag, or its abbreviated commit. If the
/// directory is no work tree, returns a text with this fact.
fn version_of(directory: &Path) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["describe", "--tags", "--always", "--dirty"]);
    let output = command.output().ok().filter(|output| output.status.success());
    let printed = output.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
    printed.unwrap_or_else(|| "of an unknown version (no work tree of Git)".into())
}

/// Returns a line with the versions of the programs of this run.
fn versions(tree: &Path, transport: Option<&str>) -> String {
    format!(
        "Skep {}, xfstests {}, Linux {}, transport {}, {}.\n",
        version_of(Path::new(env!("CARGO_MANIFEST_DIR"))),
        version_of(tree),
        run("uname", ["-r"]).trim(),
        transport.unwrap_or("by default"),
        run("date", ["-u", "+%F"]).trim()
    )
}

/// Returns the tables of `docs/tests/xfstests.md`, generated from the results of a run.
fn report(results: &BTreeMap<String, Ended>) -> String {
    let of = |wanted: &dyn Fn(&Ended) -> bool| {
        let found = results.iter().filter(|(_, ended)| wanted(ended));
        found.map(|(test, _)| test.as_str()).collect::<Vec<_>>()
    };
    let passed = of(&|it| *it == Ended::Passed);
    let failed = of(&|it| *it == Ended::Failed);
    let slow = of(&|it| *it == Ended::TimedOut);
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (test, ended) in results {
        if let Ended::NotRun(reason) = ended {
            reasons.entry(kind_of_reason(reason)).or_default().push(test);
        }
    }
    let mut text = String::from("| result | count | tests |\n|---|---|---|\n");
    for (name, tests) in [("passed", &passed), ("failed", &failed), ("took too long", &slow)] {
        text.push_str(&format!("| {name} | {} | {} |\n", tests.len(), ranges(tests)));
    }
    text.push_str("\n| why not run | count | tests |\n|---|---|---|\n");
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, tests)| std::cmp::Reverse(tests.len()));
    for (reason, tests) in reasons {
        text.push_str(&format!("| {reason} | {} | {} |\n", tests.len(), ranges(&tests)));
    }
    text
}

fn tests_of(tree: &Path) -> Vec<String> {
    if let Ok(wanted) = std::env::var("SKEP_XFSTESTS_TESTS") {
        return wanted.split(',').map(|it| it.trim_start_matches("generic/").to_owned()).collect();
    }
    let place = tree.join("tests/generic");
    let names = fs::read_dir(&place).unwrap_or_else(|e| panic!("{}: {e}", place.display()));
    let names = names.flatten().filter_map(|it| it.file_name().into_string().ok());
    let mut tests: Vec<_> = names.filter(|it| it.parse::<u32>().is_ok()).collect();
    tests.sort();
    // Keep only the tests of the group `auto`. A test outside this group may do damage when it
    // fails, or may need more time than a run has.
    tests.retain(|test| {
        let script = fs::read_to_string(place.join(test)).unwrap_or_default();
        let groups = script.lines().find(|line| line.starts_with("_begin_fstest"));
        groups.is_some_and(|line| line.split_whitespace().any(|group| group == "auto"))
    });
    tests
}

pub(crate) fn xfstests_fails_only_tests_with_a_listed_reason(_: &()) {
    let tree = std::env::var_os("SKEP_XFSTESTS_TREE").map(PathBuf::from);
    let tree =
        tree.expect("`cargo xtask external --only xfstests --tree DIRECTORY` names the tree");
    let tree = tree.canonicalize().expect("the tree is there");
    assert!(tree.join("ltp/fsstress").exists(), "{} is not built", tree.display());
    let seconds = std::env::var("SKEP_XFSTESTS_PATIENCE").ok().and_then(|it| it.parse().ok());
    let patience = Duration::from_secs(seconds.unwrap_or(300));
    let scratch = Scratch::new();
    files::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755));
    let sides = ["test", "scratch"].map(|name| Side::new(&scratch, name));
    let transport = std::env::var("SKEP_XFSTESTS_TRANSPORT").ok();
    prepare(&scratch, [sides[0].address(), sides[1].address()], transport.as_deref());
    let versions = versions(&tree, transport.as_deref());
    print!("{versions}");
    let mut results = BTreeMap::new();
    for test in tests_of(&tree) {
        let start = Instant::now();
        let ended = run_test(&scratch, &tree, &test, patience);
        println!("{test} {ended:?} ({:.0} s)", start.elapsed().as_secs_f64());
        results.insert(test, ended);
    }
    let kept = std::env::var_os("SKEP_EXTERNAL_RESULTS").map(PathBuf::from);
    if let Some(kept) = &kept {
        files::create_dir_all(kept);
        run("cp", ["-rT", text(&scratch.join("results")), text(kept)]);
        files::write(kept.join("results.md"), format!("{versions}\n{}", report(&results)));
        println!("results: {}", kept.display());
    }
    for side in sides {
        side.end();
    }
    let known = known_failures();
    let has_failed = |ended: &Ended| matches!(ended, Ended::Failed | Ended::TimedOut);
    let found = results.iter().filter(|(_, ended)| has_failed(ended));
    let new: Vec<_> = found.filter(|(test, _)| !known.contains(*test)).collect();
    let better = results.iter().filter(|(_, ended)| **ended == Ended::Passed);
    let better: Vec<_> = better.filter(|(test, _)| known.contains(*test)).collect();
    if !better.is_empty() {
        println!("these tests are in the table of failures, but pass here: {better:?}");
    }
    assert!(new.is_empty(), "these tests fail, and are not in docs/tests/xfstests.md: {new:?}");
}

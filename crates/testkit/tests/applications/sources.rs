//! Source trees and builds: git and make on two mounts at the same time.

use crate::{Places, text};
use skep_testkit::files;
use skep_testkit::program::run_in;
use skep_testkit::{Random, wait_for};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PARTS: usize = 12;

fn git(directory: &Path, arguments: &[&str]) -> String {
    let who = ["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "gc.auto=0"];
    run_in(directory, "git", [&who[..], arguments].concat())
}

/// Creates a git repository with `commits` commits.
fn repository(directory: &Path, commits: usize) {
    files::create_dir(directory);
    git(directory, &["init", "--quiet", "--initial-branch=main"]);
    let mut random = Random::new(9);
    for commit in 0..commits {
        for file in 0..6 {
            let text = format!("{}\n", random.number()).repeat(1 + random.below(200));
            files::write(directory.join(format!("file-{file}")), text);
        }
        git(directory, &["add", "--all"]);
        git(directory, &["commit", "--quiet", "--message", &format!("commit {commit}")]);
    }
}

/// `git gc` replaces packs while the other mount clones the repository. The clone must find every
/// object, either in a pack from before `git gc` or in a new pack.
pub(crate) fn clone_succeeds_during_git_gc_on_the_other_mount(places: &Places) {
    let (here, there) = (places.one.join("repository"), places.other.join("repository"));
    repository(&here, 10);
    let head = git(&here, &["rev-parse", "HEAD"]);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !is_done.load(Ordering::Relaxed) || rounds == 0 {
                assert_eq!(git(&there, &["log", "--oneline", "--stat"]).lines().count(), 80);
                let clone = places.local.join(format!("clone-{rounds}"));
                git(&places.local, &["clone", "--quiet", "--no-local", text(&there), text(&clone)]);
                assert_eq!(git(&clone, &["rev-parse", "HEAD"]), head);
                rounds += 1;
            }
        });
        for _ in 0..4 {
            git(&here, &["repack", "-a", "-d", "-f", "--quiet"]);
            git(&here, &["gc", "--quiet", "--prune=now"]);
        }
        is_done.store(true, Ordering::Relaxed);
        reader.join().expect("each clone has all objects");
    });
    // Directory listings on the other mount may be stale for up to a second.
    wait_for("the other mount shows no unpacked object", Duration::from_secs(10), || {
        git(&there, &["count-objects"]).starts_with("0 objects").then_some(())
    });
    git(&there, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&there, &["status", "--porcelain"]), "");
}

/// Two Git processes commit at the same time in two work trees of one repository, each to its own
/// branch. Git creates references and packs by `link` and `rename`, in this test on both mounts.
pub(crate) fn concurrent_git_commits_of_both_mounts_are_kept(places: &Places) {
    let here = places.one.join("repository");
    repository(&here, 2);
    for branch in ["a", "b"] {
        git(&here, &["worktree", "add", "--quiet", "-b", branch, &format!("../{branch}")]);
    }
    std::thread::scope(|scope| {
        for (directory, branch) in [(&places.one, "a"), (&places.other, "b")] {
            scope.spawn(move || {
                let tree = directory.join(branch);
                for number in 0..12 {
                    files::write(tree.join(format!("{branch}-{number}")), branch);
                    git(&tree, &["add", "--all"]);
                    git(&tree, &["commit", "--quiet", "--message", &format!("number {number}")]);
                }
            });
        }
    });
    for directory in [&places.one, &places.other] {
        let repository = directory.join("repository");
        git(&repository, &["fsck", "--full", "--strict"]);
        for branch in ["a", "b"] {
            assert_eq!(git(&repository, &["rev-list", "--count", branch]), "14\n");
        }
    }
    git(&here, &["merge", "--quiet", "--message", "a", "a"]);
    git(&here, &["merge", "--quiet", "--message", "b", "b"]);
    assert_eq!(git(&places.other.join("repository"), &["ls-files"]).lines().count(), 6 + 24);
}

/// Writes a C program of several source files, and one header that all source files include.
fn project(directory: &Path) {
    files::create_dir(directory);
    files::write(directory.join("all.h"), "#define ADDED 1\n");
    let mut program = String::from("#include <stdio.h>\nint main(void) { long sum = 0;\n");
    for part in 0..PARTS {
        let body = format!("#include \"all.h\"\nlong part_{part}(void) {{ return ADDED; }}\n");
        files::write(directory.join(format!("part_{part}.c")), body);
        let line = format!("long part_{part}(void); sum += part_{part}();\n");
        program.push_str(&line);
    }
    program.push_str("printf(\"%ld\\n\", sum); return 0; }\n");
    files::write(directory.join("main.c"), program);
    let makefile = "objects = $(patsubst %.c,%.o,$(wildcard *.c))\n\
         program: $(objects)\n\t@echo link\n\t@gcc -o $@ $^\n\
         part_%.o: part_%.c all.h\n\t@echo compile $<\n\t@gcc -c -o $@ $<\n\
         main.o: main.c\n\t@echo compile $<\n\t@gcc -c -o $@ $<\n";
    files::write(directory.join("Makefile"), makefile);
}

/// Runs `make -j4`. Returns the number of compiled files, and the output of the built program.
fn make(directory: &Path) -> (usize, String) {
    let printed = run_in(directory, "make", ["-j4"]);
    let compiled = printed.lines().filter(|line| line.starts_with("compile")).count();
    (compiled, run_in(directory, "./program", [""; 0]))
}

/// Waits until both mounts show the same modification time for a file. A mount may show outdated
/// cached attributes for up to a second.
fn same_time(places: &Places, name: &str) {
    wait_for("the other mount sees the new time", Duration::from_secs(10), || {
        let times = [&places.one, &places.other].map(|place| {
            let found = files::metadata(place.join(name));
            (found.mtime(), found.mtime_nsec())
        });
        (times[0] == times[1]).then_some(())
    });
}

/// The metadata host sets all times. So if two mounts each create a file, the later file has the
/// newer time, regardless of the clocks of the client hosts. Therefore `make` rebuilds exactly the
/// outdated files.
pub(crate) fn make_rebuilds_exactly_the_files_changed_on_another_mount(places: &Places) {
    project(&places.one.join("project"));
    let (here, there) = (places.one.join("project"), places.other.join("project"));
    assert_eq!(make(&there), (PARTS + 1, "12\n".to_owned()));
    same_time(places, "project/program");
    assert_eq!(make(&here), (0, "12\n".to_owned()));
    files::write(there.join("part_3.c"), "long part_3(void) { return 100; }\n");
    same_time(places, "project/part_3.c");
    assert_eq!(make(&here), (1, "111\n".to_owned()));
    files::write(here.join("all.h"), "#define ADDED 10\n");
    same_time(places, "project/all.h");
    same_time(places, "project/program");
    assert_eq!(make(&there), (PARTS, "210\n".to_owned()));
    same_time(places, "project/program");
    assert_eq!(make(&here), (0, "210\n".to_owned()));
}

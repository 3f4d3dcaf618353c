//! Changes of two metadata groups that are in progress when hosts fail: `mkdir` and `rmdir` of
//! directories on another group than their parent, `link` and `unlink` of a file on another group
//! than the directory. The cluster has feature level 2, so metadata stages these changes
//! (docs/design/0028-staged-transactions.md).
//!
//! Several programs add and remove names, and no program syncs a directory. After the failure, each
//! acknowledged change must have taken effect. A change that was in progress must have taken effect
//! completely or not at all. To check this, the test uses each directory that has a name, compares
//! the link counts with the names, and runs `skep fsck` on the stores.

use super::hosts::{Hosts, METADATA};
use super::{seeds, small};
use skep_testkit::feature_level::STAGING;
use skep_testkit::{EndGuard, PATIENCE, Random, Shape, files, spread, wait_for};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of programs that make changes at the same time.
const PROGRAMS: usize = 3;
/// Number of directories, and of links, that each program adds and removes.
const NAMES: usize = 4;
/// Number of acknowledged changes before a failure.
const BEFORE: u64 = 60;
/// Number of acknowledged changes after a failure that programs do not notice.
const AFTERWARDS: u64 = 30;

/// The kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An empty directory in the root directory, on another group than the root directory.
    Directory,
    /// A link to the file of the program, in a directory on another group than the file.
    Link,
}

/// A name that a program adds and removes in turn.
#[derive(Debug)]
struct Name {
    kind: Kind,
    /// The path, relative to the root directory of the file system.
    path: PathBuf,
    exists: bool,
    /// Whether the last change of the name has failed, so that the name may exist or not.
    is_uncertain: bool,
}

/// A program with its names, which no other program uses.
#[derive(Debug)]
struct Program {
    /// The name of the file to which the program's links refer. The file is in the root directory.
    file: String,
    names: Vec<Name>,
}

impl Program {
    /// Creates the files and directories that all programs need, and makes them durable. No name of
    /// a program exists yet.
    fn all(root: &Path) -> Vec<Self> {
        let mut directories = spread::names_elsewhere(root, "changed", PROGRAMS * NAMES);
        let parents = spread::names_elsewhere(root, "links", PROGRAMS);
        let name = |kind, path| Name { kind, path, exists: false, is_uncertain: false };
        let program = |(number, parent): (usize, &String)| {
            let file = format!("file-{number}");
            files::create_dir(root.join(parent));
            files::write(root.join(&file), &file);
            files::sync_all(&files::open(root.join(&file)));
            let links = (0..NAMES).map(|it| Path::new(parent).join(format!("link-{it}")));
            let mut names: Vec<_> = links.map(|path| name(Kind::Link, path)).collect();
            let own = directories.drain(..NAMES);
            names.extend(own.map(|path| name(Kind::Directory, path.into())));
            Self { file, names }
        };
        let programs = parents.iter().enumerate().map(program).collect();
        files::sync_all(&files::open(root));
        programs
    }

    /// Adds and removes the names in a random order until a call fails or `stop` is set. Returns
    /// the error of the failed call. Counts the acknowledged changes of all programs in `count`.
    fn change(
        &mut self,
        root: &Path,
        seed: u64,
        stop: &AtomicBool,
        count: &AtomicU64,
    ) -> Option<io::Error> {
        let mut random = Random::new(seed);
        while !stop.load(Ordering::Relaxed) {
            let at = random.below(self.names.len());
            let name = &mut self.names[at];
            let path = root.join(&name.path);
            let result = match (name.kind, name.exists) {
                (Kind::Directory, false) => fs::create_dir(path),
                (Kind::Directory, true) => fs::remove_dir(path),
                (Kind::Link, false) => fs::hard_link(root.join(&self.file), path),
                (Kind::Link, true) => fs::remove_file(path),
            };
            if let Err(error) = result {
                println!("    the last change of {} has failed: {error}", name.path.display());
                name.is_uncertain = true;
                return Some(error);
            }
            name.exists = !name.exists;
            count.fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// Checks that each acknowledged change has taken effect, and that each other change has taken
    /// effect completely or not at all. No change may be in progress.
    fn check(&mut self, root: &Path) {
        for name in &mut self.names {
            let path = root.join(&name.path);
            let exists = match fs::symlink_metadata(&path) {
                Ok(found) => {
                    assert_eq!(found.is_dir(), name.kind == Kind::Directory, "{name:?}");
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{name:?}: {error}");
                    false
                }
            };
            let is_right = name.is_uncertain || exists == name.exists;
            assert!(is_right, "an acknowledged change is lost: {name:?}, now {exists}");
            (name.exists, name.is_uncertain) = (exists, false);
            match (name.kind, exists) {
                (Kind::Directory, true) => {
                    assert!(files::read_dir(&path).next().is_none(), "{name:?} is empty");
                    files::write(path.join("file"), "x");
                    files::remove_file(path.join("file"));
                }
                (Kind::Directory, false) => {
                    files::create_dir(&path);
                    files::remove_dir(&path);
                }
                (Kind::Link, _) => {}
            }
        }
        let links = self.names.iter().filter(|it| it.kind == Kind::Link && it.exists);
        let expected = 1 + links.count() as u64;
        let file = root.join(&self.file);
        // The mount may have attributes from before the failure for a second
        // (docs/semantics.md 1.12).
        wait_for("the number of links of the program's file", PATIENCE, || {
            (files::metadata(&file).nlink() == expected).then_some(())
        });
        assert_eq!(files::read_to_string(&file), self.file);
    }
}

/// Returns the number of links of the root directory minus the number of its subdirectories.
fn other_links(root: &Path) -> u64 {
    let entries = files::read_dir(root).map(|it| it.expect("an entry"));
    let directories = entries.filter(|it| it.file_type().expect("a type").is_dir()).count();
    files::metadata(root).nlink().wrapping_sub(directories as u64)
}

/// Lets all programs make changes while `fail` lets services fail. `fail` gets a function that
/// waits for a number of further acknowledged changes. Returns the errors of the programs.
fn under_changes(
    programs: &mut [Program],
    root: &Path,
    seed: u64,
    fail: impl FnOnce(&dyn Fn(u64)),
) -> Vec<io::Error> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, count) = (&stop, &count);
        // The programs must end even if `fail` panics.
        let stops = EndGuard(stop);
        let running = (seed..)
            .zip(programs.iter_mut())
            .map(|(seed, program)| scope.spawn(move || program.change(root, seed, stop, count)));
        let running: Vec<_> = running.collect();
        let go_on = |changes: u64| {
            let goal = count.load(Ordering::Relaxed) + changes;
            wait_for("acknowledged changes of the programs", PATIENCE, || {
                (count.load(Ordering::Relaxed) >= goal).then_some(())
            });
        };
        go_on(BEFORE);
        fail(&go_on);
        drop(stops);
        running.into_iter().filter_map(|it| it.join().expect("no panic")).collect()
    })
}

/// Checks the names of all programs, and the number of links of the root directory.
fn check_all(programs: &mut [Program], root: &Path, root_links: u64) {
    for program in programs {
        program.check(root);
    }
    // As for files, the mount may have attributes from before the failure for a second.
    wait_for("the number of links of the root directory", PATIENCE, || {
        (other_links(root) == root_links).then_some(())
    });
}

fn staged(arguments: &[&str]) -> Shape {
    Shape { metadata_targets: 2, feature_level: STAGING, ..small(arguments) }
}

/// docs/semantics.md 3.2. First one of two metadata hosts loses its power. Later, all metadata
/// hosts and all clients lose their power. This second power loss may revert changes of one group,
/// because no program syncs these changes. The second power loss must revert no change of two
/// groups.
#[test]
fn changes_of_two_groups_survive_each_power_loss() {
    let mut hosts = Hosts::start(staged(&[]), &METADATA);
    let root = hosts.mount().to_owned();
    let mut programs = Program::all(&root);
    let root_links = other_links(&root);
    for (round, seed) in (0_usize..).zip(seeds()) {
        let lost = METADATA[round % 2];
        println!("    seed {seed}: {lost} loses its power, and then all hosts do");
        let errors = under_changes(&mut programs, &root, seed, |go_on| {
            hosts.lose_power(&[lost]);
            go_on(AFTERWARDS);
        });
        assert!(errors.is_empty(), "seed {seed}, power loss of {lost}: {errors:?}");
        check_all(&mut programs, &root, root_links);

        let errors = under_changes(&mut programs, &root, seed, |_| {
            assert!(hosts.cluster.staged_changes() > 0, "metadata stages the changes");
            hosts.lose_all_power();
        });
        assert_eq!(errors.len(), programs.len(), "each program has noticed the loss: {errors:?}");
        check_all(&mut programs, &root, root_links);
    }
    hosts.end();
}

/// docs/semantics.md 3.2, 4.1 and 4.3. Each of the two metadata groups has two members. The killed
/// service has the primary of one group and the other member of the other group.
#[test]
fn changes_of_two_mirrored_groups_survive_failures_of_members() {
    let mut hosts = Hosts::start(staged(&["--metadata-copies", "2"]), &METADATA);
    let root = hosts.mount().to_owned();
    let mut programs = Program::all(&root);
    let root_links = other_links(&root);
    for (round, seed) in (0_usize..).zip(seeds()) {
        hosts.wait_for_serving_members();
        let lost = METADATA[round % 2];
        println!("    seed {seed}: {lost} fails");
        let errors = under_changes(&mut programs, &root, seed, |go_on| {
            match round % 2 {
                0 => hosts.kill_and_wait_for_take_over(lost),
                _ => hosts.lose_power(&[lost]),
            }
            go_on(AFTERWARDS);
            assert!(hosts.cluster.staged_changes() > 0, "metadata stages the changes");
        });
        assert!(errors.is_empty(), "seed {seed}, failure of {lost}: {errors:?}");
        check_all(&mut programs, &root, root_links);
    }
    hosts.end_with_equal_members();
}

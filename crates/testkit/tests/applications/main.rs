//! Applications that use two mounts of one cluster at the same time. The mounts have different
//! transports. The applications are databases, source trees and builds, archives, and verified
//! writes. The tests check the results on the other mount, or compare the results with the local
//! file system.
//!
//! Longer tests of applications are in `external`.

mod archives;
mod bytes;
mod databases;
mod sources;

use skep_testkit::files;
use skep_testkit::suite::{Case, Suite};
use skep_testkit::{Cluster, Scratch, Shape, Transport};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The directories of a test: an empty directory of the cluster, with its paths on two mounts, and
/// a directory of the local file system.
struct Places {
    one: PathBuf,
    other: PathBuf,
    local: PathBuf,
}

const CASES: &[Case<Places>] = &[
    Case {
        name: "databases::sqlite_writers",
        body: databases::sqlite_writers_on_both_mounts_lose_no_transfer,
    },
    Case {
        name: "databases::sqlite_killed",
        body: databases::sqlite_rolls_back_the_journal_of_a_killed_writer,
    },
    Case {
        name: "databases::sqlite_wal",
        body: databases::sqlite_wal_of_one_mount_is_complete_on_the_other_mount,
    },
    Case { name: "sources::git", body: sources::clone_succeeds_during_git_gc_on_the_other_mount },
    Case {
        name: "sources::git_writers",
        body: sources::concurrent_git_commits_of_both_mounts_are_kept,
    },
    Case {
        name: "sources::make",
        body: sources::make_rebuilds_exactly_the_files_changed_on_another_mount,
    },
    Case {
        name: "archives::rsync",
        body: archives::rsync_copies_all_kinds_of_entries_to_a_mount_and_back,
    },
    Case {
        name: "archives::tar",
        body: archives::tar_copies_all_kinds_of_entries_to_a_mount_and_back,
    },
    Case { name: "bytes::fio", body: bytes::fio_verifies_on_one_mount_the_writes_of_the_other },
];

fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have ASCII names")
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    let place = "uring-and-device";
    if suite.starts(place, &[CASES]) {
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(Transport::Device);
        for case in CASES {
            let scratch = Scratch::new();
            let name = case.name.replace("::", "-");
            let places = Places {
                one: cluster.path().join(&name),
                other: second.path().join(&name),
                local: scratch.directory(&name),
            };
            suite.check("a directory for each test", || {
                files::create_dir(&places.one);
            });
            suite.run(place, &[&[Case { name: case.name, body: case.body }]], &places);
        }
        suite.check("the second mount ends", || second.unmount());
        suite.check("the cluster stops", || cluster.stop_checked(&[]));
    }
    suite.end()
}

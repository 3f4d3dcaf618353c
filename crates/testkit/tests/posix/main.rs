//! Every POSIX operation that Skep supports. Each operation has its own file of tests. The tests
//! use only calls of the standard library and of `rustix`.
//!
//! Each test runs four times, each time in a new directory:
//! - on the local file system, which shows that the test itself is correct
//! - on a mount over each of the two transports
//! - on a mount of a cluster that stores all bytes of files on storage (by default, metadata stores
//!   the first bytes)
//!
//! The tests of names run a fifth time, on a cluster with feature level 2. On this cluster,
//! metadata stages changes of two groups (docs/design/0028-staged-transactions.md).

mod acls;
mod allocation;
mod attributes;
mod bounds;
mod create;
mod direct;
mod fsync;
mod link;
mod mkdir;
mod mmap;
mod open;
mod permissions;
mod read_write;
mod readdir;
mod rename;
mod rmdir;
mod special;
mod statfs;
mod symlink;
mod truncate;
mod unlink;
mod unnamed;
mod xattrs;

use skep_testkit::feature_level::STAGING;
use skep_testkit::files;
use skep_testkit::suite::{Case, Suite};
use skep_testkit::{Cluster, Scratch, Shape, Transport};
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// A test, whose argument is an empty directory.
pub(crate) type Test = Case<Path>;

const TABLES: &[&[Test]] = &[
    acls::CASES,
    attributes::CASES,
    bounds::CASES,
    create::CASES,
    direct::CASES,
    fsync::CASES,
    link::CASES,
    mkdir::CASES,
    mmap::CASES,
    open::CASES,
    permissions::CASES,
    read_write::CASES,
    readdir::CASES,
    rename::CASES,
    rmdir::CASES,
    allocation::CASES,
    special::CASES,
    statfs::CASES,
    symlink::CASES,
    truncate::CASES,
    unnamed::CASES,
    unlink::CASES,
    xattrs::CASES,
];

/// The tests of operations that change names.
const NAMES: &[&[Test]] = &[
    link::CASES,
    mkdir::CASES,
    readdir::CASES,
    rename::CASES,
    rmdir::CASES,
    unlink::CASES,
    unnamed::CASES,
];

/// Returns the value of a result. If the call has failed, panics with the error.
#[track_caller]
pub(crate) fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// Checks that a call has failed with the error number `expected`.
#[track_caller]
pub(crate) fn refused<T, E: Into<io::Error>>(result: Result<T, E>, expected: rustix::io::Errno) {
    match result {
        Ok(_) => panic!("should have been refused with {expected}"),
        Err(error) => {
            let error: io::Error = error.into();
            assert_eq!(error.raw_os_error(), Some(expected.raw_os_error()), "{error}");
        }
    }
}

/// Returns the names in a directory in ascending order.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = files::read_dir(directory);
    let name = |entry: io::Result<fs::DirEntry>| ok(entry).file_name().into_string();
    let mut names: Vec<_> = entries.map(|it| name(it).expect("names of tests are UTF-8")).collect();
    names.sort();
    names
}

fn run_all(suite: &mut Suite, place: &str, tables: &[&[Test]], root: &Path) {
    for table in tables {
        for case in *table {
            let directory = root.join(case.name.replace("::", "-"));
            let one = [Case { name: case.name, body: case.body }];
            if suite.starts(place, &[&one]) {
                suite.check("a directory for each test", || files::create_dir(&directory));
                suite.run(place, &[&one], directory.as_path());
            }
        }
    }
}

fn main() -> ExitCode {
    let mut suite = Suite::from_arguments();
    if suite.starts("local", TABLES) {
        let scratch = Scratch::new();
        run_all(&mut suite, "local", TABLES, scratch.path());
    }
    for transport in Transport::ALL {
        if suite.starts(transport.name(), TABLES) {
            let cluster = Cluster::start(Shape { transport, ..Shape::default() });
            run_all(&mut suite, transport.name(), TABLES, cluster.path());
            suite.check("the cluster stops", || cluster.stop_checked(&[]));
        }
    }
    // Start a cluster whose files have no inline bytes. With inline bytes, most files of these
    // tests would have no byte on storage.
    if suite.starts("stored", TABLES) {
        let cluster = Cluster::start(Shape::default());
        cluster.hand_down(cluster.path(), "count=1/from=4MiB,count=all");
        run_all(&mut suite, "stored", TABLES, cluster.path());
        suite.check("the cluster stops", || cluster.stop_checked(&[]));
    }
    if suite.starts("staged", NAMES) {
        let cluster = Cluster::start(Shape { feature_level: STAGING, ..Shape::default() });
        run_all(&mut suite, "staged", NAMES, cluster.path());
        suite.check("the cluster stops", || cluster.stop_checked(&[]));
    }
    suite.end()
}

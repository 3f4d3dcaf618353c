//! Files whose bytes are all in metadata. The reply to an open contains these bytes, but a read
//! must return the newest bytes of the file.

use crate::Mounts;
use rustix::fs::OFlags;
use skep_testkit::program::finish;
use skep_testkit::suite::Case;
use skep_testkit::{PATIENCE, cluster, files};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![small_files:
    read_returns_a_write_of_another_mount_after_the_open,
    read_returns_an_own_write_after_the_open,
    read_ends_at_an_own_truncation_after_the_open,
    file_is_readable_after_its_removal_by_another_mount,
    truncation_is_visible_immediately_without_caching,
];

const LEN: usize = 3901;

/// Number of files of each test. Each test opens a file only once on a mount, because further opens
/// of a file that the kernel has cached do not request the file's bytes.
const ROUNDS: usize = 40;

fn keep_files_in_metadata(directory: &Path) {
    let words = ["entry", "set", "--pattern", "inline/from=4KiB"];
    finish(Command::new(cluster::program()).args(words).arg(directory), PATIENCE).expect_success();
}

/// Returns all bytes of an open file. Does not call `stat`, because a `stat` would make the client
/// request the attributes of the file.
fn all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xff; 2 * LEN];
    let count = files::read_at(file, &mut bytes, 0);
    bytes.truncate(count);
    bytes
}

fn for_writing(path: &Path) -> File {
    files::open_with(OpenOptions::new().write(true), path)
}

/// Truncates a file by `truncate(2)`, without opening the file.
fn truncate(path: &Path, len: usize) {
    let mut command = Command::new("python3");
    let program = "import os, sys; os.truncate(sys.argv[1], int(sys.argv[2]))";
    command.args(["-c", program]).arg(path).arg(len.to_string());
    finish(&mut command, PATIENCE).expect_success();
}

/// docs/semantics.md 2.3.
fn read_returns_a_write_of_another_mount_after_the_open(mounts: &Mounts) {
    keep_files_in_metadata(&mounts.one);
    for round in 0..ROUNDS {
        let name = format!("file-{round}");
        let (here, there) = match round % 2 {
            0 => (mounts.one.join(&name), mounts.other.join(&name)),
            _ => (mounts.other.join(&name), mounts.one.join(&name)),
        };
        files::write(&here, [1; LEN]);
        let reader = files::open(&there);
        let writer = for_writing(&here);
        files::write_all_at(&writer, &[2; LEN], 0);
        // In every second pair of rounds, the writing mount closes the file before the read.
        let is_open = round % 4 < 2;
        let writer = Some(writer).filter(|_| is_open);
        assert!(all(&reader) == [2; LEN], "round {round}");
        drop(writer);
    }
}

/// docs/semantics.md 2.1.
fn read_returns_an_own_write_after_the_open(mounts: &Mounts) {
    keep_files_in_metadata(&mounts.one);
    for round in 0..ROUNDS {
        let name = format!("file-{round}");
        files::write(mounts.one.join(&name), [1; LEN]);
        let path = mounts.other.join(&name);
        let (reader, writer) = (files::open(&path), for_writing(&path));
        files::write_all_at(&writer, &[2; 100], 50);
        let mut expected = [1; LEN];
        expected[50..150].fill(2);
        assert!(all(&reader) == expected, "round {round}");
    }
}

/// docs/semantics.md 2.1 and 2.6.
fn read_ends_at_an_own_truncation_after_the_open(mounts: &Mounts) {
    keep_files_in_metadata(&mounts.one);
    for round in 0..ROUNDS {
        let name = format!("file-{round}");
        files::write(mounts.one.join(&name), [1; LEN]);
        let path = mounts.other.join(&name);
        let reader = files::open(&path);
        let writer = for_writing(&path);
        files::set_len(&writer, 100);
        files::set_len(&writer, 200);
        let found = all(&reader);
        assert_eq!(found.len(), 200, "round {round}");
        assert!(found[..100] == [1; 100] && found[100..] == [0; 100], "round {round}");
    }
}

/// docs/semantics.md 4.9.
fn file_is_readable_after_its_removal_by_another_mount(mounts: &Mounts) {
    keep_files_in_metadata(&mounts.one);
    for round in 0..ROUNDS {
        let name = format!("file-{round}");
        files::write(mounts.one.join(&name), [1; LEN]);
        let reader = files::open(mounts.other.join(&name));
        files::remove_file(mounts.one.join(&name));
        assert!(all(&reader) == [1; LEN], "round {round}");
    }
}

/// docs/semantics.md 1.2, with `attribute_timeout=0`. For a file that is open with `O_DIRECT`, the
/// kernel does not request the attributes before a read.
fn truncation_is_visible_immediately_without_caching(mounts: &Mounts) {
    keep_files_in_metadata(&mounts.one);
    let direct = OFlags::DIRECT.bits().cast_signed();
    for round in 0..10 {
        let name = format!("file-{round}");
        let (here, there) = (mounts.one.join(&name), mounts.at_once.join(&name));
        files::write(&here, [1; LEN]);
        let reader = files::open_with(OpenOptions::new().read(true).custom_flags(direct), &there);
        truncate(&here, 100);
        let mut found = [0xff; LEN];
        let count = files::read_at(&reader, &mut found, 0);
        assert_eq!(count, 100, "round {round}");
        assert!(found[..100] == [1; 100], "round {round}");
    }
}

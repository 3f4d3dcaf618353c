//! Opening files, with each flag.

use crate::{Test, ok, refused};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use skep_testkit::files;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

pub(crate) const CASES: &[Test] = skep_testkit::cases![open:
    open_with_flags_for_another_file_type_is_refused,
    access_mode_of_a_handle_is_enforced,
    file_can_be_open_500_times,
    nonblocking_handles_read_and_write,
    open_reads_the_bytes_written_before_the_last_close,
    program_that_runs_cannot_be_opened_for_writing,
];

fn with(path: &Path, flags: OFlags) -> rustix::io::Result<rustix::fd::OwnedFd> {
    rustix::fs::open(path, flags, Mode::empty())
}

fn open_with_flags_for_another_file_type_is_refused(root: &Path) {
    files::write(root.join("file"), "x");
    files::create_dir(root.join("directory"));
    files::symlink("file", root.join("link"));
    refused(with(&root.join("file"), OFlags::DIRECTORY), Errno::NOTDIR);
    refused(with(&root.join("directory"), OFlags::WRONLY), Errno::ISDIR);
    refused(with(&root.join("link"), OFlags::NOFOLLOW), Errno::LOOP);
    refused(with(&root.join("missing"), OFlags::RDONLY), Errno::NOENT);
    refused(with(&root.join("file/x"), OFlags::RDONLY), Errno::NOTDIR);
    drop(ok(with(&root.join("directory"), OFlags::DIRECTORY)));
    drop(ok(with(&root.join("link"), OFlags::PATH | OFlags::NOFOLLOW)));
}

fn access_mode_of_a_handle_is_enforced(root: &Path) {
    let path = root.join("file");
    files::write(&path, "abc");
    let mut reader = files::open(&path);
    refused(reader.write_all(b"x"), Errno::BADF);
    let mut writer = files::open_with(OpenOptions::new().write(true), &path);
    refused(writer.read(&mut [0]), Errno::BADF);
    let mut text = String::new();
    ok(reader.read_to_string(&mut text));
    assert_eq!(text, "abc");
}

fn file_can_be_open_500_times(root: &Path) {
    let path = root.join("file");
    files::write(&path, "abc");
    let open: Vec<_> = (0..500).map(|_| files::open(&path)).collect();
    for mut file in open {
        let mut text = String::new();
        ok(file.read_to_string(&mut text));
        assert_eq!(text, "abc");
    }
}

fn nonblocking_handles_read_and_write(root: &Path) {
    let path = root.join("file");
    files::write(&path, "abc");
    let open = ok(with(&path, OFlags::RDWR | OFlags::NONBLOCK | OFlags::SYNC));
    let file = fs::File::from(open);
    files::write_all(&file, b"xyz");
    assert_eq!(files::read(&path), b"xyz");
}

/// After another program has written and closed a file, the next open reads the new length and
/// bytes.
fn open_reads_the_bytes_written_before_the_last_close(root: &Path) {
    let path = root.join("file");
    for round in 0..100_usize {
        let bytes = vec![round as u8; 1 + round * 97];
        let file =
            files::open_with(OpenOptions::new().write(true).create(true).truncate(true), &path);
        files::write_all(&file, &bytes);
        drop(file);
        assert_eq!(files::metadata(&path).len(), bytes.len() as u64);
        assert!(files::read(&path) == bytes);
    }
}

/// docs/semantics.md 5.10.
fn program_that_runs_cannot_be_opened_for_writing(root: &Path) {
    let program = root.join("program");
    ok(fs::copy("/bin/sleep", &program));
    let len = files::metadata(&program).len();
    let mut running = ok(Command::new(&program).arg("60").spawn());
    let writing = [OFlags::WRONLY, OFlags::RDWR, OFlags::WRONLY | OFlags::TRUNC];
    let results = writing.map(|flags| with(&program, flags).err());
    ok(running.kill());
    ok(running.wait());
    assert_eq!(results, [Some(Errno::TXTBSY); 3]);
    assert_eq!(files::metadata(&program).len(), len);
    drop(ok(with(&program, OFlags::RDWR)));
}

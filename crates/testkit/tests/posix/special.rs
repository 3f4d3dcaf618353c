//! Pipes, sockets and devices. Skep stores only their names and attributes. The kernel implements
//! all other operations on these files.

use crate::{Test, ok};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use skep_testkit::files::{self, OrFail};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![special:
    named_pipe_transfers_bytes,
    unix_socket_in_the_mount_accepts_connections,
    device_files_keep_their_device_numbers,
];

fn named_pipe_transfers_bytes(root: &Path) {
    let path = root.join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).or_fail("mknodat", &path);
    assert!(files::metadata(&path).file_type().is_fifo());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            files::write_all(&files::open_with(OpenOptions::new().write(true), &path), b"through")
        });
        let mut text = String::new();
        ok(files::open(&path).read_to_string(&mut text));
        assert_eq!(text, "through");
    });
}

fn unix_socket_in_the_mount_accepts_connections(root: &Path) {
    // Use a relative path, because the path of a socket has at most 107 bytes.
    let path = root.join("s");
    let here = std::env::current_dir().expect("a directory");
    std::env::set_current_dir(root).expect("the directory of the test exists");
    let listener = UnixListener::bind("s");
    let connected = UnixStream::connect("s");
    std::env::set_current_dir(here).expect("the former directory exists");
    drop((ok(listener), ok(connected)));
    assert!(files::metadata(path).file_type().is_socket());
}

fn device_files_keep_their_device_numbers(root: &Path) {
    let path = root.join("device");
    let device = makedev(1, 3);
    mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, device).or_fail("mknodat", &path);
    let found = files::metadata(&path);
    assert!(found.file_type().is_char_device());
    assert_eq!(found.rdev(), device);
}

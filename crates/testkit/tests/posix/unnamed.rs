//! Files without a name (`O_TMPFILE`), and giving them one.

use crate::{Test, names, ok, refused};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![unnamed:
    are_nowhere, are_given_a_name, are_named_once_only, exclusive_ones_stay_unnamed,
    are_for_writing, inherit_like_others, of_many_directories,
];

fn unnamed(directory: &Path, more: OFlags) -> rustix::io::Result<File> {
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | more, mode).map(File::from)
}

fn give_name(file: &File, path: &Path) -> rustix::io::Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Semantics 1.18.
fn are_nowhere(root: &Path) {
    let mut file = ok(unnamed(root, OFlags::empty()));
    assert_eq!(names(root), Vec::<String>::new());
    let found = ok(file.metadata());
    assert_eq!((found.nlink(), found.mode() & 0o777), (0, 0o640 & !umask()));
    let bytes = skep_testkit::Random::new(4).bytes(1_500_000);
    ok(file.write_all(&bytes));
    ok(file.sync_all());
    ok(file.rewind());
    let mut back = Vec::new();
    ok(file.read_to_end(&mut back));
    assert!(back == bytes);
    ok(fs::write(root.join("file"), "x"));
    drop(file);
    assert_eq!(names(root), ["file"]);
    ok(fs::remove_file(root.join("file")));
}

fn umask() -> u32 {
    let status = ok(fs::read_to_string("/proc/self/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).expect("the umask");
    u32::from_str_radix(line.trim(), 8).expect("octal digits")
}

/// Semantics 1.18.
fn are_given_a_name(root: &Path) {
    let mut file = ok(unnamed(root, OFlags::empty()));
    ok(file.write_all(b"before"));
    ok(give_name(&file, &root.join("name")));
    assert_eq!(ok(file.metadata()).nlink(), 1);
    assert_eq!(ok(fs::metadata(root.join("name"))).ino(), ok(file.metadata()).ino());
    ok(file.write_all(b" and after"));
    drop(file);
    assert_eq!(ok(fs::read_to_string(root.join("name"))), "before and after");
    ok(fs::hard_link(root.join("name"), root.join("second")));
    assert_eq!(ok(fs::metadata(root.join("name"))).nlink(), 2);
    // As root also by the descriptor alone.
    let file = ok(unnamed(root, OFlags::empty()));
    ok(linkat(&file, "", CWD, root.join("third"), AtFlags::EMPTY_PATH));
    refused(give_name(&file, &root.join("third")), Errno::EXIST);
    assert_eq!(names(root), ["name", "second", "third"]);
}

/// What had a name and lost it gets none again.
fn are_named_once_only(root: &Path) {
    let file = ok(unnamed(root, OFlags::empty()));
    ok(give_name(&file, &root.join("name")));
    ok(fs::remove_file(root.join("name")));
    assert_eq!(ok(file.metadata()).nlink(), 0);
    refused(give_name(&file, &root.join("again")), Errno::NOENT);
    let file = ok(fs::File::create(root.join("ordinary")));
    ok(fs::remove_file(root.join("ordinary")));
    refused(give_name(&file, &root.join("again")), Errno::NOENT);
}

fn exclusive_ones_stay_unnamed(root: &Path) {
    let mut file = ok(unnamed(root, OFlags::EXCL));
    ok(file.write_all(b"x"));
    refused(give_name(&file, &root.join("name")), Errno::NOENT);
    assert_eq!(names(root), Vec::<String>::new());
}

fn are_for_writing(root: &Path) {
    let reading = rustix::fs::open(root, OFlags::TMPFILE | OFlags::RDONLY, Mode::RUSR);
    refused(reading, Errno::INVAL);
    ok(fs::write(root.join("file"), "x"));
    refused(unnamed(&root.join("file"), OFlags::empty()), Errno::NOTDIR);
    refused(unnamed(&root.join("missing"), OFlags::empty()), Errno::NOENT);
}

fn inherit_like_others(root: &Path) {
    ok(std::os::unix::fs::chown(root, None, Some(77)));
    ok(fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o2777)));
    skep_testkit::program::run_in(root, "setfacl", ["-d", "-m", "u:5:rwx", "."]);
    let file = ok(unnamed(root, OFlags::empty()));
    assert_eq!(ok(file.metadata()).gid(), 77);
    ok(give_name(&file, &root.join("name")));
    let text = skep_testkit::program::run_in(root, "getfacl", ["--numeric", "name"]);
    assert!(text.contains("user:5:rwx"), "{text}");
}

/// Some names lie on the other metadata target than the file.
fn of_many_directories(root: &Path) {
    for index in 0..16 {
        let directory = root.join(format!("directory-{index}"));
        ok(fs::create_dir(&directory));
        let mut file = ok(unnamed(root, OFlags::empty()));
        ok(write!(file, "{index}"));
        ok(give_name(&file, &directory.join("name")));
        drop(file);
        assert_eq!(ok(fs::read_to_string(directory.join("name"))), format!("{index}"));
    }
}

//! Files without a name (`O_TMPFILE`), and hard links that give such a file a name.

use crate::{Test, names, ok, refused};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;
use skep_testkit::{files, spread};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![unnamed:
    o_tmpfile_makes_a_file_without_a_name,
    unnamed_file_can_be_linked,
    file_without_names_cannot_be_linked_again,
    exclusive_unnamed_file_cannot_be_linked,
    unnamed_file_must_be_opened_for_writing,
    unnamed_file_inherits_the_group_and_acl,
    unnamed_files_can_be_linked_from_any_directory,
];

fn unnamed(directory: &Path, more: OFlags) -> rustix::io::Result<File> {
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR | more, mode).map(File::from)
}

fn give_name(file: &File, path: &Path) -> rustix::io::Result<()> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// docs/semantics.md 1.18.
fn o_tmpfile_makes_a_file_without_a_name(root: &Path) {
    let mut file = ok(unnamed(root, OFlags::empty()));
    assert_eq!(names(root), Vec::<String>::new());
    let found = files::metadata_of(&file);
    assert_eq!((found.nlink(), found.mode() & 0o777), (0, 0o640 & !umask()));
    let bytes = skep_testkit::Random::new(4).bytes(1_500_000);
    files::write_all(&file, &bytes);
    files::sync_all(&file);
    ok(file.rewind());
    let mut back = Vec::new();
    ok(file.read_to_end(&mut back));
    assert!(back == bytes);
    files::write(root.join("file"), "x");
    drop(file);
    assert_eq!(names(root), ["file"]);
    files::remove_file(root.join("file"));
}

fn umask() -> u32 {
    let status = files::read_to_string("/proc/self/status");
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).expect("the umask");
    u32::from_str_radix(line.trim(), 8).expect("octal digits")
}

/// docs/semantics.md 1.18.
fn unnamed_file_can_be_linked(root: &Path) {
    let file = ok(unnamed(root, OFlags::empty()));
    files::write_all(&file, b"before");
    ok(give_name(&file, &root.join("name")));
    assert_eq!(files::metadata_of(&file).nlink(), 1);
    assert_eq!(files::metadata(root.join("name")).ino(), files::metadata_of(&file).ino());
    files::write_all(&file, b" and after");
    drop(file);
    assert_eq!(files::read_to_string(root.join("name")), "before and after");
    files::hard_link(root.join("name"), root.join("second"));
    assert_eq!(files::metadata(root.join("name")).nlink(), 2);
    // Root can also create a link to a file with only the descriptor of the file.
    let file = ok(unnamed(root, OFlags::empty()));
    ok(linkat(&file, "", CWD, root.join("third"), AtFlags::EMPTY_PATH));
    refused(give_name(&file, &root.join("third")), Errno::EXIST);
    assert_eq!(names(root), ["name", "second", "third"]);
}

/// A file that has lost its last name cannot get a new name. docs/semantics.md 1.18.
fn file_without_names_cannot_be_linked_again(root: &Path) {
    let file = ok(unnamed(root, OFlags::empty()));
    ok(give_name(&file, &root.join("name")));
    files::remove_file(root.join("name"));
    assert_eq!(files::metadata_of(&file).nlink(), 0);
    refused(give_name(&file, &root.join("again")), Errno::NOENT);
    let file = files::create(root.join("ordinary"));
    files::remove_file(root.join("ordinary"));
    refused(give_name(&file, &root.join("again")), Errno::NOENT);
}

/// docs/semantics.md 1.18.
fn exclusive_unnamed_file_cannot_be_linked(root: &Path) {
    let file = ok(unnamed(root, OFlags::EXCL));
    files::write_all(&file, b"x");
    refused(give_name(&file, &root.join("name")), Errno::NOENT);
    assert_eq!(names(root), Vec::<String>::new());
}

fn unnamed_file_must_be_opened_for_writing(root: &Path) {
    let reading = rustix::fs::open(root, OFlags::TMPFILE | OFlags::RDONLY, Mode::RUSR);
    refused(reading, Errno::INVAL);
    files::write(root.join("file"), "x");
    refused(unnamed(&root.join("file"), OFlags::empty()), Errno::NOTDIR);
    refused(unnamed(&root.join("missing"), OFlags::empty()), Errno::NOENT);
}

fn unnamed_file_inherits_the_group_and_acl(root: &Path) {
    files::chown(root, None, Some(77));
    files::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o2777));
    skep_testkit::program::run_in(root, "setfacl", ["-d", "-m", "u:5:rwx", "."]);
    let file = ok(unnamed(root, OFlags::empty()));
    assert_eq!(files::metadata_of(&file).gid(), 77);
    ok(give_name(&file, &root.join("name")));
    let text = skep_testkit::program::run_in(root, "getfacl", ["--numeric", "name"]);
    assert!(text.contains("user:5:rwx"), "{text}");
}

/// Every second new name is on another metadata group than the file.
fn unnamed_files_can_be_linked_from_any_directory(root: &Path) {
    let names = (0..8).map(|index| format!("directory-{index}"));
    for (index, directory) in spread::create_dirs(root, names).into_iter().enumerate() {
        let mut file = ok(unnamed(root, OFlags::empty()));
        ok(write!(file, "{index}"));
        ok(give_name(&file, &directory.join("name")));
        drop(file);
        assert_eq!(files::read_to_string(directory.join("name")), format!("{index}"));
    }
}

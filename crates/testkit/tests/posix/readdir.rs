//! Listing directories, also while the test adds and removes entries.

use crate::{Test, names, ok, refused};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use skep_testkit::files;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![readdir:
    listing_has_dot_and_dot_dot,
    listing_has_types_and_inode_numbers,
    listing_has_unchanged_entries_once_during_other_changes,
    entries_can_be_removed_during_a_listing,
    rewind_restarts_the_listing,
    listing_of_a_file_is_refused,
    listing_has_all_400_names_of_255_bytes,
];

fn fill(root: &Path, count: usize) {
    for index in 0..count {
        files::write(root.join(format!("file-{index:05}")), "x");
    }
}

fn listing_has_dot_and_dot_dot(root: &Path) {
    files::create_dir(root.join("directory"));
    let open = ok(rustix::fs::open(root.join("directory"), OFlags::RDONLY, Mode::empty()));
    let entries: BTreeMap<_, _> = ok(Dir::read_from(&open))
        .map(|entry| ok(entry))
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.ino()))
        .collect();
    assert_eq!(entries.keys().collect::<Vec<_>>(), [".", ".."]);
    assert_eq!(entries["."], files::metadata(root.join("directory")).ino());
    assert_eq!(entries[".."], files::metadata(root).ino());
}

fn listing_has_types_and_inode_numbers(root: &Path) {
    files::write(root.join("file"), "x");
    files::create_dir(root.join("directory"));
    files::symlink("x", root.join("link"));
    for entry in files::read_dir(root) {
        let entry = ok(entry);
        let found = files::symlink_metadata(entry.path());
        assert_eq!(ok(entry.file_type()), found.file_type());
        assert_eq!(entry.ino(), found.ino());
    }
}

/// A listing contains each name that exists during the whole listing exactly once, regardless of
/// other changes. docs/semantics.md 1.6.
fn listing_has_unchanged_entries_once_during_other_changes(root: &Path) {
    const COUNT: usize = 3000;
    fill(root, COUNT);
    for round in 0..3 {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for (number, entry) in files::read_dir(root).enumerate() {
            let name = ok(entry).file_name().to_string_lossy().into_owned();
            *seen.entry(name).or_default() += 1;
            // Create and remove temporary files that are before and behind the position of the
            // listing.
            let passing = root.join(format!("passing-{}", number % 7));
            match number % 3 {
                0 => files::write(&passing, "x"),
                1 => drop(fs::remove_file(&passing)),
                _ => drop(fs::rename(&passing, root.join("passing-renamed"))),
            }
        }
        let stable: Vec<_> = seen.iter().filter(|(name, _)| name.starts_with("file-")).collect();
        assert_eq!(stable.len(), COUNT, "round {round}");
        let twice: Vec<_> = stable.iter().filter(|(_, count)| **count != 1).collect();
        assert!(twice.is_empty(), "round {round}: {twice:?}");
    }
}

/// Removes entries during a listing, as `rm -r` does.
fn entries_can_be_removed_during_a_listing(root: &Path) {
    fill(root, 2500);
    for entry in files::read_dir(root) {
        files::remove_file(ok(entry).path());
    }
    assert_eq!(names(root), Vec::<String>::new());
}

fn rewind_restarts_the_listing(root: &Path) {
    fill(root, 500);
    let open = ok(rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()));
    let mut directory = ok(Dir::read_from(&open));
    let count = |directory: &mut Dir| {
        let files = directory.map(|entry| ok(entry)).filter(|entry| {
            [FileType::RegularFile, FileType::Unknown].contains(&entry.file_type())
        });
        files.count()
    };
    assert_eq!(count(&mut directory), 500);
    files::write(root.join("one-more"), "x");
    directory.rewind();
    assert_eq!(count(&mut directory), 501);
}

fn listing_of_a_file_is_refused(root: &Path) {
    files::write(root.join("file"), "x");
    refused(fs::read_dir(root.join("file")), Errno::NOTDIR);
    refused(fs::read_dir(root.join("missing")), Errno::NOENT);
}

fn listing_has_all_400_names_of_255_bytes(root: &Path) {
    let expected: Vec<_> = (0..400).map(|index| format!("{index:03}{}", "n".repeat(252))).collect();
    for name in &expected {
        files::write(root.join(name), "");
    }
    assert_eq!(names(root), expected);
}

//! Renames. Most tests use directories on different metadata groups ([`spread`]), so that the
//! renames are transactions of several groups.

use crate::{Test, names, ok, refused};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::run;
use skep_testkit::{Scratch, spread};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(crate) const CASES: &[Test] = skep_testkit::cases![rename:
    rename_moves_a_file_within_a_directory,
    rename_moves_a_file_to_another_directory,
    rename_replaces_an_existing_file,
    replaced_open_file_stays_readable,
    rename_replaces_only_an_empty_directory,
    rename_of_a_missing_name_is_refused,
    file_and_directory_do_not_replace_each_other,
    rename_of_a_directory_into_its_subtree_is_refused,
    rename_between_hard_links_of_a_file_keeps_both_names,
    rename_noreplace_refuses_an_existing_name,
    rename_of_a_directory_moves_its_contents,
    rename_of_a_directory_updates_link_counts,
    repeated_moves_between_two_directories_keep_one_name,
    concurrent_renames_lose_no_file,
    rename_moves_a_symbolic_link_and_not_its_target,
    concurrent_moves_never_create_a_loop,
    exchange_swaps_two_files,
    exchange_swaps_two_directories,
    exchange_swaps_a_file_and_a_directory,
    exchange_with_a_missing_name_is_refused,
    exchange_with_an_ancestor_is_refused,
    exchange_of_hard_links_of_one_file_succeeds,
    concurrent_exchanges_lose_no_entry,
    concurrent_exchanges_never_create_a_loop,
    rename_with_whiteout_leaves_a_whiteout,
    rename_flags_whiteout_and_exchange_exclude_each_other,
    tree_can_be_the_upper_directory_of_overlayfs,
];

fn exchange(from: &Path, to: &Path) -> rustix::io::Result<()> {
    renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE)
}

/// Creates two directories on different metadata groups.
fn two_directories(root: &Path, names: [&str; 2]) -> [PathBuf; 2] {
    spread::create_dirs(root, names).try_into().expect("two names")
}

/// Creates the directories `a0`, `b0`, `a1`, `b1`, ... The two directories with the same number are
/// on different metadata groups.
fn pairs_of_directories(root: &Path, count: usize) -> Vec<[PathBuf; 2]> {
    let names = (0..count).flat_map(|index| [format!("a{index}"), format!("b{index}")]);
    let all = spread::create_dirs(root, names);
    all.chunks(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect()
}

fn rename_moves_a_file_within_a_directory(root: &Path) {
    files::write(root.join("a"), "text");
    let inode = files::metadata(root.join("a")).ino();
    files::rename(root.join("a"), root.join("b"));
    assert_eq!(names(root), ["b"]);
    assert_eq!(files::metadata(root.join("b")).ino(), inode);
    assert_eq!(files::read(root.join("b")), b"text");
}

fn rename_moves_a_file_to_another_directory(root: &Path) {
    files::write(root.join("file"), "text");
    let inode = files::metadata(root.join("file")).ino();
    let mut last = root.join("file");
    let names = (0..8).map(|index| format!("directory-{index}"));
    for directory in spread::create_dirs(root, names) {
        let next = directory.join("file");
        files::rename(&last, &next);
        refused(fs::metadata(&last), Errno::NOENT);
        assert_eq!(files::metadata(&next).ino(), inode);
        assert_eq!(files::read(&next), b"text");
        last = next;
    }
}

fn rename_replaces_an_existing_file(root: &Path) {
    for directory in spread::create_dirs(root, ["first", "second", "third", "fourth"]) {
        files::write(directory.join("old"), "old");
        files::write(root.join("new"), "new");
        files::rename(root.join("new"), directory.join("old"));
        assert_eq!(names(&directory), ["old"]);
        assert_eq!(files::read(directory.join("old")), b"new");
        // Replace a file whose inode is on another group than its name.
        files::write(directory.join("newer"), "newer");
        files::rename(directory.join("newer"), directory.join("old"));
        assert_eq!(names(&directory), ["old"]);
        assert_eq!(files::read(directory.join("old")), b"newer");
    }
}

fn replaced_open_file_stays_readable(root: &Path) {
    files::write(root.join("old"), "old");
    files::write(root.join("new"), "new");
    let mut open = files::open(root.join("old"));
    files::rename(root.join("new"), root.join("old"));
    assert_eq!(files::metadata_of(&open).nlink(), 0);
    let mut text = String::new();
    ok(open.read_to_string(&mut text));
    assert_eq!(text, "old");
}

fn rename_replaces_only_an_empty_directory(root: &Path) {
    spread::create_dirs(root, ["full", "from", "empty"]);
    files::write(root.join("from/file"), "x");
    files::write(root.join("full/file"), "y");
    refused(fs::rename(root.join("from"), root.join("full")), Errno::NOTEMPTY);
    files::rename(root.join("from"), root.join("empty"));
    assert_eq!(names(root), ["empty", "full"]);
    assert_eq!(files::read(root.join("empty/file")), b"x");
}

fn rename_of_a_missing_name_is_refused(root: &Path) {
    refused(fs::rename(root.join("a"), root.join("b")), Errno::NOENT);
    files::write(root.join("a"), "x");
    refused(fs::rename(root.join("a"), root.join("missing/b")), Errno::NOENT);
    assert_eq!(names(root), ["a"]);
}

fn file_and_directory_do_not_replace_each_other(root: &Path) {
    files::write(root.join("file"), "x");
    files::create_dir(root.join("directory"));
    refused(fs::rename(root.join("file"), root.join("directory")), Errno::ISDIR);
    refused(fs::rename(root.join("directory"), root.join("file")), Errno::NOTDIR);
    assert_eq!(names(root), ["directory", "file"]);
}

/// Creates the directories `a/b/c`. Each of these directories is on another metadata group than its
/// parent.
fn three_nested_directories(root: &Path) {
    spread::create_dirs(root, ["a"]);
    spread::create_dirs(&root.join("a"), ["b"]);
    spread::create_dirs(&root.join("a/b"), ["c"]);
}

fn rename_of_a_directory_into_its_subtree_is_refused(root: &Path) {
    three_nested_directories(root);
    refused(fs::rename(root.join("a"), root.join("a/b/c/d")), Errno::INVAL);
    refused(fs::rename(root.join("a"), root.join("a/b")), Errno::INVAL);
    refused(fs::rename(root.join("a/b/c"), root.join("a")), Errno::NOTEMPTY);
    assert!(root.join("a/b/c").is_dir());
}

/// POSIX requires that two names that are hard links to the same file both still exist after the
/// rename.
fn rename_between_hard_links_of_a_file_keeps_both_names(root: &Path) {
    files::write(root.join("a"), "x");
    files::hard_link(root.join("a"), root.join("b"));
    files::rename(root.join("a"), root.join("b"));
    assert_eq!(names(root), ["a", "b"]);
    files::rename(root.join("a"), root.join("a"));
    assert_eq!(files::metadata(root.join("a")).nlink(), 2);
}

fn rename_noreplace_refuses_an_existing_name(root: &Path) {
    files::write(root.join("a"), "a");
    files::write(root.join("b"), "b");
    let rename =
        |to: &str| renameat_with(CWD, root.join("a"), CWD, root.join(to), RenameFlags::NOREPLACE);
    refused(rename("b"), Errno::EXIST);
    assert_eq!(files::read(root.join("b")), b"b");
    ok(rename("c"));
    assert_eq!(names(root), ["b", "c"]);
}

fn rename_of_a_directory_moves_its_contents(root: &Path) {
    for (index, mut pair) in pairs_of_directories(root, 6).into_iter().enumerate() {
        pair.rotate_left(index % 2);
        let [from, to] = pair;
        files::create_dir_all(from.join("x/y"));
        files::write(from.join("x/y/file"), format!("{index}"));
        files::rename(from.join("x"), to.join("z"));
        assert_eq!(files::read_to_string(to.join("z/y/file")), format!("{index}"));
        assert_eq!(names(&from), Vec::<String>::new());
        let parent = files::metadata(to.join("z/..")).ino();
        assert_eq!(parent, files::metadata(&to).ino());
        files::remove_dir(&from);
    }
}

/// docs/semantics.md 1.12: the counts are exact when the rename has returned.
fn rename_of_a_directory_updates_link_counts(root: &Path) {
    let [a, b] = two_directories(root, ["a", "b"]);
    files::create_dir(a.join("x"));
    let links = || (files::metadata(&a).nlink(), files::metadata(&b).nlink());
    assert_eq!(links(), (3, 2));
    for _ in 0..10 {
        files::rename(a.join("x"), b.join("x"));
        assert_eq!(links(), (2, 3));
        files::rename(b.join("x"), a.join("x"));
        assert_eq!(links(), (3, 2));
    }
}

fn repeated_moves_between_two_directories_keep_one_name(root: &Path) {
    let [a, b] = two_directories(root, ["a", "b"]);
    files::write(a.join("file"), "x");
    for _ in 0..25 {
        files::rename(a.join("file"), b.join("file"));
        files::rename(b.join("file"), a.join("file"));
    }
    assert_eq!(names(&a), ["file"]);
    assert_eq!(names(&b), Vec::<String>::new());
}

/// Four threads move eight files between four directories. Several threads often move the same
/// file.
fn concurrent_renames_lose_no_file(root: &Path) {
    spread::create_dirs(root, (0..4).map(|index| format!("d{index}")));
    for index in 0..8 {
        files::write(root.join(format!("d0/f{index}")), format!("{index}"));
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut random = skep_testkit::Random::new(thread);
                for _ in 0..40 {
                    let file = random.below(8);
                    let (from, to) = (random.below(4), random.below(4));
                    let path = |directory| root.join(format!("d{directory}/f{file}"));
                    match fs::rename(path(from), path(to)) {
                        Ok(()) => {}
                        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
                    }
                }
            });
        }
    });
    let all: Vec<_> = (0..4)
        .flat_map(|index| names(&root.join(format!("d{index}"))))
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let places: usize = (0..4).map(|index| names(&root.join(format!("d{index}"))).len()).sum();
    assert_eq!(all, (0..8).map(|index| format!("f{index}")).collect::<Vec<_>>());
    assert_eq!(places, 8);
}

fn rename_moves_a_symbolic_link_and_not_its_target(root: &Path) {
    files::write(root.join("file"), "x");
    files::symlink("file", root.join("link"));
    files::rename(root.join("link"), root.join("moved"));
    assert_eq!(files::read_link(root.join("moved")).as_os_str(), "file");
    files::rename(root.join("file"), root.join("moved"));
    assert_eq!(names(root), ["moved"]);
    assert!(files::symlink_metadata(root.join("moved")).is_file());
}

/// If two moves would together create a loop, one move must fail.
fn concurrent_moves_never_create_a_loop(root: &Path) {
    for (round, [a, b]) in pairs_of_directories(root, 10).into_iter().enumerate() {
        let moved: usize = std::thread::scope(|scope| {
            let first = scope.spawn(|| usize::from(fs::rename(&a, b.join("in")).is_ok()));
            let second = scope.spawn(|| usize::from(fs::rename(&b, a.join("in")).is_ok()));
            first.join().expect("no panic") + second.join().expect("no panic")
        });
        assert_eq!(moved, 1, "round {round}");
        assert!(a.join("in").is_dir() || b.join("in").is_dir());
    }
}

/// Exchanges files within one directory, and between this directory and other directories. Half of
/// the other directories are on another metadata group. docs/semantics.md 1.4.
fn exchange_swaps_two_files(root: &Path) {
    files::write(root.join("a"), "of a");
    files::write(root.join("b"), "of b");
    let inode = |path: &Path| files::symlink_metadata(path).ino();
    let (a, b) = (inode(&root.join("a")), inode(&root.join("b")));
    ok(exchange(&root.join("a"), &root.join("b")));
    assert_eq!((inode(&root.join("a")), inode(&root.join("b"))), (b, a));
    assert_eq!(files::read(root.join("a")), b"of b");
    assert_eq!(files::read(root.join("b")), b"of a");
    for directory in spread::create_dirs(root, (0..8).map(|index| format!("directory-{index}"))) {
        let there = directory.join("there");
        files::write(&there, "there");
        ok(exchange(&root.join("b"), &there));
        assert_eq!(files::read(root.join("b")), b"there");
        assert_eq!(files::read(&there), b"of a");
        ok(exchange(&there, &root.join("b")));
        assert_eq!(files::read(&there), b"there");
        assert_eq!(names(&directory), ["there"]);
    }
    assert_eq!(files::read(root.join("b")), b"of a");
}

fn exchange_swaps_two_directories(root: &Path) {
    for [a, b] in pairs_of_directories(root, 6) {
        files::create_dir_all(a.join("in/one"));
        files::create_dir_all(b.join("in/two"));
        ok(exchange(&a.join("in"), &b.join("in")));
        assert_eq!(
            (names(&a.join("in")), names(&b.join("in"))),
            (vec!["two".into()], vec!["one".into()])
        );
        for place in [&a, &b] {
            let parent = files::metadata(place.join("in/..")).ino();
            assert_eq!(parent, files::metadata(place).ino());
            assert_eq!(files::metadata(place).nlink(), 3);
        }
        // Exchange `a` and `b` themselves, which are in the root.
        ok(exchange(&a, &b));
        assert_eq!(names(&a.join("in")), ["one"]);
    }
}

fn exchange_swaps_a_file_and_a_directory(root: &Path) {
    let places = spread::create_dirs(root, (0..8).map(|index| format!("place-{index}")));
    for (index, place) in places.iter().enumerate() {
        files::create_dir_all(place.join("directory/inner"));
        let file = root.join(format!("file-{index}"));
        files::write(&file, "text");
        ok(exchange(&place.join("directory"), &file));
        assert!(file.join("inner").is_dir());
        assert_eq!(files::read(place.join("directory")), b"text");
        assert_eq!(files::metadata(place).nlink(), 2);
        assert_eq!(files::metadata(root).nlink(), 2 + 8 + index as u64 + 1);
        let parent = files::metadata(file.join("..")).ino();
        assert_eq!(parent, files::metadata(root).ino());
    }
    files::symlink("nowhere", root.join("link"));
    ok(exchange(&root.join("link"), &root.join("place-0/directory")));
    assert_eq!(files::read(root.join("link")), b"text");
    assert_eq!(files::read_link(root.join("place-0/directory")).as_os_str(), "nowhere");
}

fn exchange_with_a_missing_name_is_refused(root: &Path) {
    files::write(root.join("a"), "x");
    refused(exchange(&root.join("a"), &root.join("b")), Errno::NOENT);
    refused(exchange(&root.join("b"), &root.join("a")), Errno::NOENT);
    refused(exchange(&root.join("a"), &root.join("a/b")), Errno::NOTDIR);
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    files::write(root.join("b"), "y");
    refused(renameat_with(CWD, root.join("a"), CWD, root.join("b"), both), Errno::INVAL);
    assert_eq!(names(root), ["a", "b"]);
}

/// docs/semantics.md 1.7.
fn exchange_with_an_ancestor_is_refused(root: &Path) {
    three_nested_directories(root);
    refused(exchange(&root.join("a"), &root.join("a/b/c")), Errno::INVAL);
    refused(exchange(&root.join("a/b/c"), &root.join("a")), Errno::INVAL);
    refused(exchange(&root.join("a"), &root.join("a/b")), Errno::INVAL);
    files::write(root.join("a/b/file"), "x");
    refused(exchange(&root.join("a/b/file"), &root.join("a")), Errno::INVAL);
    assert!(root.join("a/b/c").is_dir());
}

fn exchange_of_hard_links_of_one_file_succeeds(root: &Path) {
    files::write(root.join("a"), "x");
    files::hard_link(root.join("a"), root.join("b"));
    ok(exchange(&root.join("a"), &root.join("b")));
    ok(exchange(&root.join("a"), &root.join("a")));
    assert_eq!(names(root), ["a", "b"]);
    assert_eq!(files::metadata(root.join("a")).nlink(), 2);
}

/// Four threads exchange eight files and directories. Each of these entries must always have
/// exactly one name.
fn concurrent_exchanges_lose_no_entry(root: &Path) {
    let directories = spread::create_dirs(root, (0..8).map(|index| format!("d{index}")));
    for (index, directory) in directories.iter().enumerate() {
        let it = directory.join("it");
        match index % 2 {
            0 => files::write(&it, format!("{index}")),
            _ => files::create_dir(&it),
        }
        rustix::fs::setxattr(
            &it,
            "user.number",
            format!("{index}").as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
        .or_fail("setxattr", &it);
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut random = skep_testkit::Random::new(thread);
                for _ in 0..25 {
                    let place = |index: usize| root.join(format!("d{index}/it"));
                    ok(exchange(&place(random.below(8)), &place(random.below(8))));
                }
            });
        }
    });
    let mut found: Vec<_> = (0..8)
        .map(|index| {
            let mut bytes = [0; 8];
            let path = root.join(format!("d{index}/it"));
            let len =
                rustix::fs::getxattr(&path, "user.number", &mut bytes).or_fail("getxattr", &path);
            let links = 2 + u64::from(path.is_dir());
            assert_eq!(files::metadata(root.join(format!("d{index}"))).nlink(), links);
            ok(String::from_utf8(bytes[..len].to_vec()))
        })
        .collect();
    found.sort();
    assert_eq!(found, (0..8).map(|index| index.to_string()).collect::<Vec<_>>());
}

/// If two exchanges would together create a loop, one exchange must fail.
fn concurrent_exchanges_never_create_a_loop(root: &Path) {
    for (round, [a, b]) in pairs_of_directories(root, 10).into_iter().enumerate() {
        for directory in [&a, &b] {
            files::write(directory.join("in"), "x");
        }
        let swapped: usize = std::thread::scope(|scope| {
            let first = scope.spawn(|| usize::from(exchange(&a, &b.join("in")).is_ok()));
            let second = scope.spawn(|| usize::from(exchange(&b, &a.join("in")).is_ok()));
            first.join().expect("no panic") + second.join().expect("no panic")
        });
        // If the first exchange ends before the second exchange begins, the second exchange
        // restores the names.
        assert!(swapped >= 1, "round {round}");
        assert_eq!(usize::from(a.is_dir()) + usize::from(b.is_dir()), 1, "round {round}");
    }
}

/// Whether a path is a whiteout of an overlay file system. An overlay may create several hard links
/// to a whiteout, and may change its permissions.
fn is_whiteout_of_overlay(path: &Path) -> bool {
    let found = files::symlink_metadata(path);
    found.file_type().is_char_device() && found.rdev() == 0
}

fn is_whiteout(path: &Path) -> bool {
    let found = files::symlink_metadata(path);
    let is_free = found.permissions().mode() & 0o7777 == 0 && found.nlink() == 1;
    is_whiteout_of_overlay(path) && is_free
}

/// Every second directory is on another metadata group. docs/semantics.md 1.4.
fn rename_with_whiteout_leaves_a_whiteout(root: &Path) {
    let leave = |from: &Path, to: &Path, more: RenameFlags| {
        renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT | more)
    };
    let none = RenameFlags::empty();
    let directories = spread::create_dirs(root, (0..8).map(|index| format!("directory-{index}")));
    for (index, directory) in directories.iter().enumerate() {
        let (inside, outside) = (directory.join("name"), root.join(format!("name-{index}")));
        files::write(&inside, "text");
        ok(leave(&inside, &outside, none));
        assert!(is_whiteout(&inside));
        assert_eq!(files::read(&outside), b"text");
        refused(leave(&outside, &inside, RenameFlags::NOREPLACE), Errno::EXIST);
        // Move the file back to its old name, which replaces the whiteout that the first rename has
        // left.
        ok(leave(&outside, &inside, none));
        assert!(is_whiteout(&outside));
        assert_eq!(files::read(&inside), b"text");
        // After that, move the file within one directory. Also move a directory, which after its
        // move does not count as a subdirectory of its old parent.
        ok(leave(&inside, &directory.join("other"), none));
        assert!(is_whiteout(&inside));
        files::create_dir(directory.join("below"));
        let links = files::metadata(directory).nlink();
        ok(leave(&directory.join("below"), &root.join(format!("below-{index}")), none));
        assert!(is_whiteout(&directory.join("below")));
        assert_eq!(files::metadata(directory).nlink(), links - 1);
        assert_eq!(names(directory), ["below", "name", "other"]);
        files::remove_file(&outside);
        files::remove_dir_all(directory);
    }
    refused(leave(&root.join("missing"), &root.join("a"), none), Errno::NOENT);
    refused(fs::symlink_metadata(root.join("missing")), Errno::NOENT);
}

fn rename_flags_whiteout_and_exchange_exclude_each_other(root: &Path) {
    for name in ["a", "b"] {
        files::write(root.join(name), name);
    }
    let flags = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    refused(renameat_with(CWD, root.join("a"), CWD, root.join("b"), flags), Errno::INVAL);
    assert_eq!(names(root), ["a", "b"]);
}

/// The tree is the upper directory of an overlay, as in container runtimes.
fn tree_can_be_the_upper_directory_of_overlayfs(root: &Path) {
    let scratch = Scratch::new();
    let (lower, merged) = (scratch.directory("lower"), scratch.directory("merged"));
    for name in ["kept", "moved", "removed"] {
        files::write(lower.join(name), name);
    }
    for name in ["upper", "work", "merged"] {
        files::create_dir(root.join(name));
    }
    let of = |name: &str| root.join(name).display().to_string();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), of("upper"), of("work"));
    let merged_text = merged.display().to_string();
    run("mount", ["-t", "overlay", "overlay", "-o", &options, &merged_text]);
    files::rename(merged.join("moved"), merged.join("away"));
    files::remove_file(merged.join("removed"));
    files::write(merged.join("kept"), "changed");
    let shown = names(&merged);
    run("umount", [&merged_text]);
    assert_eq!(shown, ["away", "kept"]);
    assert_eq!(names(&root.join("upper")), ["away", "kept", "moved", "removed"]);
    assert!(is_whiteout_of_overlay(&root.join("upper/moved")));
    assert!(is_whiteout_of_overlay(&root.join("upper/removed")));
    assert_eq!(files::read(root.join("upper/away")), b"moved");
    assert_eq!(files::read(root.join("upper/kept")), b"changed");
}

//! Copies of a tree that contains every kind of file and attribute. `rsync` and `tar` copy the tree
//! to one mount, and copy the tree back from the other mount. The copies must be equal to the
//! original.

use crate::{Places, text};
use rustix::fs::{XattrFlags, lsetxattr};
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::{run, run_in};
use skep_testkit::{Random, tree};
use std::fs::{self};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

/// Creates a tree with sparse files, access control lists, extended attributes, owners, hard links,
/// and special files.
fn make_tree(root: &Path) {
    files::create_dir(root);
    let mut random = Random::new(41);
    for index in 0..40_u32 {
        let directory = root.join(format!("directory-{}/{}", index % 4, index % 3));
        files::create_dir_all(&directory);
        let path = directory.join(format!("file-{index}"));
        let len = [0, 1, 4097, 80_000, 700_000][random.below(5)];
        files::write(&path, random.bytes(len));
        let modes = [0o600, 0o755, 0o4711, 0o2750];
        files::set_permissions(&path, fs::Permissions::from_mode(random.one_of(&modes)));
        for number in 0..index % 3 {
            let len = random.one_of(&[1, 40, 1500]);
            let value = random.bytes(len);
            let name = format!("user.attribute-{number}");
            lsetxattr(&path, name.as_str(), &value, XattrFlags::empty())
                .or_fail("lsetxattr", &path);
        }
        match index % 5 {
            0 => files::hard_link(&path, root.join(format!("hard-{index}"))),
            1 => {
                run("setfacl", ["-m", "u:33:rwx,g:50:r-x,m::rwx", text(&path)]);
            }
            2 => files::chown(&path, Some(1000 + index), Some(2000 + index)),
            3 => files::symlink(format!("../file-{index}"), root.join(format!("soft-{index}"))),
            _ => {}
        }
    }
    let sparse = files::create(root.join("sparse"));
    for place in [0_u64, 5_000_000, 90_000_000] {
        files::write_all_at(&sparse, &random.bytes(10_000), place);
    }
    files::set_len(&sparse, 200_000_000);
    lchown(root.join("soft-3"), Some(7), Some(8)).expect("root may change the owner");
    let with_default = root.join("directory-1");
    run("setfacl", ["-d", "-m", "u:33:rwx,g::r-x", text(&with_default)]);
    run_in(root, "mkfifo", ["-m", "640", "pipe"]);
    run_in(root, "mknod", ["-m", "600", "zero", "c", "1", "5"]);
    files::set_permissions(root.join("directory-2"), fs::Permissions::from_mode(0o1777));
}

/// Checks that two trees have the same contents, times, access control lists, attributes and
/// owners.
fn assert_same(expected: &Path, found: &Path) {
    tree::assert_same(expected, found, true);
    let printed = |directory: &Path, program: &str, arguments: &[&str]| {
        let printed = run_in(directory, program, arguments);
        let mut parts: Vec<_> = printed.split("\n\n").map(str::to_owned).collect();
        parts.sort();
        parts
    };
    let same = |program: &str, arguments: &[&str]| {
        let (left, right) =
            (printed(expected, program, arguments), printed(found, program, arguments));
        assert_eq!(left, right, "{program} {arguments:?}");
    };
    same("getfacl", &["--recursive", "--physical", "--numeric", "."]);
    same(
        "getfattr",
        &["--recursive", "--physical", "--no-dereference", "--dump", "--encoding=hex", "."],
    );
    let owners = [expected, found].map(|directory| {
        let printed = run_in(directory, "find", [".", "-printf", "%p %y %U %G %T@\n"]);
        let mut lines: Vec<_> = printed.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    });
    assert_eq!(owners[0], owners[1]);
}

/// Checks that a sparse file of 200 MB with 30 KB of data still has less than 20 MB of blocks.
fn assert_sparse(path: &Path) {
    let found = files::metadata(path);
    assert_eq!(found.len(), 200_000_000);
    assert!(found.blocks() * 512 < 20_000_000, "{} blocks", found.blocks());
}

pub(crate) fn rsync_copies_all_kinds_of_entries_to_a_mount_and_back(places: &Places) {
    let (source, back) = (places.local.join("source"), places.local.join("back"));
    make_tree(&source);
    let rsync = |from: &Path, to: &Path, more: &[&str]| {
        let (from, to) = (format!("{}/", from.display()), text(to).to_owned());
        run(
            "rsync",
            [&["-aHAXS", "--numeric-ids", "--modify-window=-1"], more, &[&from, &to]].concat(),
        )
    };
    rsync(&source, &places.one.join("tree"), &[]);
    let seen = places.other.join("tree");
    assert_same(&source, &seen);
    assert_sparse(&seen.join("sparse"));
    let left = rsync(&source, &seen, &["--checksum", "--dry-run", "--itemize-changes"]);
    assert_eq!(left, "", "rsync finds no difference");
    rsync(&seen, &back, &[]);
    assert_same(&source, &back);
}

pub(crate) fn tar_copies_all_kinds_of_entries_to_a_mount_and_back(places: &Places) {
    let source = places.one.join("tree");
    make_tree(&source);
    let what = ["--sparse", "--xattrs", "--acls", "--numeric-owner", "--format=pax"];
    let tar = |directory: &Path, arguments: &[&str]| {
        run_in(directory, "tar", [&what[..], arguments].concat());
    };
    tar(&places.other, &["-cf", "tree.tar", "tree"]);
    let archive = places.one.join("tree.tar");
    let len = files::metadata(&archive).len();
    assert!(len < 60_000_000, "the archive must keep holes, but has {len} bytes");
    tar(&places.local, &["-xpf", text(&archive)]);
    let unpacked = places.one.join("unpacked");
    files::create_dir(&unpacked);
    tar(&unpacked, &["-xpf", text(&archive)]);
    let seen = places.other.join("unpacked/tree");
    assert_same(&places.local.join("tree"), &seen);
    assert_sparse(&seen.join("sparse"));
    run_in(&places.other, "tar", ["--compare", "--file", "tree.tar"]);
}

//! Changes that concern two metadata groups: `mkdir` and `rmdir` of a directory on another group
//! than its parent, and `link` and `unlink` of a file on another group than the directory. The
//! tests run on feature level 1, and again on feature level 2, from which metadata stages these
//! changes (docs/design/0028-staged-transactions.md).
//!
//! Metadata spreads only directories in the root directory of the file system over its groups. So
//! most tests create directories in the root directory.

use crate::races::only_one_succeeds;
use crate::{Mounts, within_a_second};
use skep_testkit::suite::Case;
use skep_testkit::{files, spread};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![two_groups:
    one_of_many_creators_and_removers_of_a_directory_succeeds,
    one_of_many_creators_and_removers_of_a_link_succeeds,
    new_directory_in_the_root_is_usable_on_all_mounts,
    rmdir_never_removes_a_file_that_another_mount_creates,
];

/// Number of directories in the root directory that a test creates. The hash of a directory's name
/// chooses its group, so these directories are on both groups.
const ROUNDS: usize = 16;

/// Returns the root directory of each mount. The list contains one mount twice, so that requests of
/// a single mount also compete with each other.
fn roots(mounts: &Mounts) -> [&Path; 4] {
    [&mounts.one, &mounts.other, &mounts.at_once, &mounts.other]
        .map(|it| it.parent().expect("the directory of a test is in the root directory"))
}

/// Returns the name of the directory of round `round`, which differs from the names of other tests.
fn name_of(mounts: &Mounts, round: usize) -> String {
    let test = mounts.one.file_name().expect("the directory of a test has a name");
    format!("{}-{round}", test.display())
}

/// Returns how often the listing of `directory` contains `name`.
fn listed(directory: &Path, name: &str) -> usize {
    let entries = files::read_dir(directory).map(|it| it.expect("an entry"));
    entries.filter(|it| it.file_name() == name).count()
}

/// docs/semantics.md 1.5, 1.6 and 1.12.
fn one_of_many_creators_and_removers_of_a_directory_succeeds(mounts: &Mounts) {
    let all = roots(mounts);
    let fresh = all[2];
    for round in 0..ROUNDS {
        let name = name_of(mounts, round);
        let paths = all.map(|root| root.join(&name));
        let links = files::metadata(fresh).nlink();
        only_one_succeeds("mkdir", &paths, ErrorKind::AlreadyExists, |_, path| {
            fs::create_dir(path)
        });
        assert_eq!((listed(fresh, &name), files::metadata(fresh).nlink()), (1, links + 1));
        assert_eq!(files::metadata(&paths[2]).nlink(), 2);
        only_one_succeeds("rmdir", &paths, ErrorKind::NotFound, |_, path| fs::remove_dir(path));
        assert_eq!((listed(fresh, &name), files::metadata(fresh).nlink()), (0, links));
        assert!(!paths[2].exists(), "{name} is removed");
    }
}

/// The files are on the group of the test's directory, and the links are in a directory on another
/// group. docs/semantics.md 1.5 and 1.12.
fn one_of_many_creators_and_removers_of_a_link_succeeds(mounts: &Mounts) {
    let elsewhere = spread::create_dirs(&mounts.one, ["elsewhere"]);
    spread::assert_spread(&[mounts.one.clone(), elsewhere[0].clone()]);
    let all = [&mounts.one, &mounts.other, &mounts.at_once, &mounts.other];
    let own = |index: usize| all[index].join(format!("own-{index}"));
    for index in 0..all.len() {
        files::write(mounts.one.join(format!("own-{index}")), index.to_string());
    }
    let links_of =
        |index: usize| files::metadata(mounts.at_once.join(format!("own-{index}"))).nlink();
    for round in 0..ROUNDS {
        let paths = all.map(|it| it.join("elsewhere").join(format!("new-{round}")));
        let winner = only_one_succeeds("link", &paths, ErrorKind::AlreadyExists, |index, path| {
            fs::hard_link(own(index), path)
        });
        assert_eq!(files::read_to_string(&paths[2]), winner.to_string());
        for index in 0..all.len() {
            assert_eq!(links_of(index), 1 + u64::from(index == winner), "file {index}");
        }
        only_one_succeeds("unlink", &paths, ErrorKind::NotFound, |_, path| fs::remove_file(path));
        assert_eq!(links_of(winner), 1);
        assert_eq!(files::read_to_string(own(winner)), winner.to_string());
    }
}

/// docs/semantics.md 1.1, 1.2 and 1.6.
fn new_directory_in_the_root_is_usable_on_all_mounts(mounts: &Mounts) {
    let all = roots(mounts);
    let names: Vec<_> = (0..ROUNDS).map(|round| name_of(mounts, round)).collect();
    for (round, name) in names.iter().enumerate() {
        files::create_dir(all[round % 3].join(name));
        for (index, root) in all.iter().enumerate() {
            files::write(root.join(name).join(format!("file-{index}")), name);
        }
    }
    let paths: Vec<_> = names.iter().map(|name| all[0].join(name)).collect();
    spread::assert_spread(&paths);
    for (round, name) in names.iter().enumerate() {
        let path = all[(round + 1) % 3].join(name);
        let refused = fs::remove_dir(&path).expect_err("the directory has files");
        assert_eq!(refused.kind(), ErrorKind::DirectoryNotEmpty, "{refused}");
        for index in 0..all.len() {
            let file = path.join(format!("file-{index}"));
            assert_eq!(&files::read_to_string(&file), name);
            files::remove_file(file);
        }
        files::remove_dir(&path);
        assert_eq!(listed(all[2], name), 0, "{name} is removed");
    }
    within_a_second("the removed directories", || {
        let mut left = all.iter().flat_map(|root| names.iter().map(move |it| root.join(it)));
        !left.any(|path| path.exists())
    });
}

/// There are two valid results: either the file is created first and the directory is not removed,
/// or the directory is removed and no file is created.
fn rmdir_never_removes_a_file_that_another_mount_creates(mounts: &Mounts) {
    let [one, other, fresh, _] = roots(mounts);
    for round in 0..ROUNDS {
        let name = name_of(mounts, round);
        files::create_dir(one.join(&name));
        assert!(other.join(&name).is_dir(), "the other mount has looked the directory up");
        let (created, removed) = std::thread::scope(|scope| {
            let creating = scope.spawn(|| fs::write(other.join(&name).join("file"), "x").is_ok());
            let removing = scope.spawn(|| fs::remove_dir(one.join(&name)).is_ok());
            (creating.join().expect("no panic"), removing.join().expect("no panic"))
        });
        assert!(created != removed, "{name}: created {created}, removed {removed}");
        assert_eq!((fresh.join(&name).exists(), listed(fresh, &name) == 1), (created, created));
        if created {
            assert_eq!(files::read(fresh.join(&name).join("file")), b"x");
            files::remove_dir_all(fresh.join(&name));
        }
    }
}

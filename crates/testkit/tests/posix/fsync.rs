//! Syncing. That it reaches the disk, tests of power losses show; here, that all forms of it work.

use crate::{Test, ok};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![fsync:
    of_files, of_directories, of_the_file_system_is_no_error, with_every_write,
    of_read_only_handles,
];

fn of_files(root: &Path) {
    let mut file = ok(File::create(root.join("file")));
    for index in 0..20_u8 {
        ok(file.write_all(&vec![index; 100_000]));
        ok(if index % 2 == 0 { file.sync_all() } else { file.sync_data() });
    }
    assert_eq!(ok(fs::metadata(root.join("file"))).len(), 2_000_000);
}

fn of_directories(root: &Path) {
    ok(fs::create_dir(root.join("directory")));
    ok(fs::write(root.join("directory/file"), "x"));
    ok(ok(File::open(root.join("directory"))).sync_all());
    ok(ok(File::open(root)).sync_all());
}

/// More can't be asked: the kernel doesn't tell FUSE file systems of it.
/// Semantics 5.4.
fn of_the_file_system_is_no_error(root: &Path) {
    for index in 0..20 {
        ok(fs::write(root.join(format!("file-{index}")), vec![1; 50_000]));
    }
    ok(rustix::fs::syncfs(ok(File::open(root))));
}

fn with_every_write(root: &Path) {
    for flag in [OFlags::SYNC, OFlags::DSYNC] {
        let path = root.join(format!("file-{}", flag.bits()));
        let flags = OFlags::WRONLY | OFlags::CREATE | flag;
        let mut file = File::from(ok(rustix::fs::open(&path, flags, Mode::RUSR)));
        for _ in 0..10 {
            ok(file.write_all(&[5; 9999]));
        }
        assert_eq!(ok(fs::metadata(&path)).len(), 99_990);
    }
}

fn of_read_only_handles(root: &Path) {
    ok(fs::write(root.join("file"), "x"));
    let file = ok(File::open(root.join("file")));
    ok(file.sync_all());
    ok(file.sync_data());
}

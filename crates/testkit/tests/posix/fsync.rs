//! Calls that sync files. The tests of power losses check that synced data is on the disk. The
//! tests in this file only check that these calls succeed.

use crate::{Test, ok};
use rustix::fs::{Mode, OFlags};
use skep_testkit::files;
use std::fs::File;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![fsync:
    fsync_of_a_written_file_succeeds,
    fsync_of_a_directory_succeeds,
    syncfs_succeeds,
    files_opened_with_o_sync_can_be_written,
    fsync_of_a_read_only_handle_succeeds,
];

fn fsync_of_a_written_file_succeeds(root: &Path) {
    let file = files::create(root.join("file"));
    for index in 0..20_u8 {
        files::write_all(&file, &vec![index; 100_000]);
        ok(if index % 2 == 0 { file.sync_all() } else { file.sync_data() });
    }
    assert_eq!(files::metadata(root.join("file")).len(), 2_000_000);
}

fn fsync_of_a_directory_succeeds(root: &Path) {
    files::create_dir(root.join("directory"));
    files::write(root.join("directory/file"), "x");
    files::sync_all(&files::open(root.join("directory")));
    files::sync_all(&files::open(root));
}

/// The test checks only that syncfs(2) succeeds, because the kernel does not forward the call to
/// FUSE file systems. docs/semantics.md 5.4.
fn syncfs_succeeds(root: &Path) {
    for index in 0..20 {
        files::write(root.join(format!("file-{index}")), vec![1; 50_000]);
    }
    files::syncfs(root);
}

fn files_opened_with_o_sync_can_be_written(root: &Path) {
    for flag in [OFlags::SYNC, files::DSYNC] {
        let path = root.join(format!("file-{}", flag.bits()));
        let flags = OFlags::WRONLY | OFlags::CREATE | flag;
        let file = File::from(ok(rustix::fs::open(&path, flags, Mode::RUSR)));
        for _ in 0..10 {
            files::write_all(&file, &[5; 9999]);
        }
        assert_eq!(files::metadata(&path).len(), 99_990);
    }
}

fn fsync_of_a_read_only_handle_succeeds(root: &Path) {
    files::write(root.join("file"), "x");
    let file = files::open(root.join("file"));
    files::sync_all(&file);
    files::sync_data(&file);
}

//! The space of the file system in the results of `statvfs`.

use crate::Test;
use skep_testkit::files::OrFail;
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![statfs: statfs_reports_total_and_free_space];

fn statfs_reports_total_and_free_space(root: &Path) {
    let space = rustix::fs::statvfs(root).or_fail("statvfs", root);
    assert!(space.f_blocks > 0 && space.f_frsize > 0);
    assert!(space.f_bfree <= space.f_blocks && space.f_bavail <= space.f_bfree);
    assert!(space.f_bavail > 0);
    assert_eq!(space.f_namemax, 255);
    assert!(space.f_files >= space.f_ffree);
}

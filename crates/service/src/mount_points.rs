//! Finds mount points on which nothing is mounted. A directory below such a mount point would be on
//! the wrong file system.
//!
//! This module contains only the check before `--init`. A later start needs no check, because a
//! service refuses a blank directory.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns a mount point in `/etc/fstab` that is `path` or a directory above `path`, and on which
/// nothing is mounted.
pub(crate) fn unmounted_above(path: &Path) -> Option<PathBuf> {
    let fstab = std::fs::read_to_string("/etc/fstab").unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    unmounted_in(&std::path::absolute(path).ok()?, &fstab, &mounts)
}

fn unmounted_in(path: &Path, fstab: &str, mounts: &str) -> Option<PathBuf> {
    let mounted: Vec<_> = mount_points(mounts).collect();
    let is_missing = |point: &PathBuf| path.starts_with(point) && !mounted.contains(point);
    mount_points(fstab).find(is_missing)
}

/// Returns the mount points in lines of the format of fstab(5). Omits swap and comments.
fn mount_points(lines: &str) -> impl Iterator<Item = PathBuf> {
    let lines = lines.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let second = lines.filter_map(|line| line.split_whitespace().nth(1));
    second.filter(|point| point.starts_with('/')).map(|point| {
        // In fstab and in the kernel's list of mounts, an octal escape represents a space.
        PathBuf::from(point.replace("\\040", " "))
    })
}

/// Whether `path`, or the directory in which it will be created, is on the file system of `/`.
pub(crate) fn is_on_root(path: &Path) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let device = |path: &Path| std::fs::metadata(path).ok().map(|it| it.dev());
    let nearest = path.ancestors().find_map(device);
    nearest.is_some() && nearest == device(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_below_an_unmounted_fstab_entry_is_detected() {
        let fstab = "# comment /disk9\nUUID=1 / ext4 defaults 0 1\n/dev/sdb /disk1 xfs rw 0 0\n\
                     /dev/sdc /my\\040disk xfs rw 0 0\nUUID=2 none swap sw 0 0\n";
        let mounts = "/dev/sda / ext4 rw 0 0\n/dev/sdc /my\\040disk xfs rw 0 0\n";
        let check = |path: &str| unmounted_in(Path::new(path), fstab, mounts);
        assert_eq!(check("/disk1/skep"), Some("/disk1".into()));
        assert_eq!(check("/disk1"), Some("/disk1".into()));
        for right in ["/disk10/skep", "/my disk/skep", "/srv/skep", "/disk9/skep"] {
            assert_eq!(check(right), None, "{right}");
        }
    }
}

//! Reads the identity and the version of an open file from its descriptor.
//!
//! Every decision of a copy compares these values and never a path, because a path may lead to
//! another file at each lookup.

use crate::failure::Failure;
use crate::plan::Version;
use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

/// Identifies a file. Does not depend on the name or the content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Returns the version of a file from its attributes (`stat`).
pub(crate) fn version_of(metadata: &Metadata) -> Version {
    Version {
        device: metadata.dev(),
        inode: metadata.ino(),
        len: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// Asks the file system for the current version of a file. Without this request, a network file
/// system may return attributes that it has cached before another host changed the file.
pub(crate) fn present_version(file: &File) -> Result<Version, Failure> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let found = match statx(file, "", flags, StatxFlags::BASIC_STATS) {
        Ok(found) => found,
        // The kernel lacks `statx`, or a seccomp filter forbids it. So use the attributes that
        // `fstat` returns, which may be cached.
        Err(Errno::NOSYS | Errno::PERM) => {
            let metadata = file.metadata().map_err(Failure::of("read the attributes"))?;
            return Ok(version_of(&metadata));
        }
        Err(error) => return Err(Failure::of("read the attributes")(error)),
    };
    Ok(Version {
        device: makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        len: found.stx_size,
        modified: (found.stx_mtime.tv_sec, i64::from(found.stx_mtime.tv_nsec)),
        changed: (found.stx_ctime.tv_sec, i64::from(found.stx_ctime.tv_nsec)),
    })
}

/// Fails if the version of a file is no longer `before`.
pub(crate) fn expect_unchanged(file: &File, before: Version) -> Result<(), Failure> {
    match present_version(file)? == before {
        true => Ok(()),
        false => Err(Failure::changed()),
    }
}

/// Returns the identity of a copy that has the length of its source. Fails if the source has
/// changed.
pub(crate) fn expect_complete(
    source: &File,
    copy: &File,
    version: Version,
) -> Result<Identity, Failure> {
    expect_unchanged(source, version)?;
    let metadata = copy.metadata().map_err(Failure::of("read the attributes of the copy"))?;
    if metadata.len() != version.len {
        let (copy, source) = (metadata.len(), version.len);
        let reason = format!(
            "the copy has {copy} bytes, and the source has {source} bytes; copy the file again"
        );
        return Err(Failure::because("copy", reason));
    }
    Ok(Identity::of(&metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, SystemTime};

    #[test]
    fn change_that_keeps_length_and_mtime_is_detected() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"first", 0).unwrap();
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        file.set_modified(old).unwrap();
        let before = version_of(&file.metadata().unwrap());
        expect_unchanged(&file, before).unwrap();
        // `ctime` changes only every few milliseconds, so the loop waits until it differs.
        while present_version(&file).unwrap().changed == before.changed {
            file.write_all_at(b"other", 0).unwrap();
            file.set_modified(old).unwrap();
        }
        let now = present_version(&file).unwrap();
        assert_eq!((now.len, now.modified), (before.len, before.modified));
        assert!(expect_unchanged(&file, before).is_err());
    }
}

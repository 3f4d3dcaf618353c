//! The identity of the host's page cache, and the mark of a member of a metadata group in it.
//!
//! As long as the identity stays the same, the page cache has all bytes that a target has written,
//! also after a kill of its process. Does not own the layout of the mark
//! ([`skep_format::member_mark`]), and the part of storage targets
//! ([`skep_format::chunk::TargetState`]).
//!
//! # Crash rule
//! A member calls [`MemberMarkFile::begin`] before it confirms its first record. So after a power
//! loss, a mark of the former page cache exists if any record was confirmed. A member that lacks
//! records keeps this mark until it has them again ([`MemberMarkFile::become_whole`]): a second
//! start in between must still see the loss.

use crate::atomic::replace_atomically;
use skep_format::chunk::HostMark;
use skep_format::member_mark::MemberMark;
use skep_types::{Error, Result};
use std::path::{Path, PathBuf};

/// Name of the file with the mark, in the directory of a metadata target.
const MARK: &str = "member-mark";

/// Returns the identity of the running kernel and of the mount. As long as both stay the same, the
/// page cache still holds all data that the target has written.
///
/// # Errors
/// Errors of the kernel, with the path.
pub fn host_mark(directory: &Path) -> Result<HostMark> {
    let failed = |error: std::io::Error| Error::from(error).within(directory.display());
    let mount = skep_env::mount_mark(directory).map_err(failed)?;
    Ok(HostMark {
        boot_id: skep_env::boot_id().map_err(failed)?,
        device: mount.device,
        mount: mount.mount,
        directory: mount.directory,
    })
}

/// The mark of one member.
#[derive(Debug)]
pub struct MemberMarkFile {
    path: PathBuf,
    host: HostMark,
    written: Option<MemberMark>,
    lacks_records: bool,
}

impl MemberMarkFile {
    /// Reads the mark in the directory of a target.
    ///
    /// # Errors
    /// - Errors of the file system, with the path.
    /// - `Corrupt` or `Unsupported` if the mark cannot be read.
    pub fn read(directory: &Path) -> Result<Self> {
        Self::read_at(directory, host_mark(directory)?)
    }

    /// Like [`Self::read`], but takes the identity of the page cache from `host`.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::read`].
    pub fn read_at(directory: &Path, host: HostMark) -> Result<Self> {
        let path = directory.join(MARK);
        let written = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            read => {
                let bytes = read.map_err(|error| Error::from(error).within(path.display()))?;
                let mark = MemberMark::from_file(&bytes);
                Some(mark.map_err(|error| error.within(path.display()))?)
            }
        };
        let lacks_records = MemberMark::lacks_records(written, host);
        Ok(Self { path, host, written, lacks_records })
    }

    /// Whether the target has been a member of a group of several before.
    pub fn exists(&self) -> bool {
        self.written.is_some()
    }

    /// Whether the host may have lost records that the member has confirmed.
    pub fn lacks_records(&self) -> bool {
        self.lacks_records
    }

    /// Makes the mark durable, before the member confirms a record. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub fn begin(&mut self) -> Result<()> {
        if self.lacks_records {
            return Ok(());
        }
        self.write(MemberMark { host: self.host, clean: false })
    }

    /// Notes that the member has every record that its group counts on. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub fn become_whole(&mut self) -> Result<()> {
        self.write(MemberMark { host: self.host, clean: false })?;
        self.lacks_records = false;
        Ok(())
    }

    /// Notes durably that records which the member has confirmed may be lost without a power loss:
    /// its device has failed. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub fn distrust(&mut self) -> Result<()> {
        if self.exists() {
            let none = HostMark { boot_id: 0, device: 0, mount: 0, directory: 0 };
            self.write(MemberMark { host: none, clean: false })?;
            self.lacks_records = true;
        }
        Ok(())
    }

    /// Notes that the device has all records, at the end of the process. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub fn end(&mut self) -> Result<()> {
        if !self.exists() || self.lacks_records {
            return Ok(());
        }
        self.write(MemberMark { host: self.host, clean: true })
    }

    fn write(&mut self, mark: MemberMark) -> Result<()> {
        if self.written == Some(mark) {
            return Ok(());
        }
        replace_atomically(&self.path, &mark.to_file())?;
        self.written = Some(mark);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostMark = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };
    const OTHER: HostMark = HostMark { boot_id: 2, ..HOST };

    fn lacks(directory: &Path, host: HostMark) -> bool {
        MemberMarkFile::read_at(directory, host).unwrap().lacks_records()
    }

    #[test]
    fn loss_is_seen_until_the_member_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        assert!(!mark.exists() && !mark.lacks_records());
        mark.begin().unwrap();
        assert!(!lacks(path, HOST), "a killed process has lost nothing");
        for _ in 0..2 {
            let mut mark = MemberMarkFile::read_at(path, OTHER).unwrap();
            mark.begin().unwrap();
            mark.end().unwrap();
            assert!(mark.lacks_records(), "a further start changes nothing");
        }
        MemberMarkFile::read_at(path, OTHER).unwrap().become_whole().unwrap();
        assert!(!lacks(path, OTHER) && lacks(path, HOST));
    }

    #[test]
    fn clean_end_allows_a_reboot_until_the_next_record() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        mark.begin().unwrap();
        mark.end().unwrap();
        assert!(!lacks(path, OTHER));
        MemberMarkFile::read_at(path, HOST).unwrap().begin().unwrap();
        assert!(lacks(path, OTHER), "the member has confirmed records since");
    }

    #[test]
    fn failed_device_counts_as_a_loss() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        mark.distrust().unwrap();
        assert!(!mark.lacks_records(), "a target outside of groups has confirmed nothing");
        mark.begin().unwrap();
        mark.distrust().unwrap();
        assert!(mark.lacks_records() && lacks(path, HOST));
    }
}

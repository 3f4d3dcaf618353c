//! The mark of the page cache. From this mark, a metadata target learns at its start whether its
//! host may have lost changes that the target has acknowledged. The layout of the mark is in
//! [`skep_format::page_cache_mark`].
//!
//! # Crash rule
//! A primary calls [`PageCacheMarkFile::begin`] before it acknowledges its first change, or, after
//! a loss, when its clients have replayed the lost changes. So if a replay is interrupted, the next
//! start finds the old mark, and waits for the clients again.
//!
//! [`crate::page_cache`] has the identity of the page cache, and the mark of a member of a group.

use crate::atomic::{read_if_exists, replace_atomically};
use crate::failed_sync;
use crate::page_cache::{NO_HOST, host_mark};
use skep_format::chunk::HostMark;
use skep_format::page_cache_mark::PageCacheMark;
use skep_types::Result;
use std::path::{Path, PathBuf};

/// Name of the file with the mark, in the directory of a metadata target.
const MARK: &str = "page-cache-mark";

/// The file that contains the mark of one target.
#[derive(Debug)]
pub struct PageCacheMarkFile {
    path: PathBuf,
    host: HostMark,
    written: Option<PageCacheMark>,
}

impl PageCacheMarkFile {
    /// Reads the mark in the directory of a target. If the device has failed, changes may be lost
    /// although the page cache is the same. The function then first makes a mark durable that names
    /// no page cache. The caller removes the mark of the failed sync only after this call. Blocks.
    ///
    /// # Errors
    /// - Errors of the file system, which name the path.
    /// - `Corrupt` or `Unsupported` if the mark cannot be read.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut file = Self::read_at(directory, host_mark(directory)?)?;
        if failed_sync::is_marked(directory) {
            file.distrust()?;
        }
        Ok(file)
    }

    /// Like [`Self::read`], but takes the identity of the page cache from `host`, and does not
    /// check whether the device has failed.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::read`].
    pub fn read_at(directory: &Path, host: HostMark) -> Result<Self> {
        let path = directory.join(MARK);
        let mark = read_if_exists(&path)?.map(|bytes| PageCacheMark::from_file(&bytes)).transpose();
        let written = mark.map_err(|error| error.within(path.display()))?;
        Ok(Self { path, host, written })
    }

    /// Whether the target may have lost changes that it has acknowledged. A target without a mark
    /// has acknowledged nothing.
    pub fn has_lost_changes(&self) -> bool {
        self.written.is_some_and(|mark| !mark.clean && mark.host != self.host)
    }

    /// Makes the mark of the current page cache durable. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn begin(&mut self) -> Result<()> {
        self.write(PageCacheMark { host: self.host, clean: false })
    }

    /// Stores durably in the mark that acknowledged changes may be lost although the page cache is
    /// the same: the mark names no page cache until the next [`Self::begin`]. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn distrust(&mut self) -> Result<()> {
        self.write(PageCacheMark { host: NO_HOST, clean: false })
    }

    /// At the end of the process, stores durably in the mark that the device has all changes. Does
    /// nothing while the mark names another page cache. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn end(&mut self) -> Result<()> {
        if self.written.is_none_or(|mark| mark.host != self.host) {
            return Ok(());
        }
        self.write(PageCacheMark { host: self.host, clean: true })
    }

    fn write(&mut self, mark: PageCacheMark) -> Result<()> {
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

    #[test]
    fn reboot_may_lose_changes_unless_the_target_ended_cleanly() {
        let directory = tempfile::tempdir().unwrap();
        let at = |host| PageCacheMarkFile::read_at(directory.path(), host).unwrap();
        assert!(!at(HOST).has_lost_changes(), "a new target has acknowledged nothing");
        at(HOST).begin().unwrap();
        assert!(!at(HOST).has_lost_changes(), "a killed process has lost nothing");
        for _ in 0..2 {
            let mut mark = at(OTHER);
            assert!(mark.has_lost_changes(), "the replay has not ended");
            mark.end().unwrap();
        }
        at(OTHER).begin().unwrap();
        assert!(!at(OTHER).has_lost_changes() && at(HOST).has_lost_changes());
        at(OTHER).end().unwrap();
        assert!(!at(HOST).has_lost_changes());
        at(HOST).begin().unwrap();
        assert!(at(OTHER).has_lost_changes(), "the target has acknowledged a later change");
    }

    #[test]
    fn distrusted_mark_reports_lost_changes_until_the_replay_ends() {
        let directory = tempfile::tempdir().unwrap();
        let at = |host| PageCacheMarkFile::read_at(directory.path(), host).unwrap();
        at(HOST).begin().unwrap();
        at(HOST).distrust().unwrap();
        let mut mark = at(HOST);
        assert!(mark.has_lost_changes(), "the same page cache");
        mark.end().unwrap();
        assert!(at(HOST).has_lost_changes(), "the process ended before the end of the replay");
        mark.begin().unwrap();
        assert!(!at(HOST).has_lost_changes());
    }

    #[test]
    fn failed_device_may_lose_changes_in_the_same_page_cache() {
        let directory = tempfile::tempdir().unwrap();
        let read = || PageCacheMarkFile::read(directory.path()).unwrap();
        read().begin().unwrap();
        assert!(!read().has_lost_changes());
        failed_sync::mark(directory.path()).unwrap();
        assert!(read().has_lost_changes());
        let store = directory.path().join("store");
        assert!(failed_sync::read_from_device(directory.path(), &store).unwrap());
        let mut mark = read();
        mark.end().unwrap();
        assert!(mark.has_lost_changes() && read().has_lost_changes(), "the replay has not ended");
        mark.begin().unwrap();
        assert!(!mark.has_lost_changes() && !read().has_lost_changes());
    }
}

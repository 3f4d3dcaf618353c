//! The file `raft-log`: the vote of a member and its copy of the log entries.
//!
//! This module is responsible for the durability and order of votes, entries and truncations. The
//! whole log is also in memory, because management has at most some thousand entries. This module
//! is not responsible for the rules of Raft.
//!
//! # Crash rule
//! The member syncs each write before it begins the next write, and before it sends a reply. So a
//! crash can tear only the records of the last write, for which the member has not sent a reply
//! yet. The next start truncates torn records. Each start also writes the records of the last write
//! again, because the sync of that write may have failed. After a failed sync, the records are only
//! in the page cache and not on the disk. Removed entries stay in the file until a new file without
//! these entries replaces the file.
//!
//! After a failed write the file refuses all further writes, and the process must end. The member
//! reserves disk space before it writes ([`LogFile::reserve`]), so that a full disk does not end
//! the process. A member that cannot reserve the space proposes no command.

use crate::limits::{MIN_RESERVE_BYTES, RESERVE_BYTES};
use crate::log_contents::{Contents, contents_of};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use skep_env::File as RingFile;
use skep_format::consensus::{
    LOG_HEAD_BYTES, LogEntry, LogPosition, LogRecord, RaftLogHead, VoteRecord,
};
use skep_format::log::{LogOwner, RECORD_HEADER_BYTES, Record, encode_record, scan};
use skep_store::atomic::replace_atomically;
use skep_store::failed_sync;
use skep_types::codec::Codec;
use skep_types::{ClusterId, Epoch, Error, ErrorCode, Lsn, Result, TargetId};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Name of the log file in the member's directory.
pub(crate) const LOG_FILE: &str = "raft-log";

/// The open log of one member.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    cluster: ClusterId,
    member: u64,
    file: File,
    end: u64,
    last: Lsn,
    contents: Contents,
    /// Offset up to which the member has reserved disk space for the file.
    reserved: u64,
    has_failed: bool,
}

/// The entries of a log, as read by a process that does not run the member.
#[derive(Debug)]
pub(crate) struct LogContents {
    /// The member to which the log belongs.
    pub(crate) member: u64,
    /// Position of the last entry that a snapshot has replaced. `None` means that all entries since
    /// the first entry are in the file.
    pub(crate) removed: Option<LogPosition>,
    /// The entries after `removed`.
    pub(crate) entries: Vec<LogEntry>,
}

fn next(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw() + 1)
}

fn owner(cluster: ClusterId) -> LogOwner {
    LogOwner { cluster, target: TargetId::new(0) }
}

impl LogFile {
    /// Creates the empty log of a new member.
    ///
    /// # Errors
    /// - `Configuration` if the directory has a log already, because its votes would be lost.
    /// - Errors of the file system.
    pub(crate) fn create(directory: &Path, cluster: ClusterId, member: u64) -> Result<()> {
        Self::create_after(directory, (cluster, member), &Contents::default())
    }

    /// Creates the log of the only member of a new replicated log. The member is the elected leader
    /// of the first term. The member's snapshot ends at the position `first`, and the log begins
    /// after this position.
    ///
    /// # Errors
    /// The errors of [`Self::create`].
    pub(crate) fn found(directory: &Path, cluster: ClusterId, first: LogPosition) -> Result<()> {
        let LogPosition { term, leader, .. } = first;
        let vote = VoteRecord { term, candidate: leader, is_elected: true };
        let contents = Contents { vote: Some(vote), removed: Some(first), ..Contents::default() };
        Self::create_after(directory, (cluster, leader), &contents)
    }

    /// Returns an error if `directory` already contains a log.
    ///
    /// # Errors
    /// `Configuration` if there is a log, and errors of the file system.
    pub(crate) fn refuse_existing(directory: &Path) -> Result<()> {
        let path = directory.join(LOG_FILE);
        if !path.try_exists().map_err(|error| cannot("find", &path, error))? {
            return Ok(());
        }
        let what = format!(
            "cannot create {}: the file exists, and a new file would lose the votes of its member; \
             name an empty directory",
            path.display()
        );
        Err(Error::new(ErrorCode::Configuration, what))
    }

    fn create_after(
        directory: &Path,
        (cluster, member): (ClusterId, u64),
        contents: &Contents,
    ) -> Result<()> {
        Self::refuse_existing(directory)?;
        let path = directory.join(LOG_FILE);
        let file = whole_file(cluster, member, Lsn::new(1), contents)?;
        replace_atomically(&path, &file)
    }

    /// Reads the entries in the log of a directory, and changes nothing. Another process may append
    /// to the log at the same time.
    ///
    /// # Errors
    /// - `Corrupt` with the path of the file if the file is damaged.
    /// - Errors of the file system.
    pub(crate) fn read(directory: &Path, cluster: ClusterId) -> Result<LogContents> {
        let path = directory.join(LOG_FILE);
        let bytes = std::fs::read(&path).map_err(|error| cannot("read", &path, error))?;
        let (head, contents, ..) = parse(&path, cluster, &bytes)?;
        Ok(LogContents {
            member: head.member,
            removed: contents.removed,
            entries: contents.entries.into(),
        })
    }

    /// Opens the log of a member.
    ///
    /// # Errors
    /// - `Corrupt` with the path if the file is missing, and with the offset if synced bytes are
    ///   damaged.
    /// - `Configuration` if the log belongs to another cluster or member.
    /// - Errors of the file system.
    pub(crate) fn open(directory: &Path, cluster: ClusterId, member: u64) -> Result<Self> {
        let path = directory.join(LOG_FILE);
        let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => missing(&path, member),
            _ => cannot("read", &path, error),
        })?;
        let (head, contents, records, scanned_end) = parse(&path, cluster, &bytes)?;
        if head.member != member {
            let what = format!(
                "cannot open {}: the file belongs to member {}; start this member with the \
                 directory of member {member}",
                path.display(),
                head.member,
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
        let (last, synced) = records
            .last()
            .map_or((Lsn::new(head.first.raw() - 1), head.first), |it| (it.lsn, it.synced));
        let of_last_write = records.iter().filter(|record| record.lsn > synced);
        let length: usize =
            of_last_write.map(|record| RECORD_HEADER_BYTES + record.payload.len()).sum();
        let end = LOG_HEAD_BYTES + scanned_end;
        let mut log = Self {
            file: open_file(&path)?,
            path,
            cluster,
            member,
            end: end as u64,
            last,
            contents,
            reserved: 0,
            has_failed: false,
        };
        log.trust_end(bytes.len(), &bytes[end - length..end])?;
        // If the reservation fails, the member refuses commands until it can reserve space.
        let _ = log.reserve();
        Ok(log)
    }

    /// Truncates records that a crash tore, and writes the records of the last write again.
    fn trust_end(&mut self, len: usize, last_write: &[u8]) -> Result<()> {
        if self.end < len as u64 {
            self.file.set_len(self.end)?;
            tracing::info!(
                "{}: removed {} bytes at the end of this log, from byte {} on, since a crash left \
                 an unfinished write at this position",
                self.path.display(),
                len as u64 - self.end,
                self.end
            );
        }
        let file: RingFile = self.file.try_clone()?.into();
        failed_sync::write_again(&file, self.end - last_write.len() as u64, last_write)
            .map_err(|error| cannot("write the last records again in", &self.path, error))
    }

    /// At a start, compares the log with the last position in the snapshot. If a crash left a log
    /// that ends before the snapshot, removes the entries that the snapshot replaces.
    ///
    /// # Errors
    /// - `Corrupt` with the path of the log if entries between log and snapshot are missing, or if
    ///   log and snapshot differ.
    /// - `DeviceFailed` if the removal fails.
    pub(crate) fn join_snapshot(&mut self, snapshot: Option<LogPosition>) -> Result<()> {
        let (removed, last) = (self.removed(), self.last());
        if removed.map(|it| it.index) > snapshot.map(|it| it.index) {
            let end = snapshot.map_or("there is no snapshot".to_owned(), |it| {
                format!("the snapshot ends with entry {}", it.index)
            });
            let removed = removed.map_or(0, |it| it.index);
            return Err(self.unusable(&format!("the log begins after entry {removed}, and {end}")));
        }
        let Some(snapshot) = snapshot else { return Ok(()) };
        let own = self.contents.position_at(snapshot.index);
        if let Some(own) = own.filter(|own| *own != snapshot) {
            return Err(self.unusable(&format!(
                "entry {} is of term {} in the log, and of term {} in the snapshot",
                own.index, own.term, snapshot.term
            )));
        }
        if last.is_none_or(|last| last.index < snapshot.index) {
            // The member's process ended after the member had stored a snapshot from the leader and
            // before it updated the log. The entries in the log may differ from the entries that
            // the snapshot replaces.
            self.remove_up_to(snapshot)?;
        }
        Ok(())
    }

    fn unusable(&self, problem: &str) -> Error {
        let what = format!(
            "cannot open {}: {problem}; restore both files from one copy, or remove this member \
             and add it with a new id",
            self.path.display()
        );
        Error::new(ErrorCode::Corrupt, what)
    }

    /// Returns the vote of the member. `None` means that the member has never voted.
    pub(crate) fn vote(&self) -> Option<VoteRecord> {
        self.contents.vote
    }

    /// Returns the position of the newest entry that was removed from the beginning of the log.
    pub(crate) fn removed(&self) -> Option<LogPosition> {
        self.contents.removed
    }

    /// Returns the position of the last entry, even if the entry was removed.
    pub(crate) fn last(&self) -> Option<LogPosition> {
        self.contents.last()
    }

    /// Returns the entries of the log with an index from `from` to below `end`.
    pub(crate) fn entries(&self, from: u64, end: u64) -> impl Iterator<Item = &LogEntry> {
        let all = &self.contents.entries;
        let begin = all.partition_point(|entry| entry.position.index < from);
        all.range(begin..).take_while(move |entry| entry.position.index < end)
    }

    /// Stores records durably, and applies them.
    ///
    /// # Errors
    /// - `DeviceFailed` if this write or an earlier write failed. The member must then end.
    /// - `TooLarge` if an entry is longer than a record may be. The member writes nothing.
    /// - `Corrupt` if the records are out of order. The member writes nothing.
    pub(crate) fn write(&mut self, records: Vec<LogRecord>) -> Result<()> {
        if self.has_failed {
            return Err(self.failed("an earlier write failed"));
        }
        self.contents.check(&records).map_err(|error| {
            error.within(format_args!("cannot write to {}", self.path.display()))
        })?;
        let synced = self.last;
        let mut last = synced;
        let mut bytes = Vec::new();
        for record in &records {
            last = next(last);
            let payload = record.to_bytes();
            let owner = owner(self.cluster);
            // The epoch of the record stays zero, because each entry contains its term.
            bytes.extend(encode_record(owner, Epoch::default(), last, synced, &payload)?);
        }
        let written = self.file.write_all_at(&bytes, self.end);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            self.has_failed = true;
            return Err(self.failed(&error.to_string()));
        }
        self.end += bytes.len() as u64;
        self.last = last;
        records.into_iter().try_for_each(|record| self.contents.apply(record))
    }

    /// Removes all entries up to `position`, whose effects a durable snapshot contains.
    ///
    /// # Errors
    /// - `DeviceFailed` if this write or an earlier write failed. The member must then end.
    pub(crate) fn remove_up_to(&mut self, position: LogPosition) -> Result<()> {
        if self.has_failed {
            return Err(self.failed("an earlier write failed"));
        }
        let Contents { vote, removed, entries } = &self.contents;
        let left = entries.iter().filter(|entry| entry.position.index > position.index);
        let left = Contents {
            vote: *vote,
            removed: removed.filter(|it| it.index > position.index).or(Some(position)),
            entries: left.cloned().collect(),
        };
        let first = next(self.last);
        let bytes = whole_file(self.cluster, self.member, first, &left)?;
        let replaced = replace_atomically(&self.path, &bytes).and_then(|()| open_file(&self.path));
        match replaced {
            // The disk has no space for the new file, so the path still names the old file. A later
            // call of this function removes the old entries.
            Err(error) if error.code() == ErrorCode::NoSpace && self.has_name() => {
                tracing::warn!(
                    "management cannot remove old entries from its log {}, which grows until its \
                     disk has space: {error}",
                    self.path.display()
                );
                Ok(())
            }
            Ok(file) => {
                self.file = file;
                self.end = bytes.len() as u64;
                self.last = Lsn::new(self.last.raw() + 1 + left.entries.len() as u64);
                self.contents = left;
                self.reserved = 0;
                // If the reservation fails, the member refuses commands until it can reserve space.
                let _ = self.reserve();
                Ok(())
            }
            Err(error) => {
                // The path may already name the new file. Records that the member writes to the old
                // file after this point would be lost.
                self.has_failed = true;
                Err(self.failed(&error.to_string()))
            }
        }
    }

    /// Reserves disk space for a further command, and for the records of the Raft library itself,
    /// whose writes must not fail.
    ///
    /// # Errors
    /// `NoSpace` if the disk, or a quota on it, is full.
    pub(crate) fn reserve(&mut self) -> Result<()> {
        if self.end + MIN_RESERVE_BYTES <= self.reserved {
            return Ok(());
        }
        let keep = FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, keep, self.end, RESERVE_BYTES) {
            Ok(()) => {
                self.reserved = self.end + RESERVE_BYTES;
                Ok(())
            }
            Err(Errno::NOSPC | Errno::DQUOT) => {
                let what = format!(
                    "cannot write to {}: the disk is full; management accepts no changes until \
                     this disk has free space",
                    self.path.display()
                );
                Err(Error::new(ErrorCode::NoSpace, what))
            }
            // The file system does not support `fallocate`. If the disk stays full, a later write
            // fails and ends the member.
            Err(_) => Ok(()),
        }
    }

    /// Whether the path of the log still names the open file.
    fn has_name(&self) -> bool {
        let of_name = std::fs::metadata(&self.path).map(|it| (it.dev(), it.ino()));
        let of_file = self.file.metadata().map(|it| (it.dev(), it.ino()));
        matches!((of_name, of_file), (Ok(name), Ok(file)) if name == file)
    }

    fn failed(&self, problem: &str) -> Error {
        let what = format!(
            "cannot write to {}: {problem}; this member stores no further data until an \
             administrator restarts it",
            self.path.display()
        );
        Error::new(ErrorCode::DeviceFailed, what)
    }
}

/// Parses a log file. Returns its contents, its records, and the end of the last whole record,
/// relative to the end of the head.
fn parse(
    path: &Path,
    cluster: ClusterId,
    bytes: &[u8],
) -> Result<(RaftLogHead, Contents, Vec<Record>, usize)> {
    let head = RaftLogHead::from_file(bytes.get(..LOG_HEAD_BYTES).unwrap_or(bytes))
        .map_err(|error| error.within(path.display()))?;
    if head.cluster != cluster {
        let what = format!(
            "cannot open {}: the file belongs to cluster {}, and this node belongs to cluster \
             {cluster}; start this node with a directory of its own cluster",
            path.display(),
            head.cluster
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    let scanned = scan(owner(cluster), head.first, &bytes[LOG_HEAD_BYTES..]).map_err(|error| {
        error.within(format_args!("cannot read {} after its head", path.display()))
    })?;
    let contents = contents_of(&scanned.records).map_err(|error| {
        Error::new(ErrorCode::Corrupt, format!("cannot use {}: {error}", path.display()))
    })?;
    Ok((head, contents, scanned.records, scanned.end))
}

/// Encodes a whole log file with `contents`. The first record of the file has the LSN `first`.
fn whole_file(cluster: ClusterId, member: u64, first: Lsn, contents: &Contents) -> Result<Vec<u8>> {
    let Contents { vote, removed, entries } = contents;
    let mut bytes = RaftLogHead { cluster, member, first }.to_file();
    let base = LogRecord::Base { vote: *vote, removed: *removed };
    let appended = entries.iter().map(|entry| LogRecord::Append { entry: entry.clone() });
    let mut lsn = first;
    for record in std::iter::once(base).chain(appended) {
        // The member syncs the whole file before it renames the file, so each record counts as
        // synced.
        let record = record.to_bytes();
        bytes.extend(encode_record(owner(cluster), Epoch::default(), lsn, lsn, &record)?);
        lsn = next(lsn);
    }
    Ok(bytes)
}

fn open_file(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|error| cannot("open", path, error))
}

fn missing(path: &Path, member: u64) -> Error {
    let what = format!(
        "cannot open {}: the file is missing. Without the votes in this file, member {member} \
         could vote twice in one election. Restore the file, or remove this member and add it with \
         a new id",
        path.display()
    );
    Error::new(ErrorCode::Corrupt, what)
}

fn cannot(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::from(error).within(format_args!("cannot {what} {}", path.display()))
}

#[cfg(test)]
mod tests;

//! The file `raft-log`: the vote of a member and its part of the replicated log.
//!
//! Owns the durability and order of votes, entries and truncations. All of the log is also in
//! memory, since management keeps at most some thousand entries. Does not own the rules of Raft.
//!
//! # Crash rule
//! Every write is synced before the next one begins, and before the member sends a reply. So a
//! crash can tear only the records of the last write, to which the member has not replied: the
//! next start truncates them. A start also writes the records of the last write again: if its sync
//! failed, the page cache may have them although the disk does not. Removed entries leave the file
//! when it is replaced as a whole.
//!
//! After a failed write the file refuses all further writes, and the process must end.

use skep_env::File as RingFile;
use skep_format::consensus::{
    LOG_HEAD_BYTES, LogEntry, LogPosition, LogRecord, RaftLogHead, VoteRecord,
};
use skep_format::log::{LogOwner, RECORD_HEADER_BYTES, Record, encode_record, scan};
use skep_store::atomic::replace_atomically;
use skep_store::failed_sync;
use skep_types::codec::Codec;
use skep_types::{ClusterId, Epoch, Error, ErrorCode, Lsn, Result, TargetId};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the file.
const LOG_FILE: &str = "raft-log";

/// The contents of the log in memory.
#[derive(Debug, Default)]
struct Contents {
    vote: Option<VoteRecord>,
    removed: Option<LogPosition>,
    /// The entries in ascending order of index, without gaps.
    entries: VecDeque<LogEntry>,
}

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
    has_failed: bool,
}

fn next(lsn: Lsn) -> Lsn {
    Lsn::new(lsn.raw() + 1)
}

fn owner(cluster: ClusterId) -> LogOwner {
    LogOwner { cluster, target: TargetId::new(0) }
}

impl Contents {
    /// Applies a record of the file.
    fn apply(&mut self, record: LogRecord) -> Result<()> {
        match record {
            LogRecord::Vote { vote } => self.vote = Some(vote),
            LogRecord::Append { entry } => {
                let last = self.last().map(|last| last.index);
                if last.is_some_and(|last| last + 1 != entry.position.index) {
                    let what = format!("entry {} follows {last:?}", entry.position.index);
                    return Err(Error::new(ErrorCode::Corrupt, what));
                }
                self.entries.push_back(entry);
            }
            LogRecord::Truncate { from } => {
                while self.entries.back().is_some_and(|it| it.position.index >= from) {
                    self.entries.pop_back();
                }
            }
            LogRecord::Base { vote, removed } => *self = Self { vote, removed, ..Self::default() },
        }
        Ok(())
    }

    /// Returns the position of the last entry, also if it was removed.
    fn last(&self) -> Option<LogPosition> {
        self.entries.back().map(|entry| entry.position).or(self.removed)
    }
}

impl LogFile {
    /// Opens the log of a member. Creates an empty one if the directory has none.
    ///
    /// # Errors
    /// - `Corrupt` with file and offset if synced bytes are damaged.
    /// - `Configuration` if the log belongs to another cluster or member.
    /// - Errors of the file system.
    pub(crate) fn open(directory: &Path, cluster: ClusterId, member: u64) -> Result<Self> {
        let path = directory.join(LOG_FILE);
        if !path.try_exists().map_err(|error| cannot("find", &path, error))? {
            let first = Lsn::new(1);
            let bytes = whole_file(cluster, member, first, &Contents::default())?;
            replace_atomically(&path, &bytes)?;
        }
        let bytes = std::fs::read(&path).map_err(|error| cannot("read", &path, error))?;
        let head = RaftLogHead::from_file(bytes.get(..LOG_HEAD_BYTES).unwrap_or(&bytes))
            .map_err(|error| error.within(path.display()))?;
        if (head.cluster, head.member) != (cluster, member) {
            let what = format!(
                "cannot open {}: it belongs to member {} of cluster {}; a directory belongs to one \
                 member for ever, so start with the directory of member {member}",
                path.display(),
                head.member,
                head.cluster
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
        let scanned = scan(owner(cluster), head.first, &bytes[LOG_HEAD_BYTES..])
            .map_err(|error| error.within(format_args!("{} (after its head)", path.display())))?;
        let contents = contents_of(&scanned.records).map_err(|error| {
            Error::new(ErrorCode::Corrupt, format!("{}: {error}", path.display()))
        })?;
        let (last, synced) = scanned
            .records
            .last()
            .map_or((Lsn::new(head.first.raw() - 1), head.first), |it| (it.lsn, it.synced));
        let of_last_write = scanned.records.iter().filter(|record| record.lsn > synced);
        let length: usize =
            of_last_write.map(|record| RECORD_HEADER_BYTES + record.payload.len()).sum();
        let end = LOG_HEAD_BYTES + scanned.end;
        let mut log = Self {
            file: open_file(&path)?,
            path,
            cluster,
            member,
            end: end as u64,
            last,
            contents,
            has_failed: false,
        };
        log.trust_end(bytes.len(), &bytes[end - length..end])?;
        Ok(log)
    }

    /// Truncates what a crash tore, and writes the records of the last write again.
    fn trust_end(&mut self, len: usize, last_write: &[u8]) -> Result<()> {
        if self.end < len as u64 {
            tracing::warn!(
                "{}: truncated {} bytes of an unfinished write at byte {}, which a crash left",
                self.path.display(),
                len as u64 - self.end,
                self.end
            );
            self.file.set_len(self.end)?;
        }
        let file: RingFile = self.file.try_clone()?.into();
        failed_sync::write_again(&file, self.end - last_write.len() as u64, last_write)
            .map_err(|error| cannot("write the last records again in", &self.path, error))
    }

    /// Returns the vote.
    pub(crate) fn vote(&self) -> Option<VoteRecord> {
        self.contents.vote
    }

    /// Returns the position of the last removed entry.
    pub(crate) fn removed(&self) -> Option<LogPosition> {
        self.contents.removed
    }

    /// Returns the position of the last entry, also if it was removed.
    pub(crate) fn last(&self) -> Option<LogPosition> {
        self.contents.last()
    }

    /// Returns the entries with an index from `from` to below `end` that the log has.
    pub(crate) fn entries(&self, from: u64, end: u64) -> impl Iterator<Item = &LogEntry> {
        let all = &self.contents.entries;
        let begin = all.partition_point(|entry| entry.position.index < from);
        all.range(begin..).take_while(move |entry| entry.position.index < end)
    }

    /// Stores records durably, and applies them.
    ///
    /// # Errors
    /// - `DeviceFailed` if this write or an earlier one failed. The member must end then.
    /// - `TooLarge` if an entry is longer than a record may be.
    pub(crate) fn write(&mut self, records: Vec<LogRecord>) -> Result<()> {
        if self.has_failed {
            return Err(self.failed("a write failed before"));
        }
        let synced = self.last;
        let mut last = synced;
        let mut bytes = Vec::new();
        for record in &records {
            last = next(last);
            let payload = record.to_bytes();
            let owner = owner(self.cluster);
            // The epoch stays zero: the term is part of each entry.
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
    /// - `DeviceFailed` if this write or an earlier one failed. The member must end then.
    pub(crate) fn remove_up_to(&mut self, position: LogPosition) -> Result<()> {
        if self.has_failed {
            return Err(self.failed("a write failed before"));
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
            Ok(file) => {
                self.file = file;
                self.end = bytes.len() as u64;
                self.last = Lsn::new(self.last.raw() + 1 + left.entries.len() as u64);
                self.contents = left;
                Ok(())
            }
            Err(error) => {
                // The name may lead to the new file already. Records in the old file would be lost.
                self.has_failed = true;
                Err(self.failed(&error.to_string()))
            }
        }
    }

    fn failed(&self, problem: &str) -> Error {
        let what = format!(
            "{}: {problem}; this member stores nothing more until it is started again",
            self.path.display()
        );
        Error::new(ErrorCode::DeviceFailed, what)
    }
}

/// Returns the contents of the log after all records of its file.
fn contents_of(records: &[Record]) -> Result<Contents> {
    if records.is_empty() {
        let what = "the first record is damaged; remove this member and add it with a new id";
        return Err(Error::new(ErrorCode::Corrupt, what));
    }
    let mut contents = Contents::default();
    for record in records {
        LogRecord::from_bytes(&record.payload)
            .and_then(|it| contents.apply(it))
            .map_err(|error| error.within(format_args!("record {}", record.lsn)))?;
    }
    Ok(contents)
}

/// Encodes a file with these contents, whose first record has the number `first`.
fn whole_file(cluster: ClusterId, member: u64, first: Lsn, contents: &Contents) -> Result<Vec<u8>> {
    let Contents { vote, removed, entries } = contents;
    let mut bytes = RaftLogHead { cluster, member, first }.to_file();
    let base = LogRecord::Base { vote: *vote, removed: *removed };
    let appended = entries.iter().map(|entry| LogRecord::Append { entry: entry.clone() });
    let mut lsn = first;
    for record in std::iter::once(base).chain(appended) {
        // The file is synced as a whole before it gets its name.
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

fn cannot(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::from(error).within(format_args!("cannot {what} {}", path.display()))
}

#[cfg(test)]
mod tests;

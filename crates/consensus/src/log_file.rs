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
//!
//! # Order
//! Indexes rise by one, and terms never fall. Records that would break this order are refused
//! before they are written: the next start would refuse the whole file.

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
                check_follows(self.last(), entry.position)?;
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

    /// Returns the position of an entry. `None` means that the log does not have this entry, or
    /// has removed it together with a later one.
    fn position_at(&self, index: u64) -> Option<LogPosition> {
        let at = self.entries.partition_point(|entry| entry.position.index < index);
        let entry = self.entries.get(at).map(|entry| entry.position);
        entry.into_iter().chain(self.removed).find(|position| position.index == index)
    }

    /// Checks that records may be written: each of them can be applied after the records before it.
    fn check(&self, records: &[LogRecord]) -> Result<()> {
        let mut last = self.last();
        // Positions of the entries that the records append.
        let mut appended: Vec<LogPosition> = Vec::new();
        for record in records {
            match record {
                LogRecord::Vote { .. } => {}
                LogRecord::Append { entry } => {
                    check_follows(last, entry.position)?;
                    appended.push(entry.position);
                    last = Some(entry.position);
                }
                LogRecord::Truncate { from } => {
                    if self.removed.is_some_and(|removed| *from <= removed.index) {
                        let what = format!("truncation at {from}, which a snapshot contains");
                        return Err(Error::new(ErrorCode::Corrupt, what));
                    }
                    appended.retain(|position| position.index < *from);
                    let stays = |entry: &&LogEntry| entry.position.index < *from;
                    let stored = self.entries.iter().rev().find(stays).map(|it| it.position);
                    last = appended.last().copied().or(stored).or(self.removed);
                }
                LogRecord::Base { .. } => {
                    let what = "a base record follows another record";
                    return Err(Error::new(ErrorCode::Corrupt, what));
                }
            }
        }
        Ok(())
    }
}

/// Checks that an entry at `next` may follow the entry at `last`. `None` means that the log is
/// empty.
pub(crate) fn check_follows(last: Option<LogPosition>, next: LogPosition) -> Result<()> {
    let Some(last) = last else { return Ok(()) };
    let is_later = next.term > last.term || (next.term, next.leader) == (last.term, last.leader);
    if is_later && last.index.checked_add(1) == Some(next.index) {
        return Ok(());
    }
    let shown = |it: LogPosition| format!("{} of term {}", it.index, it.term);
    let what = format!("entry {} follows entry {}", shown(next), shown(last));
    Err(Error::new(ErrorCode::Corrupt, what))
}

impl LogFile {
    /// Creates the empty log of a new member.
    ///
    /// # Errors
    /// - `Configuration` if the directory has a log already: a new log would lack its votes.
    /// - Errors of the file system.
    pub(crate) fn create(directory: &Path, cluster: ClusterId, member: u64) -> Result<()> {
        let path = directory.join(LOG_FILE);
        if path.try_exists().map_err(|error| cannot("find", &path, error))? {
            let what = format!(
                "cannot create {}: it exists, and a new one would lose the votes of its member; \
                 name an empty directory",
                path.display()
            );
            return Err(Error::new(ErrorCode::Configuration, what));
        }
        let empty = whole_file(cluster, member, Lsn::new(1), &Contents::default())?;
        replace_atomically(&path, &empty)
    }

    /// Opens the log of a member.
    ///
    /// # Errors
    /// - `Corrupt` with the file if it is missing, and with the offset if synced bytes are damaged.
    /// - `Configuration` if the log belongs to another cluster or member.
    /// - Errors of the file system.
    pub(crate) fn open(directory: &Path, cluster: ClusterId, member: u64) -> Result<Self> {
        let path = directory.join(LOG_FILE);
        let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => missing(&path, member),
            _ => cannot("read", &path, error),
        })?;
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

    /// Compares the log with the end of the snapshot at a start, and removes the entries that the
    /// snapshot replaces if a crash has left a gap between both.
    ///
    /// # Errors
    /// - `Corrupt` with the file if entries are missing between both, or if both differ.
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
            // The member ended after it had stored a snapshot of the leader, before the log
            // followed. The entries in the log need not be those in the snapshot.
            self.remove_up_to(snapshot)?;
        }
        Ok(())
    }

    fn unusable(&self, problem: &str) -> Error {
        let what = format!(
            "{}: {problem}; put back both files of one copy, or remove this member and add it with \
             a new id",
            self.path.display()
        );
        Error::new(ErrorCode::Corrupt, what)
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
    /// - `TooLarge` if an entry is longer than a record may be. Nothing is written.
    /// - `Corrupt` if the records are out of order. Nothing is written.
    pub(crate) fn write(&mut self, records: Vec<LogRecord>) -> Result<()> {
        if self.has_failed {
            return Err(self.failed("a write failed before"));
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

fn missing(path: &Path, member: u64) -> Error {
    let what = format!(
        "cannot open {}: it is missing. Without its votes, member {member} could vote twice in one \
         election. Put back the file, or remove this member and add it with a new id",
        path.display()
    );
    Error::new(ErrorCode::Corrupt, what)
}

fn cannot(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::from(error).within(format_args!("cannot {what} {}", path.display()))
}

#[cfg(test)]
mod tests;

//! The contents of a log in memory, and the required order of its records.
//!
//! # Order
//! From entry to entry, the index rises by one, and the term never falls. Before a write, the log
//! refuses records that would break this order, because the next start would refuse the whole file.
//! This module is not responsible for the file ([`crate::log_file`]).

use skep_format::consensus::{LogEntry, LogPosition, LogRecord, VoteRecord};
use skep_format::log::Record;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Result};
use std::collections::VecDeque;

/// The contents of the log in memory.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) vote: Option<VoteRecord>,
    pub(crate) removed: Option<LogPosition>,
    /// The entries in ascending order of index, without gaps.
    pub(crate) entries: VecDeque<LogEntry>,
}

impl Contents {
    /// Applies a record of the file.
    pub(crate) fn apply(&mut self, record: LogRecord) -> Result<()> {
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

    /// Returns the position of the last entry, even if the entry was removed.
    pub(crate) fn last(&self) -> Option<LogPosition> {
        self.entries.back().map(|entry| entry.position).or(self.removed)
    }

    /// Returns the position of an entry. `None` means that the log does not have this entry, or
    /// that the log has removed this entry and a later entry.
    pub(crate) fn position_at(&self, index: u64) -> Option<LogPosition> {
        let at = self.entries.partition_point(|entry| entry.position.index < index);
        let entry = self.entries.get(at).map(|entry| entry.position);
        entry.into_iter().chain(self.removed).find(|position| position.index == index)
    }

    /// Checks that each of `records` can be applied after the log's contents and the preceding
    /// `records`.
    pub(crate) fn check(&self, records: &[LogRecord]) -> Result<()> {
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
                        let what = format!(
                            "a record of the log removes entry {from} and all entries after it, \
                             although the snapshot contains this entry"
                        );
                        return Err(Error::new(ErrorCode::Corrupt, what));
                    }
                    appended.retain(|position| position.index < *from);
                    let stays = |entry: &&LogEntry| entry.position.index < *from;
                    let stored = self.entries.iter().rev().find(stays).map(|it| it.position);
                    last = appended.last().copied().or(stored).or(self.removed);
                }
                LogRecord::Base { .. } => {
                    let what = "the record that begins the log follows another record";
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
    let what = format!("entry {} cannot follow entry {}", shown(next), shown(last));
    Err(Error::new(ErrorCode::Corrupt, what))
}

/// Returns the contents of the log that result from all records of its file.
pub(crate) fn contents_of(records: &[Record]) -> Result<Contents> {
    if records.is_empty() {
        let what = "the first record is damaged; remove this member and add it with a new id";
        return Err(Error::new(ErrorCode::Corrupt, what));
    }
    let mut contents = Contents::default();
    for record in records {
        LogRecord::from_bytes(&record.payload)
            .and_then(|it| contents.apply(it))
            .map_err(|error| error.within(format_args!("cannot use record {}", record.lsn)))?;
    }
    Ok(contents)
}

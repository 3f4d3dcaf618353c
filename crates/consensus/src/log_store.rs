//! The log of a member, as the Raft library uses it.
//!
//! The library calls the log from several tasks of one thread. Each call is carried out as a whole
//! before the next one begins, so writes keep their order. Does not own the file ([`LogFile`]).

use crate::log_file::LogFile;
use crate::raft_types::{
    Entry, LogId, StorageError, Types, entry_of, log_id_of, position_of, record_of_entry,
    record_of_vote, vote_of,
};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader, StorageIOError, Vote};
use skep_format::consensus::LogRecord;
use skep_types::Result;
use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

/// A handle to the log of a member.
#[derive(Debug, Clone)]
pub(crate) struct LogStore(Rc<RefCell<LogFile>>);

impl LogStore {
    pub(crate) fn new(file: LogFile) -> Self {
        Self(Rc::new(RefCell::new(file)))
    }

    fn write(&self, records: Vec<LogRecord>) -> Result<()> {
        self.0.borrow_mut().write(records)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> std::result::Result<Vec<Entry>, StorageError> {
        let from = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.0.borrow().entries(from, end).cloned().map(entry_of).collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> std::result::Result<LogState<Types>, StorageError> {
        let log = self.0.borrow();
        let id = |position: Option<_>| position.as_ref().map(log_id_of);
        Ok(LogState { last_purged_log_id: id(log.removed()), last_log_id: id(log.last()) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> std::result::Result<(), StorageError> {
        let record = LogRecord::Vote { vote: record_of_vote(vote) };
        self.write(vec![record]).map_err(|error| StorageIOError::write_vote(&error).into())
    }

    async fn read_vote(&mut self) -> std::result::Result<Option<Vote<u64>>, StorageError> {
        Ok(self.0.borrow().vote().as_ref().map(vote_of))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        flushed: LogFlushed<Types>,
    ) -> std::result::Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        // A snapshot contains the effects of removed entries, so they are not stored again.
        let removed = self.0.borrow().removed().map(|removed| removed.index);
        let is_needed = |entry: &Entry| removed.is_none_or(|removed| entry.log_id.index > removed);
        let record = |entry: Entry| LogRecord::Append { entry: record_of_entry(&entry) };
        let written = self.write(entries.into_iter().filter(is_needed).map(record).collect());
        if let Err(error) = written {
            flushed.log_io_completed(Err(std::io::Error::other(error.to_string())));
            return Err(StorageIOError::write_logs(&error).into());
        }
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, id: LogId) -> std::result::Result<(), StorageError> {
        let record = LogRecord::Truncate { from: id.index };
        self.write(vec![record]).map_err(|error| StorageIOError::write_logs(&error).into())
    }

    async fn purge(&mut self, id: LogId) -> std::result::Result<(), StorageError> {
        let removed = self.0.borrow_mut().remove_up_to(position_of(&id));
        removed.map_err(|error| StorageIOError::write_logs(&error).into())
    }
}

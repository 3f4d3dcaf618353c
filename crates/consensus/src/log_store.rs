//! The log of a member, in the form that the Raft library uses.
//!
//! The library calls the log from several tasks of one thread. Each call ends before the next call
//! begins, so writes keep their order. Only [`RaftLogStorage::purge`] may wait for a snapshot
//! before it changes the log. This module is not responsible for the file ([`LogFile`]).

use crate::log_file::LogFile;
use crate::raft_types::{
    Entry, LogId, StorageError, Types, entry_of, log_id_of, position_of, record_of_entry,
    record_of_vote, vote_of,
};
use crate::snapshot_end::SnapshotEnd;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader, StorageIOError, Vote};
use skep_format::consensus::{LogPosition, LogRecord};
use skep_types::Result;
use std::cell::RefCell;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

/// A handle to the log of a member.
#[derive(Debug, Clone)]
pub(crate) struct LogStore {
    file: Rc<RefCell<LogFile>>,
    /// The last entry whose effect the durable snapshot contains. The log removes no entry after
    /// this entry.
    snapshot_end: SnapshotEnd,
}

impl LogStore {
    pub(crate) fn new(file: LogFile, snapshot_end: SnapshotEnd) -> Self {
        Self { file: Rc::new(RefCell::new(file)), snapshot_end }
    }

    /// Reserves disk space for a further command.
    ///
    /// # Errors
    /// `NoSpace` if the disk is full.
    pub(crate) fn reserve(&self) -> Result<()> {
        self.file.borrow_mut().reserve()
    }

    fn write(&self, records: Vec<LogRecord>) -> Result<()> {
        self.file.borrow_mut().write(records)
    }

    /// Removes the entries up to `position` as soon as a durable snapshot contains their effects.
    async fn remove_up_to(&self, position: LogPosition) -> Result<()> {
        self.snapshot_end.reached(position.index).await?;
        self.file.borrow_mut().remove_up_to(position)
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
        Ok(self.file.borrow().entries(from, end).cloned().map(entry_of).collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> std::result::Result<LogState<Types>, StorageError> {
        let log = self.file.borrow();
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
        Ok(self.file.borrow().vote().as_ref().map(vote_of))
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
        // A snapshot contains the effects of removed entries, so the log does not store these
        // entries again.
        let removed = self.file.borrow().removed().map(|removed| removed.index);
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
        let removed = self.remove_up_to(position_of(&id)).await;
        removed.map_err(|error| StorageIOError::write_logs(&error).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::poll_once;
    use skep_env::block_on;
    use skep_format::consensus::{EntryContent, LogEntry};
    use skep_types::{ClusterId, Error, ErrorCode};
    use std::pin::pin;

    const CLUSTER: ClusterId = ClusterId::new([9; 16]);

    fn position(index: u64) -> LogPosition {
        LogPosition { term: 1, leader: 1, index }
    }

    #[test]
    fn log_entries_stay_until_the_snapshot_is_durable() {
        block_on(async {
            let directory = tempfile::tempdir().unwrap();
            LogFile::create(directory.path(), CLUSTER, 1).unwrap();
            let open = || LogFile::open(directory.path(), CLUSTER, 1).unwrap();
            let count = || open().entries(0, u64::MAX).count();
            let (end, mut file) = (SnapshotEnd::default(), open());
            let entry =
                |index| LogEntry { position: position(index), content: EntryContent::Blank };
            file.write((0..4).map(|index| LogRecord::Append { entry: entry(index) }).collect())
                .unwrap();
            let store = LogStore::new(file, end.clone());
            let mut first = pin!(store.remove_up_to(position(2)));
            end.advance(1);
            assert!(poll_once(&mut first).await.is_none(), "the snapshot lacks entry 2");
            assert_eq!(count(), 4);
            end.advance(2);
            first.await.unwrap();
            assert_eq!(count(), 1);
            let mut second = pin!(store.remove_up_to(position(3)));
            assert!(poll_once(&mut second).await.is_none());
            end.fail(&Error::new(ErrorCode::DeviceFailed, "no sync"));
            assert_eq!(second.await.unwrap_err().code(), ErrorCode::DeviceFailed);
            assert_eq!(count(), 1);
        })
        .unwrap();
    }
}

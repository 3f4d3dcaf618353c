//! The state machine of the application, and its snapshots in the file `raft-snapshot`.
//!
//! This module is responsible for the position up to which the state machine has applied the log,
//! and the members at this position. The application owns the state itself ([`StateMachine`]).
//!
//! # Crash rule
//! The state is only in memory. A start restores the state from the snapshot. The member applies
//! each entry after the snapshot again, as soon as the commit index covers the entry. A snapshot
//! replaces the snapshot file atomically, and is durable before the log removes entries
//! ([`SnapshotEnd`]).

use crate::limits::MAX_SNAPSHOT_BYTES;
use crate::raft_types::{
    Entry, LogId, OutcomeBytes, SnapshotMeta, StorageError, StoredMembers, Types, log_id_of,
    members_of, position_of, record_of_members,
};
use crate::snapshot_end::SnapshotEnd;
use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot, StorageIOError};
use skep_format::consensus::{LogPosition, MembersRecord, RaftSnapshot};
use skep_store::atomic::replace_atomically;
use skep_types::codec::Bytes;
use skep_types::{ClusterId, Error, ErrorCode, Result};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Name of the snapshot file in the member's directory.
pub(crate) const SNAPSHOT_FILE: &str = "raft-snapshot";

/// The state machine of the application. All members apply the same commands in the same order, so
/// the same command in the same state must always result in the same state and outcome.
pub trait StateMachine: 'static {
    /// Applies a committed command, and returns its outcome. The member that has proposed the
    /// command returns the outcome to its caller.
    ///
    /// # Errors
    /// Returns an error if the member cannot decode the command, because a newer program has
    /// proposed it. The member then ends.
    fn apply(&mut self, position: LogPosition, command: &[u8]) -> Result<Vec<u8>>;

    /// Encodes the state.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the state by the encoded state `state`.
    ///
    /// # Errors
    /// Returns `Corrupt` if the bytes do not encode a state. After such an error, the state machine
    /// is unchanged.
    fn restore(&mut self, state: &[u8]) -> Result<()>;
}

struct Inner<S> {
    machine: S,
    applied: Option<LogId>,
    members: StoredMembers,
    path: PathBuf,
    cluster: ClusterId,
    /// The contents of the snapshot file.
    snapshot: Option<RaftSnapshot>,
    /// A handle that reports the end of the durable snapshot to the log.
    end: SnapshotEnd,
}

/// A handle to the state machine of a member.
pub(crate) struct StateStore<S>(Rc<RefCell<Inner<S>>>);

impl<S> Clone for StateStore<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: StateMachine> StateStore<S> {
    /// Restores the state machine from the snapshot file, if this file exists.
    ///
    /// # Errors
    /// - `Corrupt` if the file is damaged or belongs to another cluster.
    /// - Errors of the file system.
    pub(crate) fn open(directory: &Path, cluster: ClusterId, machine: S) -> Result<Self> {
        let path = directory.join(SNAPSHOT_FILE);
        let mut inner = Inner {
            machine,
            applied: None,
            members: StoredMembers::default(),
            path,
            cluster,
            snapshot: None,
            end: SnapshotEnd::default(),
        };
        match std::fs::read(&inner.path) {
            Ok(bytes) => {
                let restored = RaftSnapshot::from_file(&bytes).and_then(|it| {
                    inner.restore(&it)?;
                    inner.snapshot = Some(it);
                    Ok(())
                });
                restored.map_err(|error| error.within(inner.path.display()))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::from(error).within(inner.path.display())),
        }
        inner.note_end();
        Ok(Self(Rc::new(RefCell::new(inner))))
    }

    /// Returns the position of the last entry whose effect the snapshot file contains.
    pub(crate) fn snapshot_position(&self) -> Option<LogPosition> {
        self.0.borrow().snapshot.as_ref().and_then(|snapshot| snapshot.last)
    }

    /// Returns a handle to the end of the durable snapshot. Each new snapshot advances this end.
    pub(crate) fn snapshot_end(&self) -> SnapshotEnd {
        self.0.borrow().end.clone()
    }

    /// Calls `read` with the state machine of the application.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&self.0.borrow().machine)
    }
}

impl<S: StateMachine> Inner<S> {
    fn restore(&mut self, snapshot: &RaftSnapshot) -> Result<()> {
        if snapshot.cluster != self.cluster {
            let what = format!(
                "cannot use the snapshot: this snapshot belongs to cluster {}",
                snapshot.cluster
            );
            return Err(Error::new(ErrorCode::Corrupt, what));
        }
        self.machine.restore(&snapshot.state.0)?;
        let meta = meta_of(snapshot);
        self.applied = meta.last_log_id;
        self.members = meta.last_membership;
        Ok(())
    }

    fn apply(&mut self, entry: Entry) -> Result<OutcomeBytes> {
        let outcome = match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Normal(command) => {
                let applied = self.machine.apply(position_of(&entry.log_id), &command.0);
                Some(applied.map_err(|error| {
                    error.within(format_args!("cannot apply entry {}", entry.log_id.index))
                })?)
            }
            EntryPayload::Membership(members) => {
                self.members = StoredMembers::new(Some(entry.log_id), members);
                None
            }
        };
        self.applied = Some(entry.log_id);
        Ok(outcome)
    }

    /// Replaces the snapshot file by `snapshot`. The state machine has already applied all entries
    /// whose effects `snapshot` contains.
    fn store(&mut self, snapshot: RaftSnapshot) -> Result<()> {
        let stored = file_of(&snapshot).and_then(|file| replace_atomically(&self.path, &file));
        match stored {
            Ok(()) => {
                self.snapshot = Some(snapshot);
                self.note_end();
                Ok(())
            }
            Err(error) => {
                let error = error.within(format_args!("cannot store {}", self.path.display()));
                if error.code() != ErrorCode::NoSpace || self.snapshot.is_none() {
                    self.end.fail(&error);
                }
                Err(error)
            }
        }
    }

    /// Reports to the log the last entry whose effect the snapshot file contains.
    fn note_end(&self) {
        if let Some(last) = self.snapshot.as_ref().and_then(|snapshot| snapshot.last) {
            self.end.advance(last.index);
        }
    }

    /// Encodes the current state.
    fn snapshot_now(&self) -> RaftSnapshot {
        let last = self.applied.as_ref().map(position_of);
        RaftSnapshot {
            cluster: self.cluster,
            last,
            members_at: self.members.log_id().as_ref().map(position_of),
            members: record_of_members(self.members.membership()),
            name: last.map_or("empty".into(), |last| format!("{}-{}", last.term, last.index)),
            state: Bytes(self.machine.snapshot()),
        }
    }
}

/// Encodes the snapshot file.
///
/// # Errors
/// `TooLarge` if the state exceeds the maximum length of a snapshot. A reader would refuse a longer
/// snapshot file.
fn file_of(snapshot: &RaftSnapshot) -> Result<Vec<u8>> {
    let len = snapshot.state.0.len() as u64;
    if len > MAX_SNAPSHOT_BYTES {
        let what = format!(
            "cannot write a snapshot: the state has {len} bytes, and the limit is \
             {MAX_SNAPSHOT_BYTES}; remove unused clients and servers from the cluster"
        );
        return Err(Error::new(ErrorCode::TooLarge, what));
    }
    Ok(snapshot.to_file())
}

/// Writes the snapshot of `machine` into a directory without a member. `last` is the position of
/// the last entry that the state contains.
///
/// # Errors
/// - `TooLarge` if the state exceeds the maximum length of a snapshot.
/// - Errors of the file system.
pub(crate) fn write_snapshot<S: StateMachine>(
    directory: &Path,
    (cluster, last): (ClusterId, LogPosition),
    members: MembersRecord,
    machine: &S,
) -> Result<()> {
    let snapshot = RaftSnapshot {
        cluster,
        last: Some(last),
        members_at: Some(last),
        members,
        name: format!("{}-{}", last.term, last.index),
        state: Bytes(machine.snapshot()),
    };
    replace_atomically(&directory.join(SNAPSHOT_FILE), &file_of(&snapshot)?)
}

/// Reads the snapshot in a directory. `None` means that the directory has no snapshot.
///
/// # Errors
/// - `Corrupt` if the file is damaged or belongs to another cluster.
/// - Errors of the file system.
pub(crate) fn read_snapshot(directory: &Path, cluster: ClusterId) -> Result<Option<RaftSnapshot>> {
    let path = directory.join(SNAPSHOT_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::from(error).within(path.display())),
    };
    let snapshot = RaftSnapshot::from_file(&bytes).map_err(|error| error.within(path.display()))?;
    if snapshot.cluster != cluster {
        let what = format!(
            "cannot use {}: the file belongs to cluster {}, and this node belongs to cluster \
             {cluster}; start this node with a directory of its own cluster",
            path.display(),
            snapshot.cluster
        );
        return Err(Error::new(ErrorCode::Corrupt, what));
    }
    Ok(Some(snapshot))
}

fn meta_of(snapshot: &RaftSnapshot) -> SnapshotMeta {
    let members_at = snapshot.members_at.as_ref().map(log_id_of);
    SnapshotMeta {
        last_log_id: snapshot.last.as_ref().map(log_id_of),
        last_membership: StoredMembers::new(members_at, members_of(&snapshot.members)),
        snapshot_id: snapshot.name.clone(),
    }
}

fn library_snapshot(snapshot: &RaftSnapshot) -> Snapshot<Types> {
    Snapshot { meta: meta_of(snapshot), snapshot: Box::new(snapshot.state.0.clone()) }
}

/// Stores a copy of the state as the snapshot file.
pub(crate) struct SnapshotWriter<S> {
    store: StateStore<S>,
    snapshot: RaftSnapshot,
}

impl<S: StateMachine> RaftSnapshotBuilder<Types> for SnapshotWriter<S> {
    async fn build_snapshot(&mut self) -> std::result::Result<Snapshot<Types>, StorageError> {
        let mut inner = self.store.0.borrow_mut();
        let index = |snapshot: &RaftSnapshot| snapshot.last.map(|last| last.index);
        let is_newer = |it: &&RaftSnapshot| index(it) > index(&self.snapshot);
        if let Some(newer) = inner.snapshot.as_ref().filter(is_newer) {
            // While this task wrote the snapshot, the leader has sent a newer snapshot.
            return Ok(library_snapshot(newer));
        }
        match inner.store(self.snapshot.clone()) {
            Ok(()) => Ok(library_snapshot(&self.snapshot)),
            // The disk has no space for the new snapshot. The member continues with the previous
            // snapshot, which together with the log represents the same state.
            Err(error) if error.code() == ErrorCode::NoSpace && inner.snapshot.is_some() => {
                tracing::warn!(
                    "management cannot write a snapshot, so its log grows until its disk has \
                     space: {error}"
                );
                Ok(inner
                    .snapshot
                    .as_ref()
                    .map(library_snapshot)
                    .expect("the guard has checked the snapshot"))
            }
            Err(error) => Err(StorageIOError::write_snapshot(None, &error).into()),
        }
    }
}

impl<S: StateMachine> RaftStateMachine<Types> for StateStore<S> {
    type SnapshotBuilder = SnapshotWriter<S>;

    async fn applied_state(
        &mut self,
    ) -> std::result::Result<(Option<LogId>, StoredMembers), StorageError> {
        let inner = self.0.borrow();
        Ok((inner.applied, inner.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> std::result::Result<Vec<OutcomeBytes>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut inner = self.0.borrow_mut();
        let mut outcomes = Vec::new();
        for entry in entries {
            let id = entry.log_id;
            outcomes.push(inner.apply(entry).map_err(|error| {
                tracing::error!(
                    "management stops, since this node cannot apply an entry of its log: {error}"
                );
                StorageIOError::apply(id, &error)
            })?);
        }
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotWriter<S> {
        let snapshot = self.0.borrow().snapshot_now();
        SnapshotWriter { store: self.clone(), snapshot }
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> std::result::Result<Box<Vec<u8>>, StorageError> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        state: Box<Vec<u8>>,
    ) -> std::result::Result<(), StorageError> {
        let mut inner = self.0.borrow_mut();
        let snapshot = RaftSnapshot {
            cluster: inner.cluster,
            last: meta.last_log_id.as_ref().map(position_of),
            members_at: meta.last_membership.log_id().as_ref().map(position_of),
            members: record_of_members(meta.last_membership.membership()),
            name: meta.snapshot_id.clone(),
            state: Bytes(*state),
        };
        let installed = inner.restore(&snapshot).and_then(|()| inner.store(snapshot));
        installed.map_err(|error| {
            // The log may wait for this snapshot before it removes entries, so report the failure
            // to the log.
            inner.end.fail(&error);
            StorageIOError::write_snapshot(None, &error).into()
        })
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> std::result::Result<Option<Snapshot<Types>>, StorageError> {
        Ok(self.0.borrow().snapshot.as_ref().map(library_snapshot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::poll_once;
    use skep_env::block_on;
    use std::pin::pin;

    const CLUSTER: ClusterId = ClusterId::new([9; 16]);

    /// A state machine whose encoded state has this length in bytes. Each byte has the value zero.
    struct Zeros(usize);

    impl StateMachine for Zeros {
        fn apply(&mut self, _: LogPosition, _: &[u8]) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn snapshot(&self) -> Vec<u8> {
            vec![0; self.0]
        }

        fn restore(&mut self, state: &[u8]) -> Result<()> {
            self.0 = state.len();
            Ok(())
        }
    }

    #[test]
    fn state_beyond_the_size_limit_is_not_written() {
        block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let machine = Zeros(MAX_SNAPSHOT_BYTES as usize + 1);
            let mut store = StateStore::open(directory.path(), CLUSTER, machine).unwrap();
            let mut writer = store.get_snapshot_builder().await;
            let error = writer.build_snapshot().await.unwrap_err().to_string();
            assert!(error.contains("raft-snapshot") && error.contains("limit"), "{error}");
            let end = store.snapshot_end();
            assert!(end.reached(0).await.is_err(), "the log must not wait for this snapshot");
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        })
        .unwrap();
    }

    #[test]
    fn wait_for_a_snapshot_ends_when_the_snapshot_is_durable() {
        block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let mut store = StateStore::open(directory.path(), CLUSTER, Zeros(3)).unwrap();
            let end = store.snapshot_end();
            let last = log_id_of(&LogPosition { term: 1, leader: 1, index: 5 });
            let mut waiting = pin!(end.reached(5));
            assert!(poll_once(&mut waiting).await.is_none());
            let meta = SnapshotMeta { last_log_id: Some(last), ..SnapshotMeta::default() };
            store.install_snapshot(&meta, Box::new(vec![0; 4])).await.unwrap();
            waiting.await.unwrap();
            let again = StateStore::open(directory.path(), CLUSTER, Zeros(0)).unwrap();
            assert_eq!(
                (again.with(|it| it.0), again.snapshot_position()),
                (4, Some(position_of(&last)))
            );
            again.snapshot_end().reached(5).await.unwrap();
        })
        .unwrap();
    }
}

//! The state machine of the application, and its snapshots in the file `raft-snapshot`.
//!
//! Owns the position up to which the state machine has applied the log, and the members at this
//! position. Does not own the state itself: the application does ([`StateMachine`]).
//!
//! # Crash rule
//! The state is only in memory. A start restores it from the snapshot, and the entries after the
//! snapshot are applied again as soon as the member knows that they are committed. A snapshot is
//! durable, by atomic replacement, before entries leave the log.

use crate::raft_types::{
    Entry, LogId, OutcomeBytes, SnapshotMeta, StorageError, StoredMembers, Types, log_id_of,
    members_of, position_of, record_of_members,
};
use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot, StorageIOError};
use skep_format::consensus::{LogPosition, RaftSnapshot};
use skep_store::atomic::replace_atomically;
use skep_types::codec::Bytes;
use skep_types::{ClusterId, Error, ErrorCode, Result};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Name of the file.
const SNAPSHOT_FILE: &str = "raft-snapshot";

/// The state machine of the application. All members apply the same commands in the same order, so
/// equal inputs must give equal states and outcomes.
pub trait StateMachine: 'static {
    /// Applies a committed command; returns its outcome. The outcome goes to the member that has
    /// proposed the command, if it still waits for the outcome.
    fn apply(&mut self, position: LogPosition, command: &[u8]) -> Vec<u8>;

    /// Encodes the state.
    fn snapshot(&self) -> Vec<u8>;

    /// Replaces the state by an encoded one.
    ///
    /// # Errors
    /// Returns `Corrupt` if the bytes are not a state. The state stays as it was then.
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
}

/// A handle to the state machine of a member.
pub(crate) struct StateStore<S>(Rc<RefCell<Inner<S>>>);

impl<S> Clone for StateStore<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: StateMachine> StateStore<S> {
    /// Restores the state machine from the snapshot file, if there is one.
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
        };
        match std::fs::read(&inner.path) {
            Ok(bytes) => {
                let restored = RaftSnapshot::from_file(&bytes).and_then(|it| inner.restore(it));
                restored.map_err(|error| error.within(inner.path.display()))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::from(error).within(inner.path.display())),
        }
        Ok(Self(Rc::new(RefCell::new(inner))))
    }

    /// Calls `read` with the state machine of the application.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&S) -> T) -> T {
        read(&self.0.borrow().machine)
    }
}

impl<S: StateMachine> Inner<S> {
    fn restore(&mut self, snapshot: RaftSnapshot) -> Result<()> {
        if snapshot.cluster != self.cluster {
            let what = format!("the snapshot belongs to cluster {}", snapshot.cluster);
            return Err(Error::new(ErrorCode::Corrupt, what));
        }
        self.machine.restore(&snapshot.state.0)?;
        let meta = meta_of(&snapshot);
        self.applied = meta.last_log_id;
        self.members = meta.last_membership;
        self.snapshot = Some(snapshot);
        Ok(())
    }

    fn apply(&mut self, entry: Entry) -> OutcomeBytes {
        self.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Normal(command) => {
                Some(self.machine.apply(position_of(&entry.log_id), &command.0))
            }
            EntryPayload::Membership(members) => {
                self.members = StoredMembers::new(Some(entry.log_id), members);
                None
            }
        }
    }

    /// Encodes the present state.
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

/// A state that is about to become the snapshot file.
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
            // The leader has sent a newer snapshot in the meantime.
            return Ok(library_snapshot(newer));
        }
        replace_atomically(&inner.path, &self.snapshot.to_file())
            .map_err(|error| StorageIOError::write_snapshot(None, &error))?;
        inner.snapshot = Some(self.snapshot.clone());
        Ok(library_snapshot(&self.snapshot))
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
        Ok(entries.into_iter().map(|entry| inner.apply(entry)).collect())
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
        let file = snapshot.to_file();
        let installed =
            inner.restore(snapshot).and_then(|()| replace_atomically(&inner.path, &file));
        installed.map_err(|error| StorageIOError::write_snapshot(None, &error).into())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> std::result::Result<Option<Snapshot<Types>>, StorageError> {
        Ok(self.0.borrow().snapshot.as_ref().map(library_snapshot))
    }
}

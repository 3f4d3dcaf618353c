//! Stores records of a worker's operations, and derives from these records the states that each
//! name may have after a crash.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The file, directory or link at a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// The name does not exist.
    Absent,
    /// A directory.
    Directory,
    /// The log or the file of blocks. The worker never renames these files, and `ongoing` checks
    /// their contents.
    Fixed,
    /// A file whose creation the crash interrupted. The file may have any contents. The length of
    /// the file may change until the lease of the client that created the file has expired.
    Partial {
        /// Inode number of the file. `None` until a check has found the file.
        inode: Option<u64>,
    },
    /// A symbolic link.
    Symlink(PathBuf),
    /// A file that was written and closed.
    File {
        /// Inode number of the file.
        inode: u64,
        /// All bytes of the file.
        content: Arc<Vec<u8>>,
        /// Whether the worker called `fsync` after the writes.
        synced: bool,
    },
}

impl State {
    pub(crate) fn inode(&self) -> Option<u64> {
        match self {
            Self::File { inode, .. } => Some(*inode),
            Self::Partial { inode } => *inode,
            _ => None,
        }
    }
}

/// A kill of processes, or a power loss. The value also states which operations must survive the
/// crash.
#[derive(Debug, Clone, Copy)]
pub struct Crash {
    /// An operation that was acknowledged before this moment must survive.
    pub settled: Instant,
    /// Data and operations that a sync made durable must survive if this sync was acknowledged
    /// before this moment.
    pub begun: Instant,
    /// Operations that began after this moment must have no effect.
    pub ended: Instant,
    /// Whether unsynced data may be lost.
    pub loses_unsynced_data: bool,
    /// Whether a file that the worker extended and did not sync may have an earlier length after
    /// the crash. The length may change until the lease of the dead client has expired.
    pub loses_unsynced_ends: bool,
}

impl Crash {
    /// Returns a crash in which services were killed while their hosts continued to run. No
    /// acknowledged operation may be lost.
    pub fn of_services() -> Self {
        let now = Instant::now();
        Self {
            settled: now,
            begun: now,
            ended: now,
            loses_unsynced_data: false,
            loses_unsynced_ends: false,
        }
    }

    /// Returns a crash in which the worker's own client was killed. Files that the worker did not
    /// sync may then have an earlier length.
    pub fn of_client() -> Self {
        Self { loses_unsynced_ends: true, ..Self::of_services() }
    }

    /// Returns a power loss between `begun` and `ended`. Even without a sync, an acknowledged
    /// operation is on the disk after `sync_delay`.
    pub fn of_power(begun: Instant, ended: Instant, sync_delay: Duration) -> Self {
        let settled = begun.checked_sub(sync_delay).unwrap_or(begun);
        Self { settled, begun, ended, loses_unsynced_data: true, loses_unsynced_ends: true }
    }

    /// Whether an operation must survive the crash. `acknowledged` is the time of its
    /// acknowledgement. `durable` means that the operation was synced.
    pub(crate) fn keeps(&self, acknowledged: Option<Instant>, durable: bool) -> bool {
        acknowledged.is_some_and(|at| at <= self.settled || (durable && at <= self.begun))
    }
}

#[derive(Debug)]
struct Record {
    started: Instant,
    acknowledged: Option<Instant>,
    durable: bool,
    state: State,
}

/// The operations on each name, the newest last.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<String, Vec<Record>>);

/// Age from which an acknowledged operation survives every crash of a test. If several records of a
/// name have at least this age, the history stores only the newest of these records.
const FORGET_AFTER: Duration = Duration::from_secs(30);

impl History {
    /// Returns the last acknowledged state of a name.
    pub(crate) fn now(&self, name: &str) -> &State {
        let records = self.0.get(name).map_or(&[][..], Vec::as_slice);
        let settled = records.iter().rev().find(|record| record.acknowledged.is_some());
        settled.map_or(&State::Absent, |record| &record.state)
    }

    /// Returns all names for which `is_wanted` holds for the last acknowledged state.
    pub(crate) fn names(&self, is_wanted: impl Fn(&State) -> bool) -> Vec<String> {
        self.0.keys().filter(|name| is_wanted(self.now(name))).cloned().collect()
    }

    /// Returns all names with records.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Adds a name that is durable and that the worker never removes.
    pub(crate) fn fixed(&mut self, name: String) {
        let state = if name.starts_with('d') { State::Directory } else { State::Fixed };
        self.replace(name, state);
    }

    /// Records that an operation on a name has started. If the operation takes effect, the name has
    /// the state `state`.
    pub(crate) fn begins(&mut self, name: &str, state: State) {
        let started = Instant::now();
        let record = Record { started, acknowledged: None, durable: false, state };
        self.0.entry(name.to_owned()).or_default().push(record);
    }

    /// Records that the file system has acknowledged an operation. After the operation, the name
    /// has the state `state`.
    pub(crate) fn settles(&mut self, name: &str, started: Instant, state: State, durable: bool) {
        let now = Instant::now();
        let records = self.0.entry(name.to_owned()).or_default();
        records.push(Record { started, acknowledged: Some(now), durable, state });
        let is_old = |record: &Record| {
            record.acknowledged.is_some_and(|at| now.duration_since(at) > FORGET_AFTER)
        };
        if let Some(last_old) = records.iter().rposition(is_old) {
            records.drain(..last_old);
        }
    }

    /// Returns the newest state of `name` that must survive `crash`, and the index of this state's
    /// record among the records of the name.
    fn kept(&self, name: &str, crash: &Crash) -> Option<(usize, &State)> {
        let records = self.0.get(name)?;
        let kept =
            records.iter().rposition(|record| crash.keeps(record.acknowledged, record.durable))?;
        Some((kept, &records[kept].state))
    }

    /// Whether the length that a check has found for a file after a crash is final. After a crash
    /// that can lose unsynced lengths, this length is final only if a recorded file has the same
    /// inode number and length. This recorded file is either the newest state that must survive the
    /// crash, or another allowed state that the worker had synced. (A metadata host may have lost
    /// the reported length of an unsynced file, but not the file's name.)
    pub(crate) fn is_end_known(&self, name: &str, found: &State, crash: &Crash) -> bool {
        let is_it = |state: &State, even_unsynced: bool| match (state, found) {
            (
                State::File { inode, content, synced },
                State::File { inode: found, content: bytes, .. },
            ) => inode == found && content.len() == bytes.len() && (*synced || even_unsynced),
            _ => false,
        };
        !crash.loses_unsynced_ends
            || self.kept(name, crash).is_some_and(|(_, state)| is_it(state, true))
            || self.possible(name, crash).into_iter().any(|state| is_it(state, false))
    }

    /// Returns all states that are allowed for a name after a crash.
    pub(crate) fn possible(&self, name: &str, crash: &Crash) -> Vec<&State> {
        let records = self.0.get(name).map_or(&[][..], Vec::as_slice);
        let base = self.kept(name, crash).map(|(index, _)| index);
        let mut possible: Vec<_> = records[base.unwrap_or(0)..]
            .iter()
            .filter(|record| record.started <= crash.ended)
            .map(|record| &record.state)
            .collect();
        if base.is_none() {
            possible.push(&State::Absent);
        }
        possible
    }

    /// Replaces all records of a name by a single record with the state that a check has found.
    pub(crate) fn replace(&mut self, name: String, state: State) {
        let now = Instant::now();
        let record = Record { started: now, acknowledged: Some(now), durable: true, state };
        self.0.insert(name, vec![record]);
    }

    /// Removes all records.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[derive(Debug)]
struct Inode {
    created: Instant,
    acknowledged: Instant,
    durable: bool,
    removal: Option<Instant>,
    names: usize,
}

/// The record of each file, by inode number. The records show whether an interrupted rename has
/// lost or duplicated a file.
#[derive(Debug, Default)]
pub(crate) struct Inodes(BTreeMap<u64, Inode>);

impl Inodes {
    pub(crate) fn created(&mut self, inode: u64, started: Instant, durable: bool) {
        let acknowledged = Instant::now();
        let new = Inode { created: started, acknowledged, durable, removal: None, names: 1 };
        if self.0.insert(inode, new).is_some_and(|old| old.removal.is_none()) {
            panic!("inode {inode} was assigned to a second file while the first file exists");
        }
    }

    pub(crate) fn gets_a_name(&mut self, inode: u64) {
        if let Some(known) = self.0.get_mut(&inode) {
            known.names += 1;
        }
    }

    pub(crate) fn loses_a_name(&mut self, inode: u64, started: Instant) {
        if let Some(known) = self.0.get_mut(&inode) {
            known.removal.get_or_insert(started);
        }
    }

    /// Compares the records with `found`, which contains the number of names of each inode after a
    /// crash. Returns a line for each problem.
    pub(crate) fn check(&self, found: &BTreeMap<u64, usize>, crash: &Crash) -> Vec<String> {
        let mut problems = Vec::new();
        for (number, inode) in &self.0 {
            let names = found.get(number).copied().unwrap_or(0);
            let is_certain = crash.keeps(Some(inode.acknowledged), inode.durable);
            let is_kept = inode.removal.is_none_or(|started| started > crash.ended);
            if is_certain && is_kept && names == 0 {
                problems.push(format!("inode {number} has lost all its names"));
            }
            if inode.created <= crash.ended && names > inode.names {
                problems.push(format!(
                    "inode {number} has {names} names: expected at most {}",
                    inode.names
                ));
            }
        }
        problems
    }

    /// Replaces all records by `found`, which contains the number of names of each inode after a
    /// crash.
    pub(crate) fn replace(&mut self, found: &BTreeMap<u64, usize>) {
        let now = Instant::now();
        let known = |names: &usize| Inode {
            created: now,
            acknowledged: now,
            durable: true,
            removal: None,
            names: *names,
        };
        self.0 = found.iter().map(|(inode, names)| (*inode, known(names))).collect();
    }
}

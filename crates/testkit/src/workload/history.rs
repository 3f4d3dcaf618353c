//! What a worker was promised: for each name, which states it may be in after a kill or a cut.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is at a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing.
    Absent,
    /// A directory.
    Directory,
    /// One of the files with a check of their own, that are never renamed.
    Fixed,
    /// A file in the middle of being made: its contents may be anything, and its end may move until
    /// the lease of the client that made it has run out.
    Partial {
        /// Its inode number, once it was seen.
        inode: Option<u64>,
    },
    /// A symbolic link.
    Symlink(PathBuf),
    /// A file that was written and closed.
    File {
        /// Its inode number.
        inode: u64,
        /// All of its bytes.
        content: Arc<Vec<u8>>,
        /// Whether `fsync` came after the writes.
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

/// The moment of violence.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// What was acknowledged before this moment is there.
    pub settled: Instant,
    /// What was acknowledged as synced before this moment is there.
    pub begun: Instant,
    /// Nothing that began after this moment is there.
    pub ended: Instant,
    /// Whether data that was written but not synced may be lost.
    pub loses_unsynced_data: bool,
    /// Whether the end of a file that is open and was extended, but not synced, may not be known
    /// (until the dead client's lease has run out).
    pub loses_unsynced_ends: bool,
}

impl Cut {
    /// Services were killed; the hosts live on. Nothing that was acknowledged may be lost.
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

    /// The client was killed that did the work.
    pub fn of_client() -> Self {
        Self { loses_unsynced_ends: true, ..Self::of_services() }
    }

    /// Power was cut between two moments. `promised` is how late an acknowledged operation may
    /// reach the disk.
    pub fn of_power(begun: Instant, ended: Instant, promised: Duration) -> Self {
        let settled = begun.checked_sub(promised).unwrap_or(begun);
        Self { settled, begun, ended, loses_unsynced_data: true, loses_unsynced_ends: true }
    }

    /// Whether something that was acknowledged at a moment must be there.
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

/// What happened at each name, newest last.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<String, Vec<Record>>);

/// Records older than that are certain in every cut of a test.
const FORGET_AFTER: Duration = Duration::from_secs(30);

impl History {
    /// The last acknowledged state of a name.
    pub(crate) fn now(&self, name: &str) -> &State {
        let records = self.0.get(name).map_or(&[][..], Vec::as_slice);
        let settled = records.iter().rev().find(|record| record.acknowledged.is_some());
        settled.map_or(&State::Absent, |record| &record.state)
    }

    /// All names whose last acknowledged state is so.
    pub(crate) fn names(&self, is_wanted: impl Fn(&State) -> bool) -> Vec<String> {
        self.0.keys().filter(|name| is_wanted(self.now(name))).cloned().collect()
    }

    /// All names that ever had something, as far as that matters still.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// A name that is there from before, durably, and stays.
    pub(crate) fn fixed(&mut self, name: String) {
        let state = if name.starts_with('d') { State::Directory } else { State::Fixed };
        self.replace(name, state);
    }

    /// An operation is tried that leads to this state: it may or may not come about.
    pub(crate) fn begins(&mut self, name: &str, state: State) {
        let started = Instant::now();
        let record = Record { started, acknowledged: None, durable: false, state };
        self.0.entry(name.to_owned()).or_default().push(record);
    }

    /// The operation that began last was acknowledged.
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

    /// The newest state that a cut keeps, with its place among the name's records.
    fn kept(&self, name: &str, cut: &Cut) -> Option<(usize, &State)> {
        let records = self.0.get(name)?;
        let kept =
            records.iter().rposition(|record| cut.keeps(record.acknowledged, record.durable))?;
        Some((kept, &records[kept].state))
    }

    /// Whether the end of a file that was found at a name after a cut stays where it is: the file
    /// was closed or synced, that is known still, and it is as long as it was then. (What it was
    /// told of a file that wasn't synced, a busy host may have lost although it kept the name.)
    pub(crate) fn is_end_known(&self, name: &str, found: &State, cut: &Cut) -> bool {
        let is_it = |state: &State, even_unsynced: bool| match (state, found) {
            (
                State::File { inode, content, synced },
                State::File { inode: found, content: bytes, .. },
            ) => inode == found && content.len() == bytes.len() && (*synced || even_unsynced),
            _ => false,
        };
        !cut.loses_unsynced_ends
            || self.kept(name, cut).is_some_and(|(_, state)| is_it(state, true))
            || self.possible(name, cut).into_iter().any(|state| is_it(state, false))
    }

    /// All states that a name may be in after a cut.
    pub(crate) fn possible(&self, name: &str, cut: &Cut) -> Vec<&State> {
        let records = self.0.get(name).map_or(&[][..], Vec::as_slice);
        let base = self.kept(name, cut).map(|(index, _)| index);
        let mut possible: Vec<_> = records[base.unwrap_or(0)..]
            .iter()
            .filter(|record| record.started <= cut.ended)
            .map(|record| &record.state)
            .collect();
        if base.is_none() {
            possible.push(&State::Absent);
        }
        possible
    }

    /// What was found: from here on nothing else is known of the name.
    pub(crate) fn replace(&mut self, name: String, state: State) {
        let now = Instant::now();
        let record = Record { started: now, acknowledged: Some(now), durable: true, state };
        self.0.insert(name, vec![record]);
    }

    /// Forgets everything.
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

/// Files by inode number: that renames neither lose nor double them, however they end.
#[derive(Debug, Default)]
pub(crate) struct Inodes(BTreeMap<u64, Inode>);

impl Inodes {
    pub(crate) fn created(&mut self, inode: u64, started: Instant, durable: bool) {
        let acknowledged = Instant::now();
        let new = Inode { created: started, acknowledged, durable, removal: None, names: 1 };
        if self.0.insert(inode, new).is_some_and(|old| old.removal.is_none()) {
            panic!("inode {inode} was given to a second file while the first is there");
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

    /// Compares with the inodes that were found, each with the number of its names.
    pub(crate) fn check(&self, found: &BTreeMap<u64, usize>, cut: &Cut) -> Vec<String> {
        let mut problems = Vec::new();
        for (number, inode) in &self.0 {
            let names = found.get(number).copied().unwrap_or(0);
            let is_certain = cut.keeps(Some(inode.acknowledged), inode.durable);
            let is_kept = inode.removal.is_none_or(|started| started > cut.ended);
            if is_certain && is_kept && names == 0 {
                problems.push(format!("inode {number} has lost all its names"));
            }
            if inode.created <= cut.ended && names > inode.names {
                problems.push(format!("inode {number} has {names} names, got {}", inode.names));
            }
        }
        problems
    }

    /// From here on, what was found is what is known.
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

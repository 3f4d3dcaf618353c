//! File locks: what applications have locked (`flock`, `fcntl`), and who waits for it.
//!
//! What is held is in the store, one record for each owner; this table is a copy of those records
//! that can be asked whom a range conflicts with. It follows each key that a transaction writes
//! ([`FileLocks::wrote`]), and is loaded at the start. Who waits is in memory only: clients ask
//! again. The whole is described in `docs/design/0005-locks.md`.
//!
//! # Invariants
//! - The table holds exactly what the `FileLocks` records hold, those of the batch included.
//! - A file stands in the table only while somebody holds or waits for something of it.

use super::queue::{Queue, State, Wait};
use crate::limits::MAX_DEADLOCK_STEPS;
use skep_cluster::lock_ranges::LockRanges;
use skep_format::metadata::{FileLocksRecord, LockOwner, LockedRange, decode_value, lock_owner_of};
use skep_types::{Error, ErrorCode, InodeId, Result, SessionId};
use skep_wire::file_locks::{
    HeldLock, ListedWait, LockKind, LockMode, LockParty, LockRequest, WaitList,
};
use skep_wire::frame::Header;
use skep_wire::limits::{LOCK_END, MAX_LISTED_HOLDERS, MAX_LISTED_WAITS};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::time::Duration;

use crate::tx::operation::ConnectionId;

/// An owner of POSIX or `flock` locks: the session, and its number there.
pub(crate) type Owner = (SessionId, u64);

/// A lock that somebody has or wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) owner: Owner,
    pub(crate) kind: LockKind,
    pub(crate) mode: LockMode,
    pub(crate) range: Range<u64>,
    pub(crate) pid: u32,
}

impl Wanted {
    /// What a request of a session wants; `None` if it unlocks.
    pub(crate) fn of(session: SessionId, request: &LockRequest) -> Option<Self> {
        Some(Self {
            owner: (session, request.owner),
            kind: request.kind,
            mode: request.mode?,
            range: request.start..request.end,
            pid: request.pid,
        })
    }

    /// Whether both can't be held at once.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        self.owner != other.owner
            && (self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }

    fn told(&self) -> HeldLock {
        HeldLock {
            session: self.owner.0,
            kind: self.kind,
            owner: self.owner.1,
            mode: self.mode,
            start: self.range.start,
            end: self.range.end,
            pid: self.pid,
        }
    }
}

/// Checks the range of a request.
pub(crate) fn check(request: &LockRequest) -> Result<()> {
    if request.start < request.end && request.end <= LOCK_END {
        return Ok(());
    }
    let what = format!("bytes {} to {} can't be locked", request.start, request.end);
    Err(Error::new(ErrorCode::InvalidArgument, what))
}

/// What one owner holds.
#[derive(Debug)]
struct Held {
    pid: u32,
    ranges: LockRanges<LockMode>,
}

/// Locks of one kind on one file.
#[derive(Debug, Default)]
struct File {
    held: BTreeMap<Owner, Held>,
    /// Ranges among them that are held exclusively.
    exclusive: usize,
    queue: Queue,
}

impl File {
    /// What is held and conflicts.
    fn held_against<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = Wanted> + 'a {
        // Ten thousand readers of one file are asked about by the next one.
        let may_conflict = wanted.mode == LockMode::Exclusive || self.exclusive > 0;
        let held = may_conflict.then(|| self.held.iter()).into_iter().flatten();
        held.filter(|(owner, _)| **owner != wanted.owner).flat_map(move |(owner, held)| {
            let those = held.ranges.overlapping(wanted.range.clone()).map(move |(range, mode)| {
                Wanted { owner: *owner, kind: wanted.kind, mode, range, pid: held.pid }
            });
            those.filter(|it| it.conflicts(wanted))
        })
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.queue.is_empty()
    }
}

/// Files by inode and kind of lock.
type Place = (InodeId, LockKind);

/// An answer to a `WaitLock`.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) connection: ConnectionId,
    pub(crate) header: Header,
    /// Whether the lock is to be had; otherwise it is time to ask again.
    pub(crate) is_called: bool,
}

/// See the file's description.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    files: BTreeMap<Place, File>,
    /// Held ranges in all files.
    ranges: usize,
    waits: usize,
    /// Where each owner waits.
    waiting: BTreeMap<Owner, BTreeSet<(Place, u64)>>,
    /// Files of which something was released, or isn't kept any more, so that others may be called.
    released: BTreeSet<Place>,
}

impl FileLocks {
    // ---- what is held

    /// Takes in a key that a transaction has written, if it is about locks.
    pub(crate) fn wrote(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let Some(of) = lock_owner_of(key) else { return Ok(()) };
        let record = value.map(|value| decode_value::<FileLocksRecord>(key, value)).transpose()?;
        let place = (of.inode, of.kind);
        let file = self.files.entry(place).or_default();
        let is_exclusive = |held: &Held| {
            held.ranges.iter().filter(|(_, mode)| *mode == LockMode::Exclusive).count()
        };
        if let Some(before) = file.held.remove(&(of.session, of.owner)) {
            file.exclusive -= is_exclusive(&before);
            self.ranges -= before.ranges.len();
            self.released.insert(place);
        }
        if let Some(record) = record {
            let ranges = record.ranges.iter().map(|it| (it.start..it.end, it.mode));
            let held = Held { pid: record.pid, ranges: LockRanges::of(ranges) };
            file.exclusive += is_exclusive(&held);
            self.ranges += held.ranges.len();
            file.held.insert((of.session, of.owner), held);
        }
        self.forget_if_empty(place);
        Ok(())
    }

    fn forget_if_empty(&mut self, place: Place) {
        if self.files.get(&place).is_some_and(File::is_empty) {
            self.files.remove(&place);
        }
    }

    /// What an owner's record is after a request was carried out; `None`: there is none any more.
    pub(crate) fn after(&self, of: &LockOwner, request: &LockRequest) -> Option<FileLocksRecord> {
        let held = self.held_by(of);
        let mut ranges = held.map_or_else(LockRanges::default, |held| held.ranges.clone());
        ranges.set(request.start..request.end, request.mode);
        let pid = if request.mode.is_some() { request.pid } else { held?.pid };
        let ranges: Vec<_> = ranges
            .iter()
            .map(|(range, mode)| LockedRange { start: range.start, end: range.end, mode })
            .collect();
        (!ranges.is_empty()).then_some(FileLocksRecord { pid, ranges })
    }

    fn held_by(&self, of: &LockOwner) -> Option<&Held> {
        self.files.get(&(of.inode, of.kind))?.held.get(&(of.session, of.owner))
    }

    /// Whether an owner holds anything.
    pub(crate) fn holds(&self, of: &LockOwner) -> bool {
        self.held_by(of).is_some()
    }

    /// Ranges that are held in all files.
    pub(crate) fn range_count(&self) -> usize {
        self.ranges
    }

    /// The owners of a session that hold something of a file.
    pub(crate) fn owners(&self, session: SessionId, inode: InodeId) -> Vec<LockOwner> {
        let mut owners = Vec::new();
        // Nearly always nothing at all is locked.
        if self.files.is_empty() {
            return owners;
        }
        for kind in LockKind::ALL {
            let Some(file) = self.files.get(&(inode, kind)) else { continue };
            let of_session = file.held.range((session, 0)..=(session, u64::MAX));
            owners.extend(of_session.map(|((_, owner), _)| LockOwner {
                inode,
                kind,
                session,
                owner: *owner,
            }));
        }
        owners
    }

    /// A lock that is held and conflicts.
    pub(crate) fn conflict(&self, inode: InodeId, wanted: &Wanted) -> Option<HeldLock> {
        let file = self.files.get(&(inode, wanted.kind))?;
        file.held_against(wanted).next().map(|it| it.told())
    }

    /// What keeps a lock from being set: what is held, what others were called for, and who was
    /// overtaken so often that he has a barrier. `wait` is the asker's own number, or zero.
    pub(crate) fn in_the_way(
        &self,
        inode: InodeId,
        wanted: &Wanted,
        wait: u64,
        now: Duration,
    ) -> Option<HeldLock> {
        let file = self.files.get(&(inode, wanted.kind))?;
        let held = file.held_against(wanted).next();
        let firm = || {
            let mut firm = file.queue.firm_before((wanted.owner.0, wait), now);
            firm.find(|it| it.wanted.conflicts(wanted)).map(|it| it.wanted.clone())
        };
        held.or_else(firm).map(|it| it.told())
    }

    /// What a session holds of a file and waits for, in the order of ranges and of the queue.
    pub(crate) fn of_session(
        &self,
        session: SessionId,
        inode: InodeId,
    ) -> (Vec<HeldLock>, Vec<HeldLock>) {
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for kind in LockKind::ALL {
            let Some(file) = self.files.get(&(inode, kind)) else { continue };
            for (owner, of_owner) in file.held.range((session, 0)..=(session, u64::MAX)) {
                let told = |(range, mode)| {
                    Wanted { owner: *owner, kind, mode, range, pid: of_owner.pid }.told()
                };
                held.extend(of_owner.ranges.iter().map(told));
            }
            let waits = file.queue.iter().filter(|it| it.wanted.owner.0 == session);
            waiting.extend(waits.map(|it| it.wanted.told()));
        }
        (held, waiting)
    }

    /// Every lock that is held, for checkers.
    pub(crate) fn all(&self) -> impl Iterator<Item = (InodeId, HeldLock)> + '_ {
        self.files.iter().flat_map(|((inode, kind), file)| {
            file.held.iter().flat_map(move |(owner, held)| {
                held.ranges.iter().map(move |(range, mode)| {
                    let wanted = Wanted { owner: *owner, kind: *kind, mode, range, pid: held.pid };
                    (*inode, wanted.told())
                })
            })
        })
    }

    // ---- who waits

    /// How many wait.
    pub(crate) fn wait_count(&self) -> usize {
        self.waits
    }

    /// Whether the wait is known already.
    pub(crate) fn is_waiting(&self, place: Place, wait: (SessionId, u64)) -> bool {
        self.files.get(&place).is_some_and(|file| file.queue.has(wait))
    }

    /// Puts a request into the queue, or back to its place there. It is answered by
    /// [`Self::call`]. Gives the one whose place it took, to be answered now.
    pub(crate) fn wait(
        &mut self,
        inode: InodeId,
        wanted: Wanted,
        wait: u64,
        state: (ConnectionId, Header, Duration),
    ) -> Option<Answered> {
        let place = (inode, wanted.kind);
        let (connection, header, until) = state;
        let state = State::Parked { connection, header: Box::new(header), until };
        self.waiting.entry(wanted.owner).or_default().insert((place, wait));
        let file = self.files.entry(place).or_default();
        let (is_new, answered) = file.queue.put(wait, wanted, state);
        self.waits += usize::from(is_new);
        self.released.insert(place);
        answered
    }

    /// Takes a wait out of the queue: it has ended.
    pub(crate) fn end_wait(&mut self, place: Place, wait: (SessionId, u64)) {
        let Some(file) = self.files.get_mut(&place) else { return };
        if let Some(ended) = file.queue.remove(wait) {
            self.ended(place, &ended);
        }
    }

    fn ended(&mut self, place: Place, wait: &Wait) {
        self.waits -= 1;
        if let Some(places) = self.waiting.get_mut(&wait.wanted.owner) {
            places.remove(&(place, wait.number));
            if places.is_empty() {
                self.waiting.remove(&wait.wanted.owner);
            }
        }
        self.released.insert(place);
        self.forget_if_empty(place);
    }

    /// A lock was set: its wait is over, and those of others that conflict were overtaken.
    pub(crate) fn granted(&mut self, inode: InodeId, wanted: &Wanted, wait: u64, now: Duration) {
        let place = (inode, wanted.kind);
        let Some(file) = self.files.get_mut(&place) else { return };
        let own = (wanted.owner.0, wait);
        file.queue.overtake(own, now, |it| it.conflicts(wanted));
        self.end_wait(place, own);
    }

    /// Takes out all waits of a session; gives the requests that are still to be answered.
    pub(crate) fn end_waits_of(&mut self, session: SessionId) -> Vec<(ConnectionId, Header)> {
        let owners = self.waiting.range((session, 0)..=(session, u64::MAX));
        let all: Vec<_> = owners.flat_map(|(_, places)| places.iter().copied()).collect();
        let mut parked = Vec::new();
        for (place, wait) in all {
            let Some(file) = self.files.get_mut(&place) else { continue };
            let Some(ended) = file.queue.remove((session, wait)) else { continue };
            self.ended(place, &ended);
            if let State::Parked { connection, header, .. } = ended.state {
                parked.push((connection, *header));
            }
        }
        parked
    }

    /// Calls those who may have their lock by now, and lets waits end whose time is over.
    pub(crate) fn call(&mut self, now: Duration) -> Vec<Answered> {
        let mut answered = Vec::new();
        if self.waits == 0 {
            self.released.clear();
            return answered;
        }
        self.expire(now, &mut answered);
        for place in std::mem::take(&mut self.released) {
            let Some(file) = self.files.get_mut(&place) else { continue };
            let mut queue = std::mem::take(&mut file.queue);
            queue.call(now, |wanted| file.held_against(wanted).next().is_some(), &mut answered);
            file.queue = queue;
        }
        answered
    }

    /// Waits that are to be answered in any case, and those whose asker didn't come again.
    fn expire(&mut self, now: Duration, answered: &mut Vec<Answered>) {
        let places: Vec<_> = self
            .files
            .iter()
            .filter(|(_, file)| file.queue.is_due(now))
            .map(|(place, _)| *place)
            .collect();
        for place in places {
            let Some(file) = self.files.get_mut(&place) else { continue };
            for gone in file.queue.expire(now, answered) {
                self.ended(place, &gone);
            }
            self.released.insert(place);
        }
    }

    // ---- cycles

    /// Who waits for POSIX locks, and who holds what is in the way, from behind an owner on.
    pub(crate) fn posix_waits(&self, after: LockParty) -> WaitList {
        let mut list = WaitList { waits: Vec::new(), next: None };
        let party = |(session, owner): Owner| LockParty { session, owner };
        let behind = (Bound::Excluded((after.session, after.owner)), Bound::Unbounded);
        let mut last = after;
        for (owner, places) in self.waiting.range(behind) {
            if list.waits.len() >= MAX_LISTED_WAITS {
                list.next = Some(last);
                break;
            }
            last = party(*owner);
            let posix = places.iter().filter(|((_, kind), _)| *kind == LockKind::Posix);
            for (place, number) in posix.take(MAX_LISTED_HOLDERS) {
                let Some(file) = self.files.get(place) else { continue };
                let wait = file.queue.get((owner.0, *number));
                let wait = wait.filter(|it| !it.is_called());
                let Some(wait) = wait else { continue };
                let holders = file.held_against(&wait.wanted).map(|it| party(it.owner));
                let holders: BTreeSet<_> = holders.take(MAX_LISTED_HOLDERS).collect();
                let holders = holders.into_iter().collect();
                list.waits.push(ListedWait { waiter: last, wait: *number, holders });
            }
        }
        list
    }

    /// Whether who wants this would wait in the end for a lock that he holds himself. What he waits
    /// for under another kind is none: its owners have numbers of their own. Nor is who only stands
    /// before him in the queue: he can be overtaken.
    pub(crate) fn closes_cycle(&self, inode: InodeId, wanted: &Wanted) -> bool {
        let mut seen = BTreeSet::new();
        let mut steps = 0;
        let mut next = vec![(inode, wanted)];
        while let Some((inode, wanted_next)) = next.pop() {
            for holder in self.holders(inode, wanted_next) {
                steps += 1;
                if holder == wanted.owner {
                    return true;
                }
                if steps > MAX_DEADLOCK_STEPS {
                    return false;
                }
                if !seen.insert(holder) {
                    continue;
                }
                let waits = self.waiting.get(&holder).into_iter().flatten();
                for (place, number) in waits.filter(|(place, _)| place.1 == wanted.kind) {
                    let found =
                        self.files.get(place).and_then(|file| file.queue.get((holder.0, *number)));
                    if let Some(it) = found.filter(|it| !it.is_called()) {
                        next.push((place.0, &it.wanted));
                    }
                }
            }
        }
        false
    }

    /// The owners of locks that are in the way of another.
    fn holders(&self, inode: InodeId, wanted: &Wanted) -> BTreeSet<Owner> {
        let file = self.files.get(&(inode, wanted.kind));
        let held = file.into_iter().flat_map(|file| file.held_against(wanted));
        held.map(|it| it.owner).take(MAX_DEADLOCK_STEPS).collect()
    }
}

#[cfg(test)]
mod tests;

//! The table of file locks (`flock`, `fcntl`): the locks that sessions hold, and the queues of
//! waiters.
//!
//! The store has one record for each lock owner of a file. This table has the same locks in memory,
//! so that the target finds conflicts of byte ranges quickly. The target loads the table at its
//! start, and updates it with each key that a transaction writes ([`FileLocks::on_write`]). Waits
//! are only in memory, because clients send `WaitLock` again after a restart.
//! `docs/design/0005-locks.md` describes the whole design. The module `queue` describes the states
//! of a wait.
//!
//! # Invariants
//! - The table has exactly the locks of the `FileLocks` records, including changes that are not
//!   logged yet.
//! - Locks of different owners never conflict.
//! - A file is in the table only while a session holds a lock on it or waits for one.
//! - `waiting` has exactly the waits of all queues, by owner.
//! - `due` has exactly the files whose queue has a wait, each with the next time at which a wait or
//!   a barrier of the queue expires.

mod deadlock;

use crate::limits::{MAX_HOLDERS_EXAMINED, WAIT_ANSWER, WAITERS_EXAMINED};
use crate::locks::queue::{Queue, Wait, WaitAnswer, WaitState};
use crate::locks::request::{LockClaim, LockOwnerId};
use crate::tx::operation::ConnectionId;
use skep_cluster::lock_ranges::LockRanges;
use skep_format::metadata::{FileLocksRecord, LockOwner, LockedRange, decode_value, lock_owner_of};
use skep_types::{InodeId, Result, SessionId};
use skep_wire::file_locks::{HeldLock, LockKind, LockMode, LockRequest};
use skep_wire::frame::Header;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The byte ranges of a file that one owner has locked.
#[derive(Debug)]
struct OwnerLocks {
    pid: u32,
    ranges: LockRanges<LockMode>,
}

/// The locks of one kind on one file, and the queue of their waiters.
#[derive(Debug, Default)]
struct File {
    held: BTreeMap<LockOwnerId, OwnerLocks>,
    /// Number of byte ranges that are locked exclusively.
    exclusive: usize,
    queue: Queue,
    /// The time in the entry of the file in `due`. `None` means that `due` has no such entry.
    due: Option<Duration>,
}

impl File {
    /// Iterates over the locks of other owners that conflict with a claim.
    fn held_against<'a>(&'a self, claim: &'a LockClaim) -> impl Iterator<Item = LockClaim> + 'a {
        // A shared claim conflicts only with exclusive locks. If the file has no exclusive lock,
        // skip its shared locks, because there may be ten thousand of them.
        let may_conflict = claim.mode == LockMode::Exclusive || self.exclusive > 0;
        let held = may_conflict.then(|| self.held.iter()).into_iter().flatten();
        held.filter(|(owner, _)| **owner != claim.owner).flat_map(move |(owner, held)| {
            let claims = held.ranges.overlapping(claim.range.clone()).map(move |(range, mode)| {
                LockClaim { owner: *owner, kind: claim.kind, mode, range, pid: held.pid }
            });
            claims.filter(|it| it.conflicts(claim))
        })
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.queue.is_empty()
    }
}

/// Identifies the locks of one kind on one file.
type FileKey = (InodeId, LockKind);

/// The locks that sessions hold or wait for, by file.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    files: BTreeMap<FileKey, File>,
    /// Number of locked ranges in all files.
    ranges: usize,
    /// Number of waits for locks in the queues of all files.
    waits: usize,
    /// Waits of each lock owner, by file and wait id.
    waiting: BTreeMap<LockOwnerId, BTreeSet<(FileKey, u64)>>,
    /// Files whose waiters the target may have to wake, because a lock was released, a wait has
    /// begun or ended, or a reservation has ended.
    released: BTreeSet<FileKey>,
    /// The files with waits, by the next time at which a wait or a barrier expires. With this
    /// index, the target examines only the files in which something has expired.
    due: BTreeSet<(Duration, FileKey)>,
}

fn to_locked_ranges(ranges: &LockRanges<LockMode>) -> Vec<LockedRange> {
    let ranges = ranges.iter();
    ranges.map(|(range, mode)| LockedRange { start: range.start, end: range.end, mode }).collect()
}

impl FileLocks {
    // ---- locks that are held

    /// Updates the table if `key` is the key of a `FileLocks` record. A transaction has written
    /// `value` to this key, or has deleted it.
    pub(crate) fn on_write(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let Some(of) = lock_owner_of(key) else { return Ok(()) };
        let record = value.map(|value| decode_value::<FileLocksRecord>(key, value)).transpose()?;
        let file_key = (of.inode, of.kind);
        let file = self.files.entry(file_key).or_default();
        let is_exclusive = |held: &OwnerLocks| {
            held.ranges.iter().filter(|(_, mode)| *mode == LockMode::Exclusive).count()
        };
        if let Some(before) = file.held.remove(&(of.session, of.owner)) {
            file.exclusive -= is_exclusive(&before);
            self.ranges -= before.ranges.len();
            self.released.insert(file_key);
        }
        if let Some(record) = record {
            let ranges = record.ranges.iter().map(|it| (it.start..it.end, it.mode));
            let held = OwnerLocks { pid: record.pid, ranges: LockRanges::of(ranges) };
            file.exclusive += is_exclusive(&held);
            self.ranges += held.ranges.len();
            file.held.insert((of.session, of.owner), held);
        }
        self.forget_if_empty(file_key);
        Ok(())
    }

    fn forget_if_empty(&mut self, file_key: FileKey) {
        if self.files.get(&file_key).is_some_and(File::is_empty) {
            self.set_due(file_key);
            self.files.remove(&file_key);
        }
    }

    /// Updates the entry of a file in `due` after a change of its queue.
    fn set_due(&mut self, file_key: FileKey) {
        let Some(file) = self.files.get_mut(&file_key) else { return };
        let next = file.queue.next_due();
        let before = std::mem::replace(&mut file.due, next);
        if before != next {
            if let Some(at) = before {
                self.due.remove(&(at, file_key));
            }
            self.due.extend(next.map(|at| (at, file_key)));
        }
    }

    /// Returns the owner's record for the state after `request` is granted. `None` means that the
    /// owner then has no lock.
    pub(crate) fn after(&self, of: &LockOwner, request: &LockRequest) -> Option<FileLocksRecord> {
        let held = self.held_by(of);
        let mut ranges = held.map_or_else(LockRanges::default, |held| held.ranges.clone());
        ranges.set(request.start..request.end, request.mode);
        let pid = if request.mode.is_some() { request.pid } else { held?.pid };
        let ranges = to_locked_ranges(&ranges);
        (!ranges.is_empty()).then_some(FileLocksRecord { pid, ranges })
    }

    /// Returns the record of the locks that an owner holds. `None` means that the owner holds no
    /// lock.
    pub(crate) fn record(&self, of: &LockOwner) -> Option<FileLocksRecord> {
        let held = self.held_by(of)?;
        Some(FileLocksRecord { pid: held.pid, ranges: to_locked_ranges(&held.ranges) })
    }

    fn held_by(&self, of: &LockOwner) -> Option<&OwnerLocks> {
        self.files.get(&(of.inode, of.kind))?.held.get(&(of.session, of.owner))
    }

    /// Whether an owner holds a lock.
    pub(crate) fn holds(&self, of: &LockOwner) -> bool {
        self.held_by(of).is_some()
    }

    /// Returns the number of locked ranges in all files.
    pub(crate) fn range_count(&self) -> usize {
        self.ranges
    }

    /// Returns the owners of a session that hold a lock on a file.
    pub(crate) fn owners(&self, session: SessionId, inode: InodeId) -> Vec<LockOwner> {
        let mut owners = Vec::new();
        // A fast path for the usual case that no file has a lock.
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

    /// Returns a held lock that conflicts with a claim.
    pub(crate) fn conflict(&self, inode: InodeId, claim: &LockClaim) -> Option<HeldLock> {
        let file = self.files.get(&(inode, claim.kind))?;
        file.held_against(claim).next().map(|it| it.to_held_lock())
    }

    /// Returns the lock that prevents the grant of `claim`: a held lock, a lock reserved for a
    /// woken waiter, or the requested lock of an earlier waiter with a barrier. `wait` is the id of
    /// the wait for this claim, or zero if the claim is not in the queue.
    pub(crate) fn obstacle(
        &self,
        inode: InodeId,
        claim: &LockClaim,
        wait: u64,
        now: Duration,
    ) -> Option<HeldLock> {
        let file = self.files.get(&(inode, claim.kind))?;
        let held = file.held_against(claim).next();
        let firm = || {
            let mut firm = file.queue.firm_before((claim.owner.0, wait), now);
            firm.find(|it| it.claim.conflicts(claim)).map(|it| it.claim.clone())
        };
        held.or_else(firm).map(|it| it.to_held_lock())
    }

    /// Returns two lists: the locks that a session holds on a file, and the locks for which the
    /// session waits, in the order of the queue.
    pub(crate) fn of_session(
        &self,
        session: SessionId,
        inode: InodeId,
    ) -> (Vec<HeldLock>, Vec<HeldLock>) {
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for kind in LockKind::ALL {
            let Some(file) = self.files.get(&(inode, kind)) else { continue };
            for (owner, of_owner) in file.held.range((session, 0)..=(session, u64::MAX)) {
                let to_held_lock = |(range, mode)| {
                    LockClaim { owner: *owner, kind, mode, range, pid: of_owner.pid }.to_held_lock()
                };
                held.extend(of_owner.ranges.iter().map(to_held_lock));
            }
            let waits = file.queue.iter().filter(|it| it.claim.owner.0 == session);
            waiting.extend(waits.map(|it| it.claim.to_held_lock()));
        }
        (held, waiting)
    }

    /// Returns the time at which the oldest wait of a session for a lock on a file began. `None`
    /// means that the session waits for no lock on the file.
    pub(crate) fn waits_since(&self, session: SessionId, inode: InodeId) -> Option<Duration> {
        let files = LockKind::ALL.into_iter().filter_map(|kind| self.files.get(&(inode, kind)));
        let waits = files.flat_map(|file| file.queue.iter());
        waits.filter(|it| it.claim.owner.0 == session).map(|it| it.since).min()
    }

    /// Iterates over all held locks. Only checks of invariants use it.
    pub(crate) fn all(&self) -> impl Iterator<Item = (InodeId, HeldLock)> + '_ {
        self.files.iter().flat_map(|((inode, kind), file)| {
            file.held.iter().flat_map(move |(owner, held)| {
                held.ranges.iter().map(move |(range, mode)| {
                    let claim =
                        LockClaim { owner: *owner, kind: *kind, mode, range, pid: held.pid };
                    (*inode, claim.to_held_lock())
                })
            })
        })
    }

    // ---- waits

    /// Returns the number of waits in all queues.
    pub(crate) fn wait_count(&self) -> usize {
        self.waits
    }

    /// Returns for each session the number of waits that its locks block, and the number of waits
    /// that were not examined. The search is bounded, because the target's thread handles no
    /// requests meanwhile. The search examines at most [`WAITERS_EXAMINED`] waits. After the first
    /// wait, it examines at most [`MAX_HOLDERS_EXAMINED`] owners and waits of their files.
    pub(crate) fn waits_by_holder(&self) -> (BTreeMap<SessionId, usize>, usize) {
        let (mut waits, mut examined, mut steps) = (BTreeMap::new(), 0, 0);
        let all =
            self.waiting.iter().flat_map(|(owner, all)| all.iter().map(move |it| (owner, it)));
        for (owner, (file_key, number)) in all.take(WAITERS_EXAMINED) {
            let Some(file) = self.files.get(file_key) else { continue };
            let cost = file.held.len() + file.queue.len();
            if steps > 0 && steps + cost > MAX_HOLDERS_EXAMINED {
                break;
            }
            (steps, examined) = (steps + cost, examined + 1);
            let Some(wait) = file.queue.get((owner.0, *number)) else { continue };
            let mut last = None;
            for held in file.held_against(&wait.claim) {
                // The owners are sorted by their sessions. Count each session once.
                if last.replace(held.owner.0) != Some(held.owner.0) {
                    *waits.entry(held.owner.0).or_default() += 1;
                }
            }
        }
        (waits, self.waits.saturating_sub(examined))
    }

    /// Whether a wait is in the queue of a file.
    pub(crate) fn is_waiting(&self, file_key: FileKey, wait: (SessionId, u64)) -> bool {
        self.files.get(&file_key).is_some_and(|file| file.queue.has(wait))
    }

    /// Parks a `WaitLock` request in the queue, with its connection, its header and the time of its
    /// arrival. [`Self::wake`] returns the reply to the parked request later. If the wait is
    /// already in the queue, it keeps its position. If an earlier request of this wait is still
    /// parked, returns the reply to that request.
    pub(crate) fn wait(
        &mut self,
        inode: InodeId,
        claim: LockClaim,
        wait: u64,
        (connection, header, now): (ConnectionId, Header, Duration),
    ) -> Option<WaitAnswer> {
        let (file_key, owner) = ((inode, claim.kind), claim.owner);
        let until = now + WAIT_ANSWER;
        let state = WaitState::Parked { connection, header: Box::new(header), until };
        let file = self.files.entry(file_key).or_default();
        // A client may use the number of a wait again, for another owner. The queue then has only
        // the later wait.
        let former = file.queue.get((owner.0, wait)).map(|it| it.claim.owner);
        let (is_new, reply) = file.queue.put(wait, claim, (state, now));
        if let Some(former) = former {
            self.remove_waiting(former, (file_key, wait));
        }
        self.waiting.entry(owner).or_default().insert((file_key, wait));
        self.waits += usize::from(is_new);
        self.released.insert(file_key);
        self.set_due(file_key);
        reply
    }

    /// Removes a wait of an owner from `waiting`.
    fn remove_waiting(&mut self, owner: LockOwnerId, wait: (FileKey, u64)) {
        let waits = self.waiting.get_mut(&owner).expect("each wait is in `waiting`");
        waits.remove(&wait);
        if waits.is_empty() {
            self.waiting.remove(&owner);
        }
    }

    /// Removes a wait from its queue, because the client has the lock or no longer waits for it.
    /// Does nothing if the wait is not in the queue.
    pub(crate) fn end_wait(&mut self, file_key: FileKey, wait: (SessionId, u64)) {
        // The wait is not here if it has already ended, or if the client waits for a lock of the
        // other kind (POSIX or `flock`).
        let Some(file) = self.files.get_mut(&file_key) else { return };
        if let Some(ended) = file.queue.remove(wait) {
            self.after_wait(file_key, &ended);
            self.set_due(file_key);
        }
    }

    /// Updates the counts and `waiting` after the wait was removed from its queue. The caller then
    /// calls [`Self::set_due`], once for all removed waits of the file.
    fn after_wait(&mut self, file_key: FileKey, wait: &Wait) {
        self.waits -= 1;
        self.remove_waiting(wait.claim.owner, (file_key, wait.number));
        self.released.insert(file_key);
        self.forget_if_empty(file_key);
    }

    /// Updates the queue after a claim was granted. Removes the wait for this claim, and adds one
    /// to the `overtaken` count of each earlier wait that conflicts with the claim.
    pub(crate) fn granted(&mut self, inode: InodeId, claim: &LockClaim, wait: u64, now: Duration) {
        let file_key = (inode, claim.kind);
        let file = self.files.get_mut(&file_key).expect("a granted lock is in the table");
        let own = (claim.owner.0, wait);
        file.queue.overtake(own, now, |it| it.conflicts(claim));
        self.set_due(file_key);
        self.end_wait(file_key, own);
    }

    /// Removes all waits of a session. Returns the parked requests of these waits, to which the
    /// caller must reply.
    pub(crate) fn end_waits_of(&mut self, session: SessionId) -> Vec<(ConnectionId, Header)> {
        let owners = self.waiting.range((session, 0)..=(session, u64::MAX));
        let all: Vec<_> = owners.flat_map(|(_, waits)| waits.iter().copied()).collect();
        let (mut parked, mut changed) = (Vec::new(), BTreeSet::new());
        for (file_key, wait) in all {
            let Some(file) = self.files.get_mut(&file_key) else { continue };
            let Some(ended) = file.queue.remove((session, wait)) else { continue };
            self.after_wait(file_key, &ended);
            changed.insert(file_key);
            if let WaitState::Parked { connection, header, .. } = ended.state {
                parked.push((connection, *header));
            }
        }
        changed.into_iter().for_each(|file_key| self.set_due(file_key));
        parked
    }

    /// Wakes the waiters whose locks can now be set, and ends the waits that have expired. Returns
    /// the replies to their parked requests.
    pub(crate) fn wake(&mut self, now: Duration) -> Vec<WaitAnswer> {
        let mut replies = Vec::new();
        if self.waits == 0 {
            self.released.clear();
            return replies;
        }
        self.expire(now, &mut replies);
        for file_key in std::mem::take(&mut self.released) {
            let Some(file) = self.files.get_mut(&file_key) else { continue };
            let mut queue = std::mem::take(&mut file.queue);
            queue.wake(now, |claim| file.held_against(claim).next().is_some(), &mut replies);
            file.queue = queue;
            self.set_due(file_key);
        }
        replies
    }

    /// Adds to `replies` the replies to requests that were parked for the maximum time, and removes
    /// waits whose clients have not polled again in time.
    fn expire(&mut self, now: Duration, replies: &mut Vec<WaitAnswer>) {
        while let Some((_, file_key)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.pop_first();
            let Some(file) = self.files.get_mut(&file_key) else { continue };
            file.due = None;
            for expired in file.queue.expire(now, replies) {
                self.after_wait(file_key, &expired);
            }
            self.released.insert(file_key);
            self.set_due(file_key);
        }
    }

    /// Panics if an invariant of the module is violated. The caller compares the table with the
    /// records in the store.
    pub(crate) fn check_invariants(&self) {
        let (mut ranges, mut waits) = (0, BTreeSet::new());
        for ((inode, kind), file) in &self.files {
            assert!(!file.is_empty(), "file {inode} in the table has a lock or a wait");
            let mut exclusive = 0;
            for (owner, held) in &file.held {
                ranges += held.ranges.len();
                for (range, mode) in held.ranges.iter() {
                    exclusive += usize::from(mode == LockMode::Exclusive);
                    let claim =
                        LockClaim { owner: *owner, kind: *kind, mode, range, pid: held.pid };
                    assert!(
                        mode == LockMode::Shared || file.held_against(&claim).next().is_none(),
                        "the exclusive lock {claim:?} on file {inode} conflicts with no other lock"
                    );
                }
            }
            assert_eq!(file.exclusive, exclusive, "the count of exclusive ranges of file {inode}");
            file.queue.check_invariants();
            assert_eq!(file.due, file.queue.next_due(), "`due` has the next time of file {inode}");
            for wait in file.queue.iter() {
                waits.insert((wait.claim.owner, ((*inode, *kind), wait.number)));
            }
        }
        assert_eq!(self.ranges, ranges, "the count of ranges in all files");
        let due = self.files.iter().filter_map(|(key, file)| Some((file.due?, *key)));
        let due: BTreeSet<_> = due.collect();
        assert_eq!(self.due, due, "`due` has the files with waits");
        assert_eq!(self.waits, waits.len(), "the count of waits in all queues");
        let by_owner = self.waiting.iter();
        let by_owner: BTreeSet<_> =
            by_owner.flat_map(|(owner, all)| all.iter().map(move |it| (*owner, *it))).collect();
        assert_eq!(by_owner, waits, "`waiting` holds the waits of all queues");
    }
}

#[cfg(test)]
mod tests;

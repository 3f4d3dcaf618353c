//! The records of all operations of a mount, for programs that follow these operations (`skep
//! trace`).
//!
//! The mount adds the record of each operation to a separate ring buffer while a program requests
//! records, and for some seconds after the last request. So these records do not replace the
//! records of slow operations. At other times the mount only reads one variable for each operation.
//!
//! Owns the ring buffer, and the rule that decides which records a user may see: the records of the
//! user's own operations, or all records for root. `skep_metrics` defines the records. The program
//! that follows the operations selects them by path.
//!
//! # Invariants
//! - The ring has at most [`MAX_FOLLOWED`] records, and a reply at most [`MAX_PAGE_BYTES`].
//! - A worker never waits for a reader. The ring counts an operation as lost if a worker could not
//!   add its record, or if newer records replaced the record before the program requested it.
//!
//! `Ring::check_invariants` checks the length of the ring, and `page` asserts the size of a reply.
//!
//! Held by the test `traced_operations_beyond_the_limit_are_counted_as_lost`: the second invariant.

use skep_exporter::traces::{Moment, record_of};
use skep_metrics::{KeptOperation, Reason, TraceStore};
use skep_types::InodeId;
use skep_types::codec::{Codec, record};
use skep_types::text::escape_controls;
use skep_wire::traces::TraceRecord;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// Maximum number of records in the ring. If each record contains the maximum number of requests,
/// the ring takes about 9 MB.
const MAX_FOLLOWED: usize = 2048;
/// Maximum size of a reply. The kernel limits the value of an attribute to 64 KiB.
const MAX_PAGE_BYTES: usize = 60_000;
/// How long the mount records all operations after the last request of a program.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of programs whose own operations the ring leaves out because the programs follow
/// the operations of the mount.
const MAX_FOLLOWERS: usize = 16;

record! {
    /// The names of entries in a request of the kernel. A name has at most 255 bytes, which a
    /// program has chosen freely.
    #[derive(Default)]
    pub struct EntryNames {
        /// Name of an entry in a directory. The record of the operation has the inode of this
        /// directory. Empty if the request has no name.
        pub name: Vec<u8>,
        /// The directory of `new_name` if the operation is a rename. The inode of the entry `name`
        /// if the mount has looked up or created it. Zero if neither is the case.
        pub other_inode: InodeId,
        /// The new name of a renamed entry. Empty if the operation is not a rename.
        pub new_name: Vec<u8>,
    }
}

impl EntryNames {
    /// Returns the object of a request in words, for the log. `node` is the inode in the header of
    /// the request: the directory of the entry, or the object itself if the request has no name.
    pub(crate) fn object(&self, node: InodeId) -> String {
        let shown = |name: &[u8]| escape_controls(&String::from_utf8_lossy(name)).into_owned();
        let Self { name, other_inode, new_name } = self;
        match (name.is_empty(), new_name.is_empty()) {
            (true, _) => format!("inode {node}"),
            (false, true) => format!("'{}' in directory {node}", shown(name)),
            (false, false) => format!(
                "'{}' in directory {node} to '{}' in directory {other_inode}",
                shown(name),
                shown(new_name)
            ),
        }
    }
}

record! {
    /// An operation of a mount, together with the names in its request. The record of the operation
    /// alone has no names.
    #[derive(Default)]
    pub struct FollowedOperation {
        /// The record of the operation.
        pub record: TraceRecord,
        /// The names of entries in the request.
        pub names: EntryNames,
        /// The kernel's error number in the reply. Zero means that the operation succeeded.
        pub errno: u32,
    }
}

record! {
    /// The operations that a mount has completed after a position.
    #[derive(Default)]
    pub struct FollowedOperations {
        /// The operations that the user may see, in the order of their ends.
        pub operations: Vec<FollowedOperation>,
        /// Position for the program's next request. A program begins with zero.
        pub next: u64,
        /// Number of lost operations, of all users, between the position in the request and `next`.
        pub lost: u64,
    }
}

/// A program that requests the records of operations, or the load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Follower {
    pub(crate) uid: u32,
    /// Process id. Zero means a program of another container.
    pub(crate) pid: u32,
}

/// An operation in the ring.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) kept: KeptOperation,
    pub(crate) names: EntryNames,
    /// The kernel's error number in the reply. Zero means success.
    pub(crate) errno: u32,
}

#[derive(Debug)]
struct Ring {
    /// Sequence number of the newest operation. If a worker could not add the record of an
    /// operation, its sequence number is missing in `records`.
    newest: u64,
    records: VecDeque<Followed>,
    /// The programs that follow the operations, each with the time of its last request.
    followers: VecDeque<(u32, Duration)>,
}

/// The recent operations of a mount, for programs that follow them.
#[derive(Debug)]
pub(crate) struct Following {
    /// Time until which the mount records all operations, in nanoseconds since the boot of the
    /// host.
    until_ns: AtomicU64,
    /// Number of operations that workers could not add to the ring since the last operation that
    /// was added.
    missed: AtomicU64,
    /// The mutex protects only the ring. Workers do not wait for the mutex.
    ring: Mutex<Ring>,
}

impl Default for Following {
    fn default() -> Self {
        // A program sends position zero in its first request. So the positions in replies begin at
        // one, and the first operation has the sequence number two.
        let ring = Ring { newest: 1, records: VecDeque::new(), followers: VecDeque::new() };
        Self { until_ns: AtomicU64::new(0), missed: AtomicU64::new(0), ring: Mutex::new(ring) }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Following {
    /// Whether the mount records operations that end at `now`.
    pub(crate) fn is_active(&self, now: Duration) -> bool {
        nanoseconds(now) < self.until_ns.load(Ordering::Relaxed)
    }

    /// Whether the mount records operations now. Reads no clock if no program has followed the
    /// operations yet.
    pub(crate) fn is_active_now(&self) -> bool {
        self.until_ns.load(Ordering::Relaxed) != 0 && self.is_active(skep_env::now())
    }

    /// Adds an operation of the process `pid` to the ring. Leaves out the operations of programs
    /// that follow the operations, because each of their requests is an operation of the mount too.
    pub(crate) fn keep(&self, pid: u32, mut followed: Followed) {
        let mut ring = match self.ring.try_lock() {
            Ok(ring) => ring,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.missed.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        if pid != 0 && ring.followers.iter().any(|(follower, _)| *follower == pid) {
            return;
        }
        ring.newest += 1 + self.missed.swap(0, Ordering::Relaxed);
        followed.kept.number = ring.newest;
        if ring.records.len() == MAX_FOLLOWED {
            ring.records.pop_front();
        }
        ring.records.push_back(followed);
        if cfg!(debug_assertions) {
            ring.check_invariants();
        }
    }

    /// Returns the operations after the position `after`. If `after` is zero, returns no
    /// operations, and the current position for the next request.
    pub(crate) fn ask(&self, after: u64, by: Follower, now: Duration) -> FollowedOperations {
        let was_active = self.is_active(now);
        self.until_ns.store(nanoseconds(now + PATIENCE), Ordering::Relaxed);
        let mut ring = self.ring();
        if !was_active {
            ring.records.clear();
            ring.followers.clear();
        }
        ring.note(by.pid, now);
        if cfg!(debug_assertions) {
            ring.check_invariants();
        }
        if after == 0 {
            return FollowedOperations { next: ring.newest, ..FollowedOperations::default() };
        }
        page(&ring, after, by.uid)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn note(&mut self, pid: u32, now: Duration) {
        self.followers.retain(|(known, at)| *known != pid && now.saturating_sub(*at) < PATIENCE);
        if self.followers.len() == MAX_FOLLOWERS {
            self.followers.pop_front();
        }
        self.followers.push_back((pid, now));
    }

    /// Panics if an invariant of the ring is violated.
    fn check_invariants(&self) {
        assert!(self.records.len() <= MAX_FOLLOWED, "the ring has at most {MAX_FOLLOWED} records");
        assert!(
            self.followers.len() <= MAX_FOLLOWERS,
            "the ring has at most {MAX_FOLLOWERS} followers"
        );
        assert!(
            self.records.back().is_none_or(|it| it.kept.number <= self.newest),
            "no record has a higher number than the newest operation"
        );
    }
}

/// Returns the operations after the position `after` that the user `uid` may see, as many as fit
/// into a reply.
fn page(ring: &Ring, after: u64, uid: u32) -> FollowedOperations {
    let moment = Moment::read();
    let mut answer = FollowedOperations { next: ring.newest.max(after), ..Default::default() };
    let mut bytes = answer.to_bytes().len();
    let (mut seen, mut last) = (0, after);
    for followed in ring.records.iter().filter(|it| it.kept.number > after) {
        let kept = &followed.kept;
        if uid == 0 || kept.origin.user == Some(uid) {
            let (names, errno) = (followed.names.clone(), followed.errno);
            let operation = FollowedOperation { record: record_of(kept, moment), names, errno };
            bytes += operation.to_bytes().len();
            if bytes > MAX_PAGE_BYTES {
                answer.next = last;
                break;
            }
            answer.operations.push(operation);
        }
        (seen, last) = (seen + 1, kept.number);
    }
    answer.lost = (answer.next - after).saturating_sub(seen);
    debug_assert!(
        answer.to_bytes().len() <= MAX_PAGE_BYTES,
        "a reply has at most {MAX_PAGE_BYTES} bytes"
    );
    answer
}

/// Returns the newest slow operations that the user `uid` may see, as many as fit into a reply. The
/// mount keeps their records at all times, without the names.
pub(crate) fn slow_operations(store: &TraceStore, uid: u32) -> FollowedOperations {
    let moment = Moment::read();
    let found = store.read(None, 0, usize::MAX);
    let mut answer = FollowedOperations { next: found.next, ..FollowedOperations::default() };
    let mut bytes = answer.to_bytes().len();
    let is_shown = |it: &&KeptOperation| {
        it.reason == Reason::Slow && (uid == 0 || it.origin.user == Some(uid))
    };
    for kept in found.operations.iter().rev().filter(is_shown) {
        let record = record_of(kept, moment);
        let operation = FollowedOperation { record, ..FollowedOperation::default() };
        bytes += operation.to_bytes().len();
        if bytes > MAX_PAGE_BYTES {
            break;
        }
        answer.operations.push(operation);
    }
    answer.operations.reverse();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::{
        Completed, OperationTable, Origin, Registry, TracedCall, TracedCalls, catalog,
    };

    const START: Duration = Duration::from_secs(100);

    fn operation(object: u64, user: u32, calls: usize) -> Followed {
        let call = TracedCall {
            message: 96,
            target: 7,
            begin: Duration::ZERO,
            duration: Duration::from_millis(1),
            is_failed: false,
            times_us: None,
        };
        let kept = KeptOperation {
            number: 0,
            reason: Reason::Sampled,
            completed: Completed { object, ..Completed::default() },
            origin: Origin { user: Some(user), ..Origin::default() },
            service: "mount",
            name: "read".into(),
            target: 0,
            calls: TracedCalls { calls: vec![call; calls], left_out: 0, waits: Vec::new() },
        };
        let names = EntryNames { name: vec![b'n'; 255], ..EntryNames::default() };
        Followed { kept, names, errno: 2 }
    }

    fn ask(following: &Following, after: u64, uid: u32) -> (Vec<u64>, u64, u64) {
        let answer = following.ask(after, Follower { uid, pid: 50 }, START);
        let inodes = answer.operations.iter().map(|it| it.record.inode.raw()).collect();
        (inodes, answer.next, answer.lost)
    }

    #[test]
    fn traced_request_shows_its_names_without_control_characters() {
        let object = |names: &EntryNames| names.object(InodeId::new(9));
        let mut names = EntryNames::default();
        assert_eq!(object(&names), "inode 0-9");
        names.name = b"a\nb".to_vec();
        assert_eq!(object(&names), "'a\\nb' in directory 0-9");
        names.new_name = b"c".to_vec();
        names.other_inode = InodeId::new(7);
        assert_eq!(object(&names), "'a\\nb' in directory 0-9 to 'c' in directory 0-7");
    }

    #[test]
    fn user_sees_only_own_operations_and_root_sees_all() {
        let following = Following::default();
        assert!(!following.is_active(START));
        let (none, begin, _) = ask(&following, 0, 1000);
        assert_eq!(none, Vec::<u64>::new());
        assert!(following.is_active(START) && !following.is_active(START + PATIENCE));
        for (inode, user, pid) in [(5, 1000, 60), (6, 1001, 61), (7, 1000, 50), (8, 1000, 0)] {
            following.keep(pid, operation(inode, user, 1));
        }
        // The reply does not contain the operations of the program that requests it.
        let (own, next, lost) = ask(&following, begin, 1000);
        assert_eq!((own, lost), (vec![5, 8], 0));
        assert_eq!(ask(&following, begin, 0).0, [5, 6, 8]);
        assert_eq!(ask(&following, next, 0), (Vec::new(), next, 0));
    }

    #[test]
    #[should_panic(expected = "the ring has at most 2048 records")]
    fn ring_with_too_many_records_violates_its_invariant() {
        let following = Following::default();
        let mut ring = following.ring();
        ring.records.extend((0..=MAX_FOLLOWED).map(|_| operation(5, 1000, 0)));
        ring.check_invariants();
    }

    #[test]
    fn traced_operations_beyond_the_limit_are_counted_as_lost() {
        let following = Following::default();
        let (_, begin, _) = ask(&following, 0, 0);
        let all = MAX_FOLLOWED as u64 + 10;
        for inode in 1..=all {
            following.keep(60, operation(inode, 1000, 0));
        }
        {
            let _reader = following.ring();
            following.keep(60, operation(9_999, 1000, 0));
        }
        following.keep(60, operation(10_000, 1000, 0));
        let (mut after, mut seen, mut lost) = (begin, Vec::new(), 0);
        loop {
            let (inodes, next, more_lost) = ask(&following, after, 0);
            lost += more_lost;
            if inodes.is_empty() {
                break;
            }
            seen.extend(inodes);
            after = next;
        }
        // Newer operations replaced eleven operations, and one operation ended while a reader had
        // locked the ring.
        assert_eq!(lost, 12);
        assert_eq!((seen.len(), seen[0], seen.last()), (MAX_FOLLOWED, 12, Some(&10_000)));
        // A record with the maximum number of requests fits into a reply.
        following.keep(60, operation(1, 1000, 64));
        assert_eq!(ask(&following, after, 0).0, [1]);
        // A later follower does not get the operations that were recorded for an earlier follower.
        let later = Follower { uid: 0, pid: 51 };
        let late = following.ask(begin, later, START + PATIENCE * 2);
        assert_eq!(late.operations.len(), 0);
    }

    #[test]
    fn user_sees_only_own_slow_operations() {
        let registry = Registry::new();
        let name = |_| Some("read".to_owned());
        let table = OperationTable::new(&registry, &catalog::MOUNT, Vec::new(), name);
        let end = |object: u64, user: u32, duration_ms: u64, calls: usize| {
            let duration = Duration::from_millis(duration_ms);
            let completed = Completed { object, duration, ..Completed::default() };
            let Followed { kept, .. } = operation(object, user, calls);
            table.record_with(&completed, &kept.origin, || kept.calls);
        };
        end(5, 1000, 900, 0);
        end(6, 1001, 900, 0);
        end(7, 1000, 0, 0);
        let seen = |uid| -> Vec<u64> {
            let answer = slow_operations(registry.traces(), uid);
            assert!(answer.to_bytes().len() <= MAX_PAGE_BYTES);
            answer.operations.iter().map(|it| it.record.inode.raw()).collect()
        };
        assert_eq!((seen(1000), seen(0)), (vec![5], vec![5, 6]));
        // If not all records fit into a reply, the reply has the newest records.
        (100..200).for_each(|object| end(object, 1000, 60_000, 64));
        let many = seen(1000);
        assert!(many.len() > 10 && many.len() < 100 && many.last() == Some(&199), "{many:?}");
    }
}

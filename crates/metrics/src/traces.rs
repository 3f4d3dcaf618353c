//! Records of single operations: slow operations, and a sample of all operations.
//!
//! [`crate::tail`] decides whether an operation was slow. `skep-exporter` has the message that
//! carries records.
//!
//! # Invariants
//! - For an operation without a record, the thread takes no lock and allocates no memory.
//! - A thread that stores a record never waits for the lock of the rings. If another thread has the
//!   lock, the thread counts the operation as lost.
//! - The rings are bounded. A new record replaces the oldest record of its ring.
//!
//! `Rings::check_invariants` checks the lengths of the rings. The first invariant concerns callers
//! of this module: a caller creates a record only for an operation that is slow or sampled.
//!
//! Held by the tests `record_is_counted_as_lost_while_a_reader_holds_the_lock` (the second
//! invariant) and `slow_trace_records_never_displace_sampled_records` (the replaced records).

use crate::accounts::Origin;
use crate::completed::Completed;
use crate::stage::STAGES;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Maximum number of records of slow operations that a process stores.
const SLOW_RECORDS: usize = 1024;
/// Maximum number of records of sampled operations that a process stores.
const SAMPLED_RECORDS: usize = 512;
/// One in 2^`SAMPLE_BITS` trace ids belongs to the sample.
const SAMPLE_BITS: u32 = 10;

/// Whether an operation belongs to the sample. All processes store their records of such an
/// operation. Each process computes the same result from the trace id, so the records of a sampled
/// operation are complete.
pub fn is_sampled(trace: u128) -> bool {
    // The product depends on the process and on the operation, because the trace id contains the
    // ids of both. Ids of operations are ascending numbers, so a multiplication by the golden ratio
    // spreads these ids evenly.
    let mixed = ((trace >> 64) as u64 ^ trace as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    trace != 0 && mixed >> (u64::BITS - SAMPLE_BITS) == 0
}

/// The reason why a record is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The operation took much longer than other operations of its kind.
    Slow,
    /// The trace id belongs to the sample.
    Sampled,
}

/// A request that was sent to a target for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedCall {
    /// Message number of the request.
    pub message: u16,
    /// Id of the target that received the request. Zero means the node itself.
    pub target: u32,
    /// Time from the start of the operation to the start of the request.
    pub begin: Duration,
    /// Time from the request to its reply.
    pub duration: Duration,
    /// Whether the target has refused the request, or has not replied.
    pub is_failed: bool,
    /// Time of the request in each stage at the target, in microseconds. `None` if the reply did
    /// not contain these times.
    pub times_us: Option<[u32; STAGES]>,
}

/// A time in which an operation waited for a group that did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedWait {
    /// Id of the group.
    pub group: u32,
    /// Id of the target that had to serve the group when the first attempt failed. Zero means that
    /// no member served the group.
    pub target: u32,
    /// Id of the target that served the group at the end of the wait. Zero means that the mount has
    /// given up.
    pub served_by: u32,
    /// Time from the start of the operation to the first failed attempt.
    pub begin: Duration,
    /// Time from the first failed attempt to the last attempt.
    pub duration: Duration,
    /// The last error for `target`.
    pub error: String,
}

/// The requests of one operation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TracedCalls {
    /// The requests, in the order in which their replies arrived.
    pub calls: Vec<TracedCall>,
    /// Number of further requests that are not in `calls`.
    pub left_out: u32,
    /// The longest waits for groups that did not answer.
    pub waits: Vec<TracedWait>,
}

/// The stored record of an operation.
#[derive(Debug, Clone)]
pub struct KeptOperation {
    /// Sequence number of the record in its process.
    pub number: u64,
    /// The reason why the record is stored.
    pub reason: Reason,
    /// The measurements of the operation.
    pub completed: Completed,
    /// The cause of the operation.
    pub origin: Origin,
    /// The kind of the process: `mount`, `metadata`, `storage` or `management`.
    pub service: &'static str,
    /// Name of the kind of operation.
    pub name: String,
    /// Id of the target at which the operation ran. Zero in a mount and in management.
    pub target: u32,
    /// The requests and waits of the operation, if the process is a mount. For a metadata target,
    /// [`TracedCalls::waits`] has the storage target for which the operation has waited.
    pub calls: TracedCalls,
}

/// The reply to a query for records.
#[derive(Debug, Default)]
pub struct KeptOperations {
    /// The records in the order of their record numbers.
    pub operations: Vec<KeptOperation>,
    /// Number of operations since the start of the process that have no record, because a reader or
    /// another thread held the lock at that moment.
    pub lost: u64,
    /// Position for the next query. Each record up to this position is in `operations`, does not
    /// match the query, or was replaced.
    pub next: u64,
}

#[derive(Debug, Default)]
struct Rings {
    newest: u64,
    slow: VecDeque<KeptOperation>,
    sampled: VecDeque<KeptOperation>,
}

impl Rings {
    /// Panics if an invariant of the rings is violated.
    fn check_invariants(&self) {
        assert!(self.slow.len() <= SLOW_RECORDS, "at most {SLOW_RECORDS} slow operations");
        assert!(self.sampled.len() <= SAMPLED_RECORDS, "at most {SAMPLED_RECORDS} samples");
        let last = [&self.slow, &self.sampled].map(|ring| ring.back().map_or(0, |it| it.number));
        assert!(
            last.iter().all(|number| *number <= self.newest),
            "no record has a higher number than the newest record"
        );
    }
}

/// The store for the records of a process.
#[derive(Debug, Default)]
pub struct TraceStore {
    /// The mutex protects only the rings. A thread that stores a record does not wait for the
    /// mutex.
    rings: Mutex<Rings>,
    lost: AtomicU64,
}

impl TraceStore {
    /// Adds a record. If its ring is full, the new record replaces the oldest record of the ring.
    pub(crate) fn keep(&self, mut kept: KeptOperation) {
        let mut rings = match self.rings.try_lock() {
            Ok(rings) => rings,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        rings.newest += 1;
        kept.number = rings.newest;
        let (ring, limit) = match kept.reason {
            Reason::Slow => (&mut rings.slow, SLOW_RECORDS),
            Reason::Sampled => (&mut rings.sampled, SAMPLED_RECORDS),
        };
        if ring.len() == limit {
            ring.pop_front();
        }
        ring.push_back(kept);
        if cfg!(debug_assertions) {
            rings.check_invariants();
        }
    }

    /// Returns the next record number, for a record that the caller stores elsewhere.
    pub fn next_number(&self) -> u64 {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.newest += 1;
        rings.newest
    }

    /// Returns the records of slow and sampled operations whose record numbers are above `after`,
    /// the oldest first, but at most `limit` records. If `trace` is a trace id, returns only the
    /// records of this operation.
    pub fn read(&self, trace: Option<u128>, after: u64, limit: usize) -> KeptOperations {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let all = rings.slow.iter().chain(&rings.sampled);
        let mut found: Vec<_> = all
            .filter(|kept| kept.number > after)
            .filter(|kept| trace.is_none_or(|trace| kept.completed.trace == trace))
            .collect();
        found.sort_by_key(|kept| kept.number);
        let next = match found.get(limit.max(1) - 1) {
            Some(last) if found.len() > limit => last.number,
            _ => rings.newest.max(after),
        };
        let operations = found.into_iter().take(limit).cloned().collect();
        KeptOperations { operations, lost: self.lost.load(Ordering::Relaxed), next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(trace: u128, reason: Reason) -> KeptOperation {
        KeptOperation {
            number: 0,
            reason,
            completed: Completed { trace, ..Completed::default() },
            origin: Origin::default(),
            service: "storage",
            name: "read_chunk".into(),
            target: 7,
            calls: TracedCalls::default(),
        }
    }

    fn numbers(found: &KeptOperations) -> Vec<u64> {
        found.operations.iter().map(|kept| kept.number).collect()
    }

    #[test]
    fn one_of_1024_operations_of_any_process_is_sampled() {
        for process in [1_u128, 0xdead_beef_0123_4567] {
            let traces = (1..=1_u128 << 20).map(|number| process << 64 | number);
            let sampled = traces.filter(|trace| is_sampled(*trace)).count();
            assert!((1000..=1050).contains(&sampled), "{sampled}");
        }
        assert!(!is_sampled(0));
    }

    #[test]
    fn slow_trace_records_never_displace_sampled_records() {
        let store = TraceStore::default();
        store.keep(kept(99, Reason::Sampled));
        for number in 0..SLOW_RECORDS + 10 {
            store.keep(kept(number as u128, Reason::Slow));
        }
        let all = store.read(None, 0, usize::MAX);
        assert_eq!(all.operations.len(), SLOW_RECORDS + 1);
        assert_eq!((all.operations[0].number, all.operations[1].number), (1, 12));
        assert_eq!(all.next, SLOW_RECORDS as u64 + 11);
        assert_eq!(numbers(&store.read(Some(99), 0, usize::MAX)), [1, 101]);
    }

    #[test]
    #[should_panic(expected = "at most 512 samples")]
    fn ring_with_too_many_samples_violates_its_invariant() {
        let all = (0..=SAMPLED_RECORDS as u128).map(|trace| kept(trace, Reason::Sampled));
        Rings { sampled: all.collect(), ..Rings::default() }.check_invariants();
    }

    #[test]
    fn each_page_of_records_continues_after_the_previous_page() {
        let store = TraceStore::default();
        for number in 0..5 {
            store.keep(kept(number, if number == 2 { Reason::Sampled } else { Reason::Slow }));
        }
        let first = store.read(None, 0, 3);
        assert_eq!((numbers(&first), first.next), (vec![1, 2, 3], 3));
        let second = store.read(None, first.next, 3);
        assert_eq!((numbers(&second), second.next), (vec![4, 5], 5));
        let third = store.read(None, second.next, 3);
        assert_eq!((numbers(&third), third.next), (vec![], 5));
    }

    #[test]
    fn record_is_counted_as_lost_while_a_reader_holds_the_lock() {
        let store = TraceStore::default();
        let reading = store.rings.lock().unwrap();
        store.keep(kept(1, Reason::Slow));
        drop(reading);
        store.keep(kept(2, Reason::Slow));
        let all = store.read(None, 0, 10);
        assert_eq!((all.operations.len(), all.lost), (1, 1));
        assert_eq!(all.operations[0].completed.trace, 2);
    }
}

//! Counts the requests of a mount by user, group, job, target and kind. Programs ask the mount for
//! these counts (`skep stats --mount`).
//!
//! The threads of the mount count requests until the time that the last query of a program names.
//! At other times, the only cost of a request is the read of one variable. Requests of the mount
//! itself, which no program has caused, do not count. The requests of a program that queries the
//! load, such as the lookup of a path on the mount, are also not counted.
//!
//! This module is not responsible for the rule that decides which statistics a user may see
//! (`skep_fuse`), or the statistics of services (`skep_metrics`).
//!
//! # Invariants
//! - A table has at most [`MAX_CAUSES`] entries, and one more entry for all other causes, so the
//!   sums over the table are exact.
//! - A thread waits for a reader only while the reader replaces the table of the thread by an empty
//!   table. This step copies and allocates nothing.
//!
//! `check_invariants` checks the number of entries. No function can check the second invariant,
//! which follows from [`ThreadLoad::take`], because that method only replaces the table.

use crate::origin::Origin;
use skep_metrics::HistogramValue;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of causes in a table: ten kinds of requests of six users to 64 targets. Including
/// the histograms of durations, a table has at most 4 MB.
const MAX_CAUSES: usize = 4096;
/// Maximum number of programs that query the load at the same time. If more programs query the
/// load, the mount also counts the requests of the further programs.
const MAX_ASKERS: usize = 16;

/// The cause of requests, and the target that received them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct RequestCause {
    /// User id. `None` means that the counts belong to several users, because the table was full.
    pub user: Option<u32>,
    /// Group id.
    pub group: Option<u32>,
    /// Id of the job.
    pub job: Option<u32>,
    /// Id of the target. Zero means a service without targets, or several targets, because the
    /// table was full.
    pub target: u32,
    /// Id of the message type. Zero means several kinds of requests, because the table was full.
    pub message: u16,
}

/// Counts of requests that have ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestCounts {
    /// Number of requests.
    pub requests: u64,
    /// Number of requests with an error, or without a reply.
    pub failed: u64,
    /// Bytes of file data in replies.
    pub read_bytes: u64,
    /// Bytes of file data in requests.
    pub written_bytes: u64,
    /// Times from each request to its reply.
    pub durations: HistogramValue,
}

impl RequestCounts {
    /// Adds the counts in `other` to the counts in `self`.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.durations.add(&other.durations);
    }
}

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndedRequest {
    pub(crate) target: u32,
    pub(crate) message: u16,
    pub(crate) is_failed: bool,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) duration: Duration,
}

type Table = BTreeMap<RequestCause, RequestCounts>;

/// Returns the counts of a cause. If the table is full, returns the merged counts of further causes
/// of the same user. If the table has no entry for these causes either, returns the merged counts
/// of all further causes.
fn entry(table: &mut Table, cause: RequestCause) -> &mut RequestCounts {
    let merged = RequestCause { user: cause.user, ..RequestCause::default() };
    let has_place = |cause| table.contains_key(&cause) || table.len() < MAX_CAUSES;
    let chosen = [cause, merged].into_iter().find(|cause| has_place(*cause));
    table.entry(chosen.unwrap_or_default()).or_default()
}

/// Panics if a table has more entries than its maximum.
fn check_invariants(table: &Table) {
    let has_others = table.contains_key(&RequestCause::default());
    assert!(
        table.len() <= MAX_CAUSES + usize::from(has_others),
        "a table has at most {MAX_CAUSES} entries, and one entry more for all other causes"
    );
}

/// The table of one thread: the counts since the last query.
#[derive(Debug, Default)]
struct ThreadLoad(Mutex<Table>);

impl ThreadLoad {
    fn take(&self) -> Table {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The programs that query the load. Each program has a slot of 64 bits. The high half is its
/// process id. The low half is the time until which the program is in the list, in seconds since
/// the boot of the host. The slots have no lock, because all threads of the mount read them for
/// each request while a program queries the load.
#[derive(Debug, Default)]
struct Askers([AtomicU64; MAX_ASKERS]);

impl Askers {
    /// Returns the process id and the time in a slot.
    fn read(slot: &AtomicU64) -> (u32, u64) {
        let slot = slot.load(Ordering::Relaxed);
        ((slot >> 32) as u32, slot & u64::from(u32::MAX))
    }

    /// Adds a program to the list until a time. If the list is full, does nothing.
    fn add(&self, process: u32, until: Duration, now: Duration) {
        let of_process = || self.0.iter().find(|slot| Self::read(slot).0 == process);
        let unused = || self.0.iter().find(|slot| Self::read(slot).1 < now.as_secs());
        if let Some(slot) = of_process().or_else(unused) {
            let until = until.as_secs().min(u32::MAX.into());
            slot.store(u64::from(process) << 32 | until, Ordering::Relaxed);
        }
    }

    fn contains(&self, process: u32, now: Duration) -> bool {
        self.0.iter().map(Self::read).any(|it| it.0 == process && now.as_secs() <= it.1)
    }
}

/// Excludes the requests of one operation of the calling thread from the load until the value is
/// dropped.
#[derive(Debug)]
pub struct UncountedOperation(u32);

impl Drop for UncountedOperation {
    fn drop(&mut self) {
        // An error means that the thread ends, so it sends no more requests.
        let _ = UNCOUNTED.try_with(|all| all.borrow_mut().retain(|it| *it != self.0));
    }
}

#[derive(Debug, Default)]
struct Sums {
    /// Random number that changes when the counts are reset.
    incarnation: u64,
    table: Table,
    threads: Vec<Arc<ThreadLoad>>,
}

/// The counts of the requests that a mount has sent.
#[derive(Debug, Default)]
pub struct RequestLoad {
    /// Time until which the threads count requests, in nanoseconds since the boot of the host.
    until_ns: AtomicU64,
    askers: Askers,
    /// Lock order: the sums, then the table of a thread. A thread that counts a request locks only
    /// its table.
    sums: Mutex<Sums>,
}

thread_local! {
    static COUNTED: RefCell<Option<(Arc<RequestLoad>, Arc<ThreadLoad>)>> = const {
        RefCell::new(None)
    };
    /// Ids of the operations of this thread whose requests do not count.
    static UNCOUNTED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl RequestLoad {
    /// Makes the calling thread count its requests while a program queries the load.
    pub fn count_this_thread(self: &Arc<Self>) {
        let own = Arc::new(ThreadLoad::default());
        self.sums().threads.push(Arc::clone(&own));
        COUNTED.set(Some((Arc::clone(self), own)));
    }

    /// Calls `read` with the counts since the last reset, and with a number that changes at each
    /// reset. The threads continue to count for the time `lasts`.
    pub fn ask<T>(
        &self,
        lasts: Duration,
        now: Duration,
        read: impl FnOnce(u64, &BTreeMap<RequestCause, RequestCounts>) -> T,
    ) -> T {
        let mut sums = self.sums();
        let was_active = self.is_active(now);
        self.until_ns.fetch_max(nanoseconds(now + lasts), Ordering::Relaxed);
        let Sums { incarnation, table, threads } = &mut *sums;
        let counted: Vec<Table> = threads.iter().map(|thread| thread.take()).collect();
        if !was_active {
            // The threads have counted nothing since the end of the previous period, so the counts
            // start from zero.
            table.clear();
            *incarnation = skep_env::random_u64();
            return read(*incarnation, table);
        }
        for (cause, counts) in counted.into_iter().flatten() {
            entry(table, cause).add(&counts);
        }
        if cfg!(debug_assertions) {
            check_invariants(table);
        }
        read(*incarnation, table)
    }

    /// Records that a program queries the load, so that its own requests do not count for the time
    /// `lasts`. `process` 0 means a program of another container, whose requests count.
    pub fn add_asker(&self, process: u32, lasts: Duration, now: Duration) {
        if process != 0 {
            self.askers.add(process, now + lasts, now);
        }
    }

    /// If a program that queries the load has caused the operation with the given origin, excludes
    /// this operation from the load until the returned value is dropped. Returns `None` for
    /// operations of other programs, and while no program queries the load.
    pub fn leave_out_own(
        &self,
        process: u32,
        origin: Origin,
        now: impl FnOnce() -> Duration,
    ) -> Option<UncountedOperation> {
        // Without a query, do not read the clock.
        if process == 0 || self.until_ns.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let now = now();
        if !self.is_active(now) || !self.askers.contains(process, now) {
            return None;
        }
        UNCOUNTED.with_borrow_mut(|all| all.push(origin.operation()));
        Some(UncountedOperation(origin.operation()))
    }

    fn is_active(&self, now: Duration) -> bool {
        nanoseconds(now) < self.until_ns.load(Ordering::Relaxed)
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a request of the calling thread that ended at `now`.
pub(crate) fn count(origin: Origin, ended: &EndedRequest, now: Duration) {
    COUNTED.with_borrow(|counted| {
        let Some((_, own)) = counted.as_ref().filter(|(load, _)| load.is_active(now)) else {
            return;
        };
        let caused_by = origin.cause();
        // A request without a user belongs to the mount itself.
        if caused_by.user.is_none()
            || UNCOUNTED.with_borrow(|all| all.contains(&origin.operation()))
        {
            return;
        }
        let cause = RequestCause {
            user: caused_by.user,
            group: caused_by.group,
            job: caused_by.job,
            target: ended.target,
            message: ended.message,
        };
        let mut table = own.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = entry(&mut table, cause);
        counts.requests += 1;
        counts.failed += u64::from(ended.is_failed);
        counts.read_bytes += ended.read_bytes;
        counts.written_bytes += ended.written_bytes;
        counts.durations.record(ended.duration);
        if cfg!(debug_assertions) {
            check_invariants(&table);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);
    const LASTS: Duration = Duration::from_secs(10);

    fn request(user: u32, target: u32, now: Duration) {
        request_of(Origin::of_program(user, 5, 0), target, now);
    }

    fn request_of(origin: Origin, target: u32, now: Duration) {
        let ended = EndedRequest {
            target,
            message: 96,
            is_failed: target == 9,
            read_bytes: 1,
            written_bytes: 2,
            duration: Duration::from_millis(1),
        };
        count(origin, &ended, now);
    }

    fn counted(load: &RequestLoad, now: Duration) -> (u64, Vec<(Option<u32>, u32, u64)>) {
        load.ask(LASTS, now, |incarnation, table| {
            let rows = table.iter().map(|(it, counts)| (it.user, it.target, counts.requests));
            (incarnation, rows.collect())
        })
    }

    #[test]
    fn request_load_is_counted_while_a_program_queries_it() {
        let load = Arc::new(RequestLoad::default());
        load.count_this_thread();
        request(1000, 7, START);
        let (first, rows) = counted(&load, START);
        assert_eq!(rows, [], "no request counts before the first query");
        let other = Arc::clone(&load);
        let thread = std::thread::spawn(move || {
            other.count_this_thread();
            request(1000, 7, START + LASTS / 2);
        });
        thread.join().unwrap();
        request(1000, 7, START);
        request(1000, 9, START);
        request(2000, 7, START);
        let expected = [(Some(1000), 7, 2), (Some(1000), 9, 1), (Some(2000), 7, 1)];
        assert_eq!(counted(&load, START), (first, expected.to_vec()));
        assert_eq!(counted(&load, START).1, expected, "a query does not reset the counts");
        let sum = load.ask(LASTS, START, |_, table| {
            let mut sum = RequestCounts::default();
            table.values().for_each(|it| sum.add(it));
            sum
        });
        assert_eq!((sum.failed, sum.read_bytes, sum.written_bytes), (1, 4, 8));
        assert_eq!((sum.durations.count(), sum.durations.sum_ns), (4, 4_000_000));
        request(1000, 7, START + LASTS);
        let (second, rows) = counted(&load, START + LASTS);
        assert!(second != first && rows.is_empty(), "the counts start from zero: {rows:?}");
    }

    #[test]
    fn request_load_omits_requests_of_programs_that_query_it() {
        const ASKER: u32 = 50;
        const OTHER: u32 = 51;
        let load = Arc::new(RequestLoad::default());
        load.count_this_thread();
        counted(&load, START);
        load.add_asker(ASKER, LASTS, START);
        let send = |process, now| {
            let origin = Origin::of_program(1000, 5, 0).of_next_operation();
            let left_out = load.leave_out_own(process, origin, || now);
            request_of(origin, 7, now);
            left_out.is_some()
        };
        assert!(send(ASKER, START) && send(ASKER, START));
        assert!(!send(OTHER, START) && !send(0, START));
        assert_eq!(counted(&load, START).1, [(Some(1000), 7, 2)]);
        // The thread counts other operations while it leaves out one operation.
        let origin = Origin::of_program(1000, 5, 0).of_next_operation();
        let left_out = load.leave_out_own(ASKER, origin, || START);
        request_of(origin, 7, START);
        request(1000, 8, START);
        drop(left_out);
        request_of(origin, 9, START);
        let expected = [(Some(1000), 7, 2), (Some(1000), 8, 1), (Some(1000), 9, 1)];
        assert_eq!(counted(&load, START).1, expected);
        // The process id of a program that has ended may become the id of another program.
        let later = START + LASTS + Duration::from_secs(2);
        counted(&load, later);
        assert!(!send(ASKER, later));
        // A program in the list gets no second slot, and a new program gets an unused slot.
        for process in 1..=100 {
            load.add_asker(process, LASTS, later + LASTS * 3 * process);
            load.add_asker(process, LASTS, later + LASTS * 3 * process);
        }
        assert!(load.askers.contains(100, later + LASTS * 300));
    }

    #[test]
    #[should_panic(expected = "a table has at most 4096 entries")]
    fn table_with_too_many_causes_violates_its_invariant() {
        let cause = |target| RequestCause { target, ..RequestCause::default() };
        let targets = 1..=MAX_CAUSES as u32 + 1;
        let table: Table = targets.map(|it| (cause(it), RequestCounts::default())).collect();
        check_invariants(&table);
    }

    #[test]
    fn requests_of_causes_beyond_the_limit_are_counted_together() {
        let load = Arc::new(RequestLoad::default());
        load.count_this_thread();
        counted(&load, START);
        let all = MAX_CAUSES as u32;
        (0..2 * all).for_each(|target| request(1000, target, START));
        (0..5).for_each(|user| request(2000 + user, 7, START));
        let (_, rows) = counted(&load, START);
        assert!((MAX_CAUSES..=MAX_CAUSES + 1).contains(&rows.len()), "{}", rows.len());
        assert_eq!(
            rows.iter().map(|(.., requests)| requests).sum::<u64>(),
            2 * MAX_CAUSES as u64 + 5
        );
        assert_eq!(rows[0].0, None, "{:?}", rows[0]);
    }
}

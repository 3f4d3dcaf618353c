//! The slow operations of the last minutes, in memory, for the web page. The page shows a list of
//! these operations, and where each operation spent its time.
//!
//! This module chooses the records that are stored, and limits their number. Other modules request
//! the records (`record_rounds`), explain an operation in words (`skep_stats::operation`), and
//! decide that an operation was slow (`skep_metrics::tail`).
//!
//! # Invariants
//! - The book has at most [`MAX_OPERATIONS`] operations with at most [`MAX_RECORDS`] records each.
//! - The book drops an operation that ended more than [`KEPT`] ago. If the book is full, it drops
//!   the operation with the shortest duration.
//!
//! `SlowOperationBook::check_invariants` checks the counts and the ends of the operations.
//!
//! Held by the test `list_keeps_the_slowest_of_many_slow_operations`: the choice of the operation
//! that a full book drops.

use skep_stats::operation::{OperationReport, SlowOperation, Usual, explain, slowest};
use skep_types::ClusterMap;
use skep_wire::traces::TraceRecord;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for which an operation stays in the book.
const KEPT: Duration = Duration::from_secs(600);
/// Maximum number of operations in a [`SlowOperationBook`]. With 64 requests each, their records
/// take about 2 MB.
const MAX_OPERATIONS: usize = 512;
/// Maximum number of stored records of one operation. The records come from the mount of the
/// operation and from services.
const MAX_RECORDS: usize = 16;
/// Maximum number of operations in a list.
pub(crate) const MAX_LISTED: usize = 100;

/// The slow operations, by trace id.
#[derive(Debug, Default)]
pub(crate) struct SlowOperationBook {
    operations: BTreeMap<u128, Vec<TraceRecord>>,
}

fn duration_us(records: &[TraceRecord]) -> u64 {
    records.iter().map(|record| record.duration_us).max().unwrap_or(0)
}

impl SlowOperationBook {
    /// Adds the new records of slow operations. Ignores all other records.
    ///
    /// The end of an operation is a time of its host. If the clock of this host is ahead, the
    /// operation counts as one that has just ended. Otherwise, the operation would stay in the book
    /// until the clocks of all other hosts have reached this time.
    pub(crate) fn add(&mut self, records: Vec<TraceRecord>, now_us: u64) {
        for mut record in records.into_iter().filter(|it| it.is_slow && it.trace != 0) {
            record.ended_us = record.ended_us.min(now_us);
            let own = self.operations.entry(record.trace).or_default();
            if own.len() < MAX_RECORDS {
                own.push(record);
            }
        }
        let oldest_us = now_us.saturating_sub(KEPT.as_micros() as u64);
        self.operations.retain(|_, own| own.iter().any(|record| record.ended_us >= oldest_us));
        while self.operations.len() > MAX_OPERATIONS {
            let shortest = self.operations.iter().min_by_key(|(_, own)| duration_us(own));
            let Some(trace) = shortest.map(|(trace, _)| *trace) else { break };
            self.operations.remove(&trace);
        }
        if cfg!(debug_assertions) {
            self.check_invariants(oldest_us);
        }
    }

    /// Panics if an invariant of the book is violated. `oldest_us` is the earliest end of an
    /// operation that the book keeps, in microseconds since 1970.
    fn check_invariants(&self, oldest_us: u64) {
        assert!(
            self.operations.len() <= MAX_OPERATIONS,
            "the book has at most {MAX_OPERATIONS} operations"
        );
        for (trace, own) in &self.operations {
            assert!(
                (1..=MAX_RECORDS).contains(&own.len()),
                "operation {trace:x} has at most {MAX_RECORDS} records"
            );
            assert!(
                own.iter().any(|record| record.ended_us >= oldest_us),
                "operation {trace:x} ended at most {KEPT:?} ago"
            );
        }
    }

    /// Returns the slowest operations that ended in the last `span_ms` milliseconds, but at most
    /// `most` operations.
    pub(crate) fn list(
        &self,
        map: &ClusterMap,
        (now_ms, span_ms): (u64, u64),
        most: usize,
    ) -> Vec<SlowOperation> {
        let since_us = now_ms.saturating_sub(span_ms).saturating_mul(1000);
        slowest(self.operations.values().flatten(), map, since_us, most)
    }

    /// Explains one operation. `None` means that the book does not contain the operation.
    pub(crate) fn explain(
        &self,
        trace: u128,
        map: &ClusterMap,
        usual: &Usual,
    ) -> Option<OperationReport> {
        explain(self.operations.get(&trace)?, map, usual)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use skep_types::ClusterId;

    const NOW_US: u64 = 1_800_000_000_000_000;

    /// Returns a mount's record of a slow operation.
    pub(crate) fn record(trace: u128, ended_us: u64, duration_us: u64) -> TraceRecord {
        TraceRecord {
            trace,
            service: "mount".into(),
            operation: "fsync".into(),
            user: Some(1000),
            ended_us,
            duration_us,
            is_slow: true,
            ..TraceRecord::default()
        }
    }

    /// Returns a book with the operations of these records.
    pub(crate) fn book(records: Vec<TraceRecord>, now_us: u64) -> SlowOperationBook {
        let mut book = SlowOperationBook::default();
        book.add(records, now_us);
        book
    }

    fn traces(book: &SlowOperationBook, span_ms: u64) -> Vec<String> {
        let map = ClusterMap::empty(ClusterId::default());
        let listed = book.list(&map, (NOW_US / 1000, span_ms), MAX_LISTED);
        listed.into_iter().map(|it| it.trace.trim_start_matches('0').to_owned()).collect()
    }

    #[test]
    fn slowest_operations_of_the_span_are_listed_first() {
        let sampled = TraceRecord { is_slow: false, ..record(9, NOW_US, 9_000) };
        let old = NOW_US - KEPT.as_micros() as u64 - 1;
        let records = vec![
            record(1, NOW_US - 90_000_000, 5_000),
            record(2, NOW_US, 2_000),
            record(3, NOW_US, 3_000),
            record(4, old, 8_000),
            record(0, NOW_US, 9_000),
            sampled,
        ];
        let book = book(records, NOW_US);
        assert_eq!(traces(&book, 600_000), ["1", "3", "2"]);
        assert_eq!(traces(&book, 60_000), ["3", "2"]);
        let map = ClusterMap::empty(ClusterId::default());
        let explained =
            book.explain(3, &map, &Usual::default()).expect("the operation is in the list");
        assert_eq!((explained.operation.as_str(), explained.ms), ("fsync", 3.0));
        assert_eq!(book.explain(9, &map, &Usual::default()), None);
    }

    #[test]
    fn operation_of_a_host_with_a_fast_clock_is_dropped_in_time() {
        let day_us = 86_400_000_000;
        let mut book = book(vec![record(5, NOW_US + day_us, 9_000_000)], NOW_US);
        assert_eq!(traces(&book, 60_000), ["5"]);
        book.add(Vec::new(), NOW_US + KEPT.as_micros() as u64 + 1);
        assert!(book.operations.is_empty(), "{book:?}");
    }

    #[test]
    #[should_panic(expected = "operation 7 ended at most 600s ago")]
    fn check_panics_if_the_book_has_an_operation_that_is_too_old() {
        let mut book = SlowOperationBook::default();
        book.operations.insert(7, vec![record(7, NOW_US, 5_000)]);
        book.check_invariants(NOW_US + 1);
    }

    #[test]
    fn list_keeps_the_slowest_of_many_slow_operations() {
        let mut book = SlowOperationBook::default();
        for trace in 1..=2 * MAX_OPERATIONS as u64 {
            book.add(vec![record(trace.into(), NOW_US, trace); 2 * MAX_RECORDS], NOW_US);
        }
        assert_eq!(book.operations.len(), MAX_OPERATIONS);
        assert!(book.operations.values().all(|own| own.len() == MAX_RECORDS));
        assert!(book.operations.keys().all(|trace| *trace > MAX_OPERATIONS as u128));
        assert_eq!(traces(&book, 600_000).len(), MAX_LISTED);
    }
}

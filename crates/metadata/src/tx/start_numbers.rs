//! The starts of a target, by their *start numbers*. With these numbers, the target finds out
//! whether an acknowledged change that was not synced is still in its log.
//!
//! An acknowledgement contains the start number and the LSN of a change. If a later start began
//! with the same or a lower LSN, the log had ended before the acknowledged record. So the host had
//! lost power, and the record is lost. If only the process was killed, no record is lost, and the
//! first record of the next start follows all acknowledged records.
//!
//! The start number is also the high part of the versions (change counters) of inodes. So two
//! states of an inode never have the same version, and clients can rely on the order of versions.
//! For the same reason, the high part of a truncate generation is the start number minus one.
//!
//! Invariant: the record of a start is *safe* (every serving member has synced it) before the
//! target acknowledges any change of this start. Without this order, the next start could use the
//! same number.

use crate::tx::pattern_changes::PatternChanges;
use skep_types::Lsn;
use skep_wire::inline::InlineMark;
use skep_wire::limits::MAX_STARTS;
use std::collections::BTreeMap;

/// Number of low bits of a change counter, which count the changes of an inode within a start. In a
/// truncate generation, these bits count the truncations. These bits overflow only after 2^40
/// changes of one inode within a start. With 100,000 changes per second, this takes 127 days.
const VERSION_BITS: u32 = 40;
/// A target whose directory was restored from a backup skips this number of start numbers.
const SKIPPED_STARTS: u64 = 1 << 12;

/// The latest starts of the target, at most [`MAX_STARTS`].
#[derive(Debug, Default)]
pub(crate) struct StartNumbers {
    /// LSN of the first log record of each start, by start number. The last element is the current
    /// start.
    first: BTreeMap<u64, Lsn>,
    /// Log record that contains the current start. `None` means that the start is not logged yet.
    logged: Option<Lsn>,
    is_safe: bool,
    /// Changes of stripe patterns in the current start that are not safe yet.
    pub(crate) patterns: PatternChanges,
    /// Number of changes of clients that the target has executed in the current start.
    changes: u64,
}

impl StartNumbers {
    /// Adds a start that the target has found in its store.
    pub(crate) fn load(&mut self, number: u64, first: Lsn) {
        self.first.insert(number, first);
    }

    /// Assigns the next start number to a start whose first log record is `first`.
    pub(crate) fn begin(&mut self, first: Lsn) {
        let number = self.number() + 1;
        self.first.insert(number, first);
    }

    /// Skips more start numbers than the target can have used after the backup of its directory.
    /// All changes that the target acknowledged before this start then count as lost. The caller
    /// calls this function before it logs the start.
    pub(crate) fn skip(&mut self) {
        if let Some((number, first)) = self.first.pop_last() {
            self.first.insert(number + SKIPPED_STARTS, first);
        }
    }

    fn number(&self) -> u64 {
        self.first.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Returns the numbers of all starts except the newest [`MAX_STARTS`] starts.
    pub(crate) fn surplus(&self) -> Vec<u64> {
        let count = self.first.len().saturating_sub(MAX_STARTS);
        self.first.keys().take(count).copied().collect()
    }

    /// Returns the current start number. `None` means that the record of the start is not *safe*
    /// yet.
    pub(crate) fn current(&self) -> Option<u64> {
        self.is_safe.then(|| self.number())
    }

    /// Returns the first version (change counter) of inodes in the current start. All versions of
    /// earlier starts are lower than this version, including versions of changes that a power loss
    /// has reverted.
    pub(crate) fn first_version(&self) -> u64 {
        self.number() << VERSION_BITS
    }

    /// Returns the lowest truncate generation for truncations in the current start, zero in the
    /// first start. The generations of all truncations in earlier starts are lower than this
    /// generation, including truncations that a power loss has reverted.
    fn first_truncate_generation(&self) -> u64 {
        self.number().saturating_sub(1) << VERSION_BITS
    }

    /// Whether a truncation of an earlier start may have this truncate generation. No truncation of
    /// the current start has it.
    pub(crate) fn is_of_earlier_start(&self, truncate_generation: u64) -> bool {
        truncate_generation < self.first_truncate_generation()
    }

    /// Returns the truncate generation of the next truncation of a file, whose last truncation has
    /// the generation `last`.
    pub(crate) fn next_truncate_generation(&self, last: u64) -> u64 {
        (last + 1).max(self.first_truncate_generation())
    }

    /// Returns the number of the next change of a client in the current start, from 1.
    pub(crate) fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// Returns the last start number, and the LSN of the first log record of that start.
    pub(crate) fn last(&self) -> Option<(u64, Lsn)> {
        self.first.last_key_value().map(|(number, first)| (*number, *first))
    }

    /// Notes that the log record `lsn` contains the current start and the removal of the surplus
    /// starts.
    pub(crate) fn logged(&mut self, lsn: Lsn) {
        self.logged = Some(lsn);
        for number in self.surplus() {
            self.first.remove(&number);
        }
    }

    /// Notes that the log records up to `lsn` are *safe*.
    pub(crate) fn safe(&mut self, lsn: Lsn) {
        self.is_safe |= self.logged.is_some_and(|logged| logged <= lsn);
        self.patterns.safe(lsn);
    }

    /// Whether the acknowledged change of `mark` may be lost. A change also counts as lost if the
    /// table lacks one of the later starts, or does not have the start number of `mark` yet.
    pub(crate) fn is_lost(&self, mark: &InlineMark) -> bool {
        let began_after = |number| self.first.get(&number).is_some_and(|it| *it > mark.record);
        mark.start > self.number() || !(mark.start + 1..=self.number()).all(began_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(start: u64, record: u64) -> InlineMark {
        InlineMark { start, record: Lsn::new(record) }
    }

    #[test]
    fn change_is_lost_if_a_later_start_begins_at_its_lsn_or_before() {
        let mut starts = StartNumbers::default();
        starts.begin(Lsn::new(1));
        assert!(!starts.is_lost(&mark(1, 100)), "the start of this change is the current one");
        // The process is killed after record 100, so the next start of the target begins with
        // record 101.
        starts.begin(Lsn::new(101));
        assert!(!starts.is_lost(&mark(1, 100)));
        // A power loss removes the records after 150.
        starts.begin(Lsn::new(151));
        assert!(!starts.is_lost(&mark(2, 150)));
        assert!(starts.is_lost(&mark(2, 151)));
        assert!(!starts.is_lost(&mark(1, 100)) && !starts.is_lost(&mark(3, 151)));
        // A lost change stays lost after a further start that begins with a higher LSN.
        starts.begin(Lsn::new(1000));
        assert!(starts.is_lost(&mark(2, 200)) && !starts.is_lost(&mark(3, 200)));
        // These inline marks have start numbers that the target does not have. Inline marks with
        // unknown start numbers come from another target, or from this target before it was
        // restored from a backup.
        assert!(starts.is_lost(&mark(5, 1)) && starts.is_lost(&mark(u64::MAX - 1, 1)));
    }

    #[test]
    fn change_of_a_start_that_the_target_forgot_counts_as_lost() {
        let mut starts = StartNumbers::default();
        for number in 1..=100 {
            starts.begin(Lsn::new(number * 10));
        }
        let surplus = starts.surplus();
        assert_eq!(surplus, (1..=100 - MAX_STARTS as u64).collect::<Vec<_>>());
        surplus.iter().for_each(|number| {
            starts.first.remove(number);
        });
        assert!(starts.is_lost(&mark(35, 1)));
        assert!(!starts.is_lost(&mark(36, 1)), "the target remembers all later starts");
    }

    #[test]
    fn truncate_generation_of_a_new_start_is_above_earlier_ones() {
        let mut starts = StartNumbers::default();
        starts.begin(Lsn::new(1));
        assert_eq!([0, 1].map(|last| starts.next_truncate_generation(last)), [1, 2]);
        starts.begin(Lsn::new(2));
        let first = starts.next_truncate_generation(1);
        assert!(first > 2, "a power loss may have reverted the generation 2");
        assert_eq!(starts.next_truncate_generation(first), first + 1);
        assert!(starts.is_of_earlier_start(2) && !starts.is_of_earlier_start(first));
        starts.begin(Lsn::new(3));
        assert!(starts.next_truncate_generation(1) > first + 1);
        assert!(starts.is_of_earlier_start(first + 1));
    }

    #[test]
    fn start_number_is_used_only_after_its_record_is_safe() {
        let mut starts = StartNumbers::default();
        starts.begin(Lsn::new(1));
        starts.safe(Lsn::new(9));
        assert_eq!(starts.current(), None);
        starts.logged = Some(Lsn::new(10));
        starts.safe(Lsn::new(9));
        assert_eq!(starts.current(), None);
        starts.safe(Lsn::new(10));
        assert_eq!(starts.current(), Some(1));
    }
}

//! The unsynced inline writes of a file, by their marks: their positions in the log of metadata.
//!
//! After a power loss of metadata, the mount repeats each lost write, and the mark of the repeated
//! write takes the place of the lost one. Several writes can have the same mark, because a log
//! record contains the changes of several requests. So the table counts the writes of each mark. A
//! lost mark disappears only after the mount has repeated as many writes as the mark has.
//!
//! Until the metadata target starts again, each new mark is at least as high as the mark before it.
//! So a write adds its mark at the end, and a sync removes marks from the front. So an addition and
//! a removal take time in proportion to the added or removed marks.
//!
//! # Invariants
//! - The marks are in strictly ascending order. There are at most [`MAX_INLINE_MARKS`] marks, of at
//!   most [`MAX_STARTS`] starts of the target. Each mark has at least one write.
//! - If a write is neither synced nor counted as lost, its own mark or a higher mark of the same
//!   start is in the table. The target has lost the write only if it has lost that mark too.

use crate::limits::MAX_INLINE_MARKS;
use skep_types::Lsn;
use skep_wire::inline::InlineMark;
use skep_wire::limits::MAX_STARTS;
use std::collections::VecDeque;

/// The unsynced writes with the same mark.
#[derive(Debug, Clone, Copy)]
struct MarkedWrites {
    mark: InlineMark,
    count: u64,
}

impl MarkedWrites {
    fn place(&self) -> (u64, Lsn) {
        place(&self.mark)
    }
}

/// Returns the start number and the LSN of a mark. Marks are ordered by these two numbers.
fn place(mark: &InlineMark) -> (u64, Lsn) {
    (mark.start, mark.record)
}

/// The marks of a file's unsynced inline writes.
#[derive(Debug, Default)]
pub(super) struct InlineMarks {
    writes: VecDeque<MarkedWrites>,
}

impl InlineMarks {
    fn check_invariants(&self) {
        let writes = &self.writes;
        let is_rising = writes.iter().is_sorted_by(|a, b| a.place() < b.place());
        assert!(is_rising && writes.iter().all(|it| it.count > 0), "{writes:?}");
        assert!(writes.len() <= MAX_INLINE_MARKS && self.starts() <= MAX_STARTS, "{writes:?}");
    }

    /// Returns the number of starts of the target that the marks name.
    fn starts(&self) -> usize {
        self.highest().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Adds a write. Returns whether the table has dropped the writes of the oldest start to keep
    /// its limit. The caller counts them as lost: metadata also stores only [`MAX_STARTS`] starts,
    /// so it can no longer confirm these writes.
    pub(super) fn add(&mut self, mark: InlineMark) -> bool {
        let new = MarkedWrites { mark, count: 1 };
        let mut drops_oldest = false;
        match self.writes.binary_search_by_key(&new.place(), MarkedWrites::place) {
            Ok(at) => self.writes[at].count += 1,
            Err(at) => {
                let is_of_other_start =
                    |at: usize| self.writes.get(at).is_none_or(|it| it.mark.start != mark.start);
                let is_new_start =
                    at.checked_sub(1).is_none_or(is_of_other_start) && is_of_other_start(at);
                self.writes.insert(at, new);
                drops_oldest = is_new_start && self.starts() > MAX_STARTS;
            }
        }
        if drops_oldest && let Some(oldest) = self.writes.front().map(|it| it.mark.start) {
            let end = self.writes.partition_point(|it| it.mark.start == oldest);
            self.writes.drain(..end);
        }
        if self.writes.len() > MAX_INLINE_MARKS {
            self.merge_oldest();
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
        drops_oldest
    }

    /// Assigns the writes of the oldest mark to the next higher mark of the same start. If both
    /// marks are lost, the mount cannot replace the writes of the lower mark any more, so the next
    /// sync reports a loss. The oldest writes are usually durable.
    fn merge_oldest(&mut self) {
        let mut pairs = self.writes.iter().zip(self.writes.iter().skip(1));
        if let Some(at) = pairs.position(|(a, b)| a.mark.start == b.mark.start)
            && let Some(lower) = self.writes.remove(at)
        {
            self.writes[at].count += lower.count;
        }
    }

    /// Returns the highest mark of each start. If the target has lost a write, it has also lost the
    /// highest mark of the start of this write.
    pub(super) fn highest(&self) -> Vec<InlineMark> {
        let mut highest = Vec::new();
        let mut end = self.writes.len();
        while let Some(last) = end.checked_sub(1).and_then(|at| self.writes.get(at)) {
            highest.push(last.mark);
            end = self.writes.partition_point(|it| it.mark.start < last.mark.start);
        }
        highest.reverse();
        highest
    }

    /// For each of `marks`, removes the writes up to this mark in the same start of the target.
    pub(super) fn remove(&mut self, marks: &[InlineMark]) {
        for mark in marks {
            let begin = self.writes.partition_point(|it| it.mark.start < mark.start);
            let end = self.writes.partition_point(|it| it.place() <= place(mark));
            self.writes.drain(begin..end);
        }
    }

    /// Removes one write with this mark. Returns `false` if no write has the mark.
    pub(super) fn remove_one(&mut self, mark: InlineMark) -> bool {
        let Ok(at) = self.writes.binary_search_by_key(&place(&mark), MarkedWrites::place) else {
            return false;
        };
        self.writes[at].count -= 1;
        if self.writes[at].count == 0 {
            self.writes.remove(at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(start: u64, record: u64) -> InlineMark {
        InlineMark { start, record: Lsn::new(record) }
    }

    #[test]
    fn inline_mark_stays_until_all_its_writes_are_removed() {
        let mut marks = InlineMarks::default();
        for record in [5, 7, 7] {
            assert!(!marks.add(mark(1, record)));
        }
        assert!(marks.remove_one(mark(1, 7)) && !marks.remove_one(mark(1, 6)));
        assert_eq!(marks.highest(), [mark(1, 7)], "the other write of this record is not repeated");
        assert!(marks.remove_one(mark(1, 7)) && !marks.remove_one(mark(1, 7)));
        assert_eq!(marks.highest(), [mark(1, 5)]);
        marks.remove(&[mark(1, 6), mark(2, 9)]);
        assert!(marks.is_empty());
    }

    #[test]
    fn sync_removes_only_earlier_inline_marks_of_the_same_start() {
        let mut marks = InlineMarks::default();
        for (start, record) in [(1, 1), (3, 7), (1, 2), (2, 3), (2, 5)] {
            assert!(!marks.add(mark(start, record)));
        }
        assert_eq!(marks.highest(), [mark(1, 2), mark(2, 5), mark(3, 7)]);
        marks.remove(&[mark(1, 9), mark(2, 4), mark(4, 9)]);
        assert_eq!(marks.highest(), [mark(2, 5), mark(3, 7)]);
        assert!(!marks.remove_one(mark(2, 3)) && marks.remove_one(mark(2, 5)));
        assert_eq!(marks.highest(), [mark(3, 7)]);
    }

    #[test]
    fn full_table_of_inline_marks_loses_no_write_silently() {
        let mut marks = InlineMarks::default();
        let last = MAX_INLINE_MARKS as u64 + 1;
        for record in 1..=last {
            assert!(!marks.add(mark(1, record)));
        }
        // The table has added the first write to the next mark, so each of the two writes needs one
        // removal.
        assert!(!marks.remove_one(mark(1, 1)));
        for record in 2..=last {
            assert!(marks.remove_one(mark(1, record)));
        }
        assert_eq!(marks.highest(), [mark(1, 2)]);
        for start in 2..=MAX_STARTS as u64 {
            assert!(!marks.add(mark(start, 1)));
        }
        assert!(marks.add(mark(MAX_STARTS as u64 + 1, 1)), "the caller counts a loss");
        assert_eq!(marks.highest().first(), Some(&mark(2, 1)));
    }
}

//! The ids that management has skipped after restores from backups (`continuation`).
//!
//! A server, a target or a group that was added after a backup has one of these ids, and is missing
//! in the restored management. The directory of the service still has the ids. So management
//! accepts a registration with a skipped id, and the service continues with its ids and data
//! (`servers`). Other ids that are not in the map belonged to servers and targets that were
//! removed.
//!
//! # Invariants
//! - The ranges of a kind are half-open, not empty and in ascending order, and do not overlap.
//! - A kind has at most [`MAX_RANGES`] ranges.
//!
//! [`SkippedIds::check_invariants`] asserts these invariants.

use skep_types::codec::record;
use skep_types::{GroupId, NodeId, TargetId};

/// Maximum number of ranges of one kind. Each restore adds one range, and each removal of a server
/// or target with a skipped id divides a range. Beyond the limit, the oldest range is forgotten.
const MAX_RANGES: usize = 256;

record! {
    /// Ranges of ids. The first number of each pair is the first id of a range, and the second
    /// number is the id after the last one.
    #[derive(Default)]
    pub struct SkippedIds {
        /// Ids of nodes.
        pub nodes: Vec<(u32, u32)>,
        /// Ids of targets.
        pub targets: Vec<(u32, u32)>,
        /// Ids of groups.
        pub groups: Vec<(u32, u32)>,
    }
}

/// The next ids of a state, in the order of the fields of [`SkippedIds`].
pub(super) type NextIds = [u32; 3];

impl SkippedIds {
    /// Adds the ids from `before` up to `after`, which management skips.
    pub(super) fn skip(&mut self, before: NextIds, after: NextIds) {
        let kinds = [&mut self.nodes, &mut self.targets, &mut self.groups];
        for (ranges, (first, end)) in kinds.into_iter().zip(before.into_iter().zip(after)) {
            match ranges.last_mut() {
                Some((_, last_end)) if *last_end == first => *last_end = end,
                _ if first < end => ranges.push((first, end)),
                _ => {}
            }
            bound(ranges);
        }
    }

    pub(super) fn has_node(&self, id: NodeId) -> bool {
        has(&self.nodes, id.raw())
    }

    pub(super) fn has_target(&self, id: TargetId) -> bool {
        has(&self.targets, id.raw())
    }

    pub(super) fn has_group(&self, id: GroupId) -> bool {
        has(&self.groups, id.raw())
    }

    /// Forgets the id of a removed node, so that the node cannot register again with this id.
    pub(super) fn forget_node(&mut self, id: NodeId) {
        forget(&mut self.nodes, id.raw());
    }

    /// Forgets the id of a removed target, so that the target cannot register again with this id.
    pub(super) fn forget_target(&mut self, id: TargetId) {
        forget(&mut self.targets, id.raw());
    }

    /// Asserts the invariants of the module.
    pub(super) fn check_invariants(&self) {
        for ranges in [&self.nodes, &self.targets, &self.groups] {
            assert!(ranges.len() <= MAX_RANGES, "the number of ranges is bounded");
            assert!(ranges.iter().all(|(first, end)| first < end), "no range is empty");
            assert!(
                ranges.is_sorted_by(|(_, end), (first, _)| end <= first),
                "ranges are in order"
            );
        }
    }
}

fn has(ranges: &[(u32, u32)], id: u32) -> bool {
    ranges.iter().any(|(first, end)| (*first..*end).contains(&id))
}

/// Removes an id, which divides its range.
fn forget(ranges: &mut Vec<(u32, u32)>, id: u32) {
    let Some(at) = ranges.iter().position(|(first, end)| (*first..*end).contains(&id)) else {
        return;
    };
    let (first, end) = ranges[at];
    let parts = [(first, id), (id + 1, end)];
    drop(ranges.splice(at..=at, parts.into_iter().filter(|(first, end)| first < end)));
    bound(ranges);
}

fn bound(ranges: &mut Vec<(u32, u32)>) {
    let excess = ranges.len().saturating_sub(MAX_RANGES);
    ranges.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_ids_are_listed_until_their_removal() {
        let mut skipped = SkippedIds::default();
        skipped.skip([5, 2, 2], [10, 8, 2]);
        skipped.skip([10, 9, 2], [20, 12, 2]);
        assert_eq!(skipped.nodes, [(5, 20)], "no id was assigned between the restores");
        assert_eq!(skipped.targets, [(2, 8), (9, 12)]);
        assert_eq!(skipped.groups, []);
        let has = |skipped: &SkippedIds, id| skipped.has_node(NodeId::new(id));
        assert_eq!([4, 5, 19, 20].map(|id| has(&skipped, id)), [false, true, true, false]);
        skipped.forget_node(NodeId::new(7));
        skipped.forget_node(NodeId::new(5));
        skipped.forget_node(NodeId::new(99));
        assert_eq!(skipped.nodes, [(6, 7), (8, 20)]);
        skipped.forget_target(TargetId::new(11));
        assert_eq!(skipped.targets, [(2, 8), (9, 11)]);
        skipped.check_invariants();
    }

    #[test]
    fn number_of_skipped_ranges_is_bounded() {
        let mut skipped = SkippedIds::default();
        for restore in 0..1000 {
            let first = restore * 10;
            skipped.skip([first; 3], [first + 5; 3]);
            skipped.check_invariants();
        }
        assert!(skipped.has_group(GroupId::new(9_991)) && !skipped.has_group(GroupId::new(1)));
    }
}

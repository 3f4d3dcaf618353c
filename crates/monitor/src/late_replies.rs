//! Services that did not reply in some rounds, and then replied again.
//!
//! The frame of a round has no load of a service that did not reply. The frame of its next reply
//! has the load of all rounds since its last reply. So a chart of seconds would show that the load
//! has fallen and then doubled, although the load was steady. This module finds such rounds, so
//! that readers can spread the load over these rounds.

use crate::frame::{Frame, Level};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Maximum number of rounds without a reply over which the load of a service is spread. After more
/// rounds, the monitor does not know in which rounds the load occurred, and the service may have
/// been down.
const MAX_MISSED: usize = 5;

/// Returns a range of rounds for each round in which a service replied again: from the first round
/// that this service missed to this round. `rounds` are the node ids of the services that replied
/// in each round, in ascending order.
pub(crate) fn late_groups(rounds: &[Vec<u32>]) -> Vec<Range<usize>> {
    // The first round that each service missed, by node id.
    let mut missing: BTreeMap<u32, usize> = BTreeMap::new();
    let mut groups = Vec::new();
    for (round, nodes) in rounds.iter().enumerate().skip(1) {
        let before = &rounds[round - 1];
        if nodes == before {
            continue;
        }
        let returned = nodes.iter().filter_map(|node| missing.remove(node));
        let first = returned.filter(|first| round - first <= MAX_MISSED).min();
        groups.extend(first.map(|first| first..round + 1));
        let missed = before.iter().filter(|node| nodes.binary_search(node).is_err());
        missing.extend(missed.map(|node| (*node, round)));
    }
    groups
}

/// Returns the current load: the newest frame. If a service replied again in this frame, returns
/// the sum of the frames over which the load of this service is spread. `None` means that `frames`
/// is empty.
pub(crate) fn newest(frames: &VecDeque<Frame>) -> Option<Cow<'_, Frame>> {
    let newest = frames.back()?;
    let from = frames.len().saturating_sub(MAX_MISSED + 2);
    let rounds: Vec<Vec<u32>> =
        frames.range(from..).map(|frame| frame.replied().collect()).collect();
    let group = late_groups(&rounds).pop().filter(|group| group.end == rounds.len());
    let Some(group) = group else { return Some(Cow::Borrowed(newest)) };
    let mut sum = Frame::sum_with_newest_readings(frames.range(from + group.start..));
    // The frames of missed rounds lack the queues of a service, so the queues come from the newest
    // reply.
    let samples = sum.samples;
    let scaled = |level: Level| level.scaled(newest.samples, samples);
    for (key, load) in &mut sum.loads {
        let last = newest.loads.get(key);
        load.queued = last.map_or_else(Level::default, |last| scaled(last.queued));
        load.busy = last.map_or_else(Level::default, |last| scaled(last.busy));
    }
    Some(Cow::Owned(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::frame;
    use crate::frame::{Dimension, Key, Load, Measure};

    /// Returns the first and the last round of each group.
    fn groups(rounds: &[&[u32]]) -> Vec<(usize, usize)> {
        let rounds: Vec<Vec<u32>> = rounds.iter().map(|nodes| nodes.to_vec()).collect();
        late_groups(&rounds).into_iter().map(|group| (group.start, group.end - 1)).collect()
    }

    #[test]
    fn late_reply_belongs_to_the_rounds_since_the_last_reply() {
        assert_eq!(groups(&[]), []);
        assert_eq!(groups(&[&[2, 3], &[2, 3], &[2, 3]]), []);
        assert_eq!(groups(&[&[2, 3], &[2], &[2, 3], &[2, 3]]), [(1, 2)]);
        assert_eq!(groups(&[&[2, 3], &[2], &[2], &[2, 3], &[3], &[2, 3]]), [(1, 3), (4, 5)]);
        assert_eq!(groups(&[&[2, 3], &[2], &[], &[2], &[2, 3]]), [(2, 3), (1, 4)]);
        assert_eq!(groups(&[&[2], &[2, 3], &[2, 3]]), [], "a new service");
        let mut long: Vec<&[u32]> = vec![&[2, 3][..]];
        long.extend([&[2][..]; MAX_MISSED]);
        long.push(&[2, 3]);
        assert_eq!(groups(&long), [(1, MAX_MISSED + 1)]);
        long.insert(1, &[2]);
        assert_eq!(groups(&long), [], "the service may have been down");
    }

    /// Returns a frame in which node 2 has replied, with this load of the node.
    fn with_load(second: u64, operations: u64, queue: i64) -> Frame {
        let key = Key { dimension: Dimension::Node, id: "2".into(), service: "storage".into() };
        let load = Load { operations, queued: Level::of(queue), ..Load::default() };
        Frame {
            loads: [(key, load)].into(),
            readings: [((Measure::Memory, 2), Level::of(16))].into(),
            ..frame(second, 0)
        }
    }

    #[test]
    fn newest_load_is_a_mean_if_it_covers_several_rounds() {
        let silent = |second: u64| {
            let loads = BTreeMap::new();
            Frame { loads, readings: BTreeMap::new(), ..frame(second, 0) }
        };
        /// Returns the operations, the queue and the time of the newest load.
        fn numbers(frames: &VecDeque<Frame>) -> Option<(u64, u64, u64)> {
            let found = newest(frames)?;
            let load = found.loads.values().next()?;
            Some((load.operations, load.queued.sum / found.samples, found.span_ms))
        }
        let mut frames = VecDeque::new();
        assert_eq!(numbers(&frames), None);
        frames.push_back(with_load(10, 50, 4));
        assert_eq!(numbers(&frames), Some((50, 4, 1000)));
        frames.extend([silent(11), with_load(12, 100, 7)]);
        assert_eq!(numbers(&frames), Some((100, 7, 2000)));
        frames.push_back(with_load(13, 50, 4));
        assert_eq!(numbers(&frames), Some((50, 4, 1000)));
    }
}

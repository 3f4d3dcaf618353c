//! Measures how fast the used space of storage targets grows, from the history.
//!
//! The history is read only every ten minutes, because the growth over several days hardly changes
//! within ten minutes. `skep_stats::filling` has the prediction and the rule.

use crate::frame::{Frame, Measure};
use crate::history::{History, Resolution};
use crate::target_figures::with_own_space;
use skep_stats::filling::{Growth, UsedSpace, soon_full};
use skep_stats::why::Cause;
use skep_types::map::CapacityPool;
use skep_types::{ClusterMap, TargetId, TargetKind};
use std::collections::BTreeMap;

/// Interval between two readings of the history, in milliseconds.
const EVERY_MS: u64 = 600_000;
/// Length of the time span that is read, in milliseconds.
const SPAN_MS: u64 = 7 * 24 * 3_600_000;

/// The growth of the used space.
#[derive(Debug, Default)]
pub(crate) struct FillWatch {
    /// Time of the next reading, in milliseconds since 1970.
    due_ms: u64,
    /// The growth of the space of all storage targets together.
    all: Option<Growth>,
    /// The growth of single targets.
    targets: BTreeMap<TargetId, Growth>,
}

impl FillWatch {
    /// Reads the history, if this is due at the time `now_ms`.
    pub(crate) fn update(&mut self, history: &History, map: &ClusterMap, now_ms: u64) {
        // If the clock has been set back, the planned time is too far in the future.
        if (now_ms + 1..=now_ms + EVERY_MS).contains(&self.due_ms) {
            return;
        }
        self.due_ms = now_ms + EVERY_MS;
        let ids: Vec<TargetId> =
            with_own_space(map, TargetKind::Storage).iter().map(|it| it.id).collect();
        let (mut all, mut targets) = (Vec::new(), BTreeMap::<TargetId, Vec<UsedSpace>>::new());
        let from_ms = now_ms.saturating_sub(SPAN_MS);
        let (resolution, span) = (Resolution::of(SPAN_MS, SPAN_MS), from_ms..now_ms + 1);
        let add = |frame: &Frame| {
            let found: Vec<(TargetId, UsedSpace)> =
                ids.iter().filter_map(|id| Some((*id, used_space(frame, *id)?))).collect();
            // Without the space of some targets, the sum is too small, and would grow as soon as
            // the frames have the space of these targets.
            if found.len() == ids.len() && !found.is_empty() {
                all.push(sum(&found));
            }
            for (id, space) in found {
                targets.entry(id).or_default().push(space);
            }
        };
        history.read(resolution, span, |_| false, add);
        self.all = Growth::of(&all);
        let growth = |(id, points): (TargetId, Vec<UsedSpace>)| Some((id, Growth::of(&points)?));
        self.targets = targets.into_iter().filter_map(growth).collect();
    }

    /// Returns the number of days until all storage targets are full. `None` means that the used
    /// space does not grow, or that the history is too short.
    pub(crate) fn days_left(&self) -> Option<f64> {
        self.all.as_ref().map(Growth::days_left)
    }

    /// Returns the findings: the space of all targets together, or otherwise single targets that
    /// will be full before the other targets. Targets that are low on space already have another
    /// finding.
    pub(crate) fn causes(&self, map: &ClusterMap) -> Vec<Cause> {
        let of_all = self.all.as_ref().and_then(|growth| soon_full(map, None, growth));
        if let Some(cause) = of_all {
            return vec![cause];
        }
        let is_normal = |id: TargetId| {
            map.target(id).is_some_and(|target| target.capacity_pool == CapacityPool::Normal)
        };
        let normal = self.targets.iter().filter(|(id, _)| is_normal(**id));
        normal.filter_map(|(id, growth)| soon_full(map, Some(*id), growth)).collect()
    }
}

/// Returns the used space of a target in a frame. `None` means that the frame has no used space of
/// this target. `None` can also mean that the target was added, or its disk was replaced, within
/// the time of the frame.
fn used_space(frame: &Frame, id: TargetId) -> Option<UsedSpace> {
    let mean = |measure| {
        let level = frame.readings.get(&(measure, id.raw()))?;
        Some((level.sum.checked_div(frame.samples)?, level.max))
    };
    let ((free, _), (size, largest)) = (mean(Measure::FreeBytes)?, mean(Measure::SizeBytes)?);
    // ZFS and Btrfs change the size a little with the data.
    let is_steady = size > 0 && largest.saturating_sub(size) <= largest / 100;
    is_steady.then(|| UsedSpace { at_ms: frame.start_ms, used: size.saturating_sub(free), free })
}

/// Returns the sum of the spaces of targets at one moment.
fn sum(spaces: &[(TargetId, UsedSpace)]) -> UsedSpace {
    let at_ms = spaces.first().map_or(0, |(_, space)| space.at_ms);
    let total = |of: fn(&UsedSpace) -> u64| {
        spaces.iter().fold(0_u64, |sum, (_, space)| sum.saturating_add(of(space)))
    };
    UsedSpace { at_ms, used: total(|it| it.used), free: total(|it| it.free) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Level;
    use skep_types::{ClusterId, NodeId, Target};

    const HOUR_MS: u64 = 3_600_000;
    /// Number of hours for which the tests store the free space of targets.
    const HOURS: u64 = 60;
    /// A time at the beginning of an hour.
    const START_MS: u64 = 1_800_000_000 / 3600 * HOUR_MS;
    const SIZE: u64 = 1 << 40;

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        let target = |id| Target::new(TargetId::new(id), TargetKind::Storage, NodeId::new(2), "/d");
        map.targets = [7, 8].map(target).into();
        map
    }

    /// Returns the watch after some days, in which target `t` has `free(t, hour)` free bytes.
    fn watch(free: impl Fn(u32, u64) -> u64) -> FillWatch {
        let directory = tempfile::tempdir().unwrap();
        let mut history = History::open(directory.path(), 1 << 30).unwrap();
        for hour in 0..HOURS {
            let level = |value: u64| Level { sum: value, max: value };
            let readings = [7, 8].into_iter().flat_map(|id| {
                let free = level(free(id, hour));
                [((Measure::FreeBytes, id), free), ((Measure::SizeBytes, id), level(SIZE))]
            });
            history.add(Frame {
                start_ms: START_MS + hour * HOUR_MS,
                span_ms: 1000,
                samples: 1,
                readings: readings.collect(),
                ..Frame::default()
            });
        }
        let mut watch = FillWatch::default();
        watch.update(&history, &map(), START_MS + HOURS * HOUR_MS);
        watch
    }

    fn objects(watch: &FillWatch) -> Vec<String> {
        watch.causes(&map()).into_iter().map(|cause| cause.object).collect()
    }

    #[test]
    fn one_finding_reports_that_all_targets_fill() {
        let watch = watch(|_, hour| SIZE / 100 * (100 - hour));
        let days = watch.days_left().unwrap();
        assert!((1.5..2.0).contains(&days), "40 % are free, and 1 % less each hour: {days}");
        assert_eq!(objects(&watch), ["cluster"]);
    }

    #[test]
    fn target_that_fills_before_other_targets_is_a_finding() {
        let filling = |id: u32, hour: u64| match id {
            8 => SIZE / 100 * (100 - hour),
            _ => SIZE / 10 * 9,
        };
        assert_eq!(objects(&watch(filling)), ["t8"]);
        assert!(objects(&watch(|_, _| SIZE / 2)).is_empty());
    }

    #[test]
    fn used_space_is_unknown_while_a_size_changes_much() {
        let of = |size: u64| {
            let readings = [
                ((Measure::FreeBytes, 7), Level { sum: 30, max: 30 }),
                ((Measure::SizeBytes, 7), Level { sum: size, max: 1000 }),
            ];
            let frame = Frame { samples: 1, readings: readings.into(), ..Frame::default() };
            used_space(&frame, TargetId::new(7))
        };
        assert_eq!(of(995).map(|space| (space.used, space.free)), Some((965, 30)));
        assert_eq!(of(500), None, "the target was added within the time of the frame");
        assert_eq!(of(0), None);
    }

    #[test]
    fn history_is_read_again_when_due_or_the_clock_is_set_back() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::open(directory.path(), 1 << 30).unwrap();
        let mut watch = FillWatch::default();
        let mut due = |now_ms: u64| {
            watch.update(&history, &map(), now_ms);
            watch.due_ms
        };
        assert_eq!(due(START_MS), START_MS + EVERY_MS);
        assert_eq!(due(START_MS + 1000), START_MS + EVERY_MS);
        assert_eq!(due(START_MS + EVERY_MS), START_MS + 2 * EVERY_MS);
        assert_eq!(due(START_MS - HOUR_MS), START_MS - HOUR_MS + EVERY_MS);
    }
}

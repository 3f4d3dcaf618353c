//! How evenly data lies on the targets of each kind: the shares of used space, and the numbers of
//! files.
//!
//! The module is pure. Targets on one file system share its space and its inodes, so the comparison
//! has each file system once.

use crate::target_figures::TargetFigures;
use serde::Serialize;
use skep_cluster::problems::target_kind_word;
use skep_types::{ClusterMap, Target, TargetKind};
use std::collections::BTreeSet;

/// The placement on all targets of one kind.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Placement {
    kind: &'static str,
    targets: usize,
    /// Number of file systems with these targets.
    file_systems: usize,
    /// Used shares of the space of the file systems. `None` means that no size is known.
    used_share: Option<Spread>,
    /// Numbers of used inodes of the file systems. `None` means that no file system counts inodes.
    files: Option<Spread>,
}

/// The lowest, mean and highest value.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    lowest: f64,
    mean: f64,
    highest: f64,
    /// The figure of the balance. Zero means that all values are equal. For shares of space it is
    /// the difference between the highest and the lowest share. For files it is the excess of the
    /// highest number over the mean, as a share of the mean.
    imbalance: f64,
}

impl Spread {
    fn of(values: &[f64], imbalance: fn(&Self) -> f64) -> Option<Self> {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let lowest = values.iter().copied().reduce(f64::min)?;
        let highest = values.iter().copied().reduce(f64::max)?;
        let spread = Self { lowest, mean, highest, imbalance: 0.0 };
        Some(Self { imbalance: imbalance(&spread), ..spread })
    }
}

/// Returns the placement on the targets of each kind.
pub(crate) fn placement(map: &ClusterMap, figures: &TargetFigures) -> Vec<Placement> {
    let of_kind = |kind| {
        let targets: Vec<&Target> = map.targets.iter().filter(|it| it.kind == kind).collect();
        let mut seen = BTreeSet::new();
        let is_new = |target: &&Target| {
            let id = target.capacity.file_system;
            // Zero means that the file system is not known.
            id == 0 || seen.insert(id)
        };
        let separate: Vec<&Target> = targets.iter().copied().filter(is_new).collect();
        let shares = separate.iter().filter_map(|target| {
            let (size, free) = figures.space(target);
            (size > 0).then(|| size.saturating_sub(free) as f64 / size as f64)
        });
        let shares: Vec<f64> = shares.collect();
        let files = separate.iter().filter_map(|target| figures.used_inodes(target));
        let files: Vec<f64> = files.map(|count| count as f64).collect();
        Placement {
            kind: target_kind_word(kind),
            targets: targets.len(),
            file_systems: separate.len(),
            used_share: Spread::of(&shares, |it| it.highest - it.lowest),
            files: Spread::of(&files, |it| (it.highest - it.mean) / it.mean.max(1.0)),
        }
    };
    [TargetKind::Storage, TargetKind::Metadata].into_iter().map(of_kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, NodeId, TargetId};

    fn map(targets: &[(u32, u64, u64, u128)]) -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.targets = targets
            .iter()
            .map(|(id, free, files, file_system)| {
                let mut target =
                    Target::new(TargetId::new(*id), TargetKind::Storage, NodeId::new(1), "/d");
                target.capacity.total_bytes = 1000;
                target.capacity.free_bytes = *free;
                target.capacity.total_inodes = 10_000;
                target.capacity.free_inodes = 10_000 - files;
                target.capacity.file_system = *file_system;
                target
            })
            .collect();
        map
    }

    fn storage(targets: &[(u32, u64, u64, u128)]) -> Placement {
        placement(&map(targets), &TargetFigures::default()).remove(0)
    }

    #[test]
    fn placement_compares_space_and_files_of_targets() {
        let found = storage(&[(1, 500, 300, 11), (2, 750, 100, 12), (3, 250, 200, 13)]);
        let used = found.used_share.unwrap();
        assert_eq!((used.lowest, used.mean, used.highest, used.imbalance), (0.25, 0.5, 0.75, 0.5));
        let files = found.files.unwrap();
        assert_eq!((files.lowest, files.mean, files.highest), (100.0, 200.0, 300.0));
        assert_eq!(files.imbalance, 0.5);
        assert_eq!((found.targets, found.file_systems), (3, 3));
    }

    #[test]
    fn targets_on_one_file_system_count_once() {
        let found = storage(&[(1, 500, 300, 11), (2, 500, 300, 11), (3, 250, 300, 12)]);
        assert_eq!((found.targets, found.file_systems), (3, 2));
        assert_eq!(found.used_share.unwrap().mean, 0.625);
        // The file systems of these targets are not known.
        assert_eq!(storage(&[(1, 500, 300, 0), (2, 500, 300, 0)]).file_systems, 2);
    }

    #[test]
    fn placement_without_targets_has_no_figures() {
        let found = storage(&[]);
        assert_eq!((found.targets, found.used_share, found.files), (0, None, None));
    }
}

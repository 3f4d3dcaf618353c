//! Computes how evenly data lies on the targets of each kind: the shares of used space, and the
//! numbers of files.
//!
//! The module is pure. Targets on one file system share its space and its inodes, so the comparison
//! contains each file system once. `skep_stats::balance` defines the balance.

use crate::target_figures::TargetFigures;
use serde::Serialize;
use skep_cluster::problems::target_kind_word;
use skep_stats::balance::{Balance, file_systems, of_files, of_space, used_percent};
use skep_types::{ClusterMap, TargetKind};

/// The placement on all targets of one kind whose size is known.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Placement {
    kind: &'static str,
    targets: usize,
    /// Number of file systems on which these targets are.
    file_systems: usize,
    /// Used shares of the space of the file systems. `None` means that the kind has no targets.
    used_share: Option<Spread>,
    /// Numbers of files on the file systems. `None` means that no file system counts inodes.
    files: Option<Spread>,
}

/// The lowest, mean and highest value, and how even the values are.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    lowest: f64,
    mean: f64,
    highest: f64,
    balance: Balance,
}

impl Spread {
    fn of(values: &[f64], mean: f64, balance: Balance) -> Option<Self> {
        let lowest = values.iter().copied().reduce(f64::min)?;
        let highest = values.iter().copied().reduce(f64::max)?;
        Some(Self { lowest, mean, highest, balance })
    }
}

/// Returns the placement on the targets of each kind.
pub(crate) fn placement(map: &ClusterMap, figures: &TargetFigures) -> Vec<Placement> {
    let of_kind = |kind| {
        let found = file_systems(map, kind, |target| figures.capacity(target));
        let shares: Vec<f64> = found.iter().map(|it| it.used_percent() / 100.0).collect();
        let files = found.iter().filter_map(|it| it.files());
        let files: Vec<f64> = files.map(|count| count as f64).collect();
        let mean_share = used_percent(found.iter()) / 100.0;
        let mean_files = files.iter().sum::<f64>() / files.len().max(1) as f64;
        Placement {
            kind: target_kind_word(kind),
            targets: found.iter().map(|it| it.targets).sum(),
            file_systems: found.len(),
            used_share: Spread::of(&shares, mean_share, of_space(&found, kind)),
            files: Spread::of(&files, mean_files, of_files(&found, kind)),
        }
    };
    [TargetKind::Storage, TargetKind::Metadata].into_iter().map(of_kind).collect()
}

/// Returns how evenly the storage targets are filled. As in [`placement`], each file system counts
/// once.
pub(crate) fn storage_space(map: &ClusterMap, figures: &TargetFigures) -> Balance {
    let found = file_systems(map, TargetKind::Storage, |target| figures.capacity(target));
    of_space(&found, TargetKind::Storage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, NodeId, Target, TargetId};

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
        assert_eq!((used.lowest, used.mean, used.highest), (0.25, 0.5, 0.75));
        assert_eq!(used.balance.percent, Some(66.7));
        let files = found.files.unwrap();
        assert_eq!((files.lowest, files.mean, files.highest), (100.0, 200.0, 300.0));
        assert_eq!(files.balance.percent, Some(66.7));
        assert_eq!((found.targets, found.file_systems), (3, 3));
    }

    #[test]
    fn space_of_targets_on_one_file_system_is_added_once() {
        let found = storage(&[(1, 500, 300, 11), (2, 500, 300, 11), (3, 250, 300, 12)]);
        assert_eq!((found.targets, found.file_systems), (3, 2));
        assert_eq!(found.used_share.unwrap().mean, 0.625);
        // The file systems of these targets are not known.
        assert_eq!(storage(&[(1, 500, 300, 0), (2, 500, 300, 0)]).file_systems, 2);
    }

    #[test]
    fn placement_without_targets_has_no_statistics() {
        let found = storage(&[]);
        assert_eq!((found.targets, found.used_share, found.files), (0, None, None));
    }
}

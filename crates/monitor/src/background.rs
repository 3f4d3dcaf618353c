//! The background work of the cluster that is running or waiting, with its progress: members of
//! metadata groups that catch up, chunk files to remove, and the clean-up of chunk files.
//!
//! The module is pure. `group_rounds` asks the primaries of metadata groups for the progress of the
//! other members. The other metrics are in the replies of the rounds ([`TargetFigures`]).

use crate::limits::MAX_WORK;
use crate::names::printable;
use crate::target_figures::TargetFigures;
use serde::Serialize;
use skep_metrics::catalog;
use skep_types::{ClusterMap, GroupId, Target, TargetId};
use skep_wire::log_shipping::{GroupProgress, MemberProgress};

/// The newest progress of the groups that have several members.
pub(crate) type Groups = Vec<(GroupId, GroupProgress)>;

/// Work that is running or waiting.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Work {
    /// `copy`, `catch-up`, `removal` or `clean-up`.
    kind: &'static str,
    /// The target, as `t7`.
    object: String,
    what: String,
    /// Amount of work that is done, counted in `unit`. `None` means that only `left` is known.
    done: Option<u64>,
    /// Amount of all work, counted in `unit`. `None` means that only `left` is known.
    total: Option<u64>,
    /// Amount of work that is left, counted in `unit`. `None` means that the amount is not known.
    left: Option<u64>,
    /// Unit of the amounts of work: `pairs`, `bytes`, `chunk files` or `directories`.
    unit: &'static str,
    bytes_per_second: Option<u64>,
    seconds_left: Option<u64>,
    /// The reason why the work does not continue. Empty if the work continues.
    problem: String,
}

/// Returns the work of a cluster, at most [`MAX_WORK`] entries.
pub(crate) fn work(map: &ClusterMap, groups: &Groups, figures: &TargetFigures) -> Vec<Work> {
    let of_groups = groups.iter().flat_map(|(group, progress)| {
        progress.members.iter().filter_map(move |member| of_member(map, *group, member))
    });
    let removals = map.targets.iter().filter_map(|target| removal(map, target, figures));
    let clean_ups = map.targets.iter().filter_map(|target| clean_up(map, target, figures));
    of_groups.chain(removals).chain(clean_ups).take(MAX_WORK).collect()
}

/// Returns the name of a target with the name of its service.
fn named(map: &ClusterMap, id: TargetId) -> String {
    let target = map.targets.iter().find(|target| target.id == id);
    let node = target.and_then(|it| map.nodes.iter().find(|node| node.id == it.node));
    node.map_or_else(|| id.to_string(), |node| format!("{id} on {}", printable(&node.name)))
}

/// Returns the work for a member that lacks changes. `None` means that the member lacks no change,
/// or that it is so close behind the primary that the page does not show it.
fn of_member(map: &ClusterMap, group: GroupId, member: &MemberProgress) -> Option<Work> {
    let work = Work {
        kind: "copy",
        object: member.target.to_string(),
        what: format!("copy of the store of group {group} to {}", named(map, member.target)),
        done: None,
        total: None,
        left: None,
        unit: "pairs",
        bytes_per_second: None,
        seconds_left: None,
        problem: String::new(),
    };
    if let Some(copy) = &member.copy {
        return Some(Work {
            done: Some(copy.pair_count),
            total: Some(copy.total_pairs.max(copy.pair_count)),
            left: Some(copy.total_pairs.saturating_sub(copy.pair_count)),
            bytes_per_second: copy.bytes_per_second,
            seconds_left: copy.seconds_left(),
            problem: printable(&copy.problem),
            ..work
        });
    }
    if member.needs_copy {
        return Some(Work { problem: "the copy has not begun".into(), ..work });
    }
    let bytes = member.missing_bytes.filter(|bytes| *bytes > 0)?;
    // The member is never far behind, because the primary's replies wait for it. So the page does
    // not show this member.
    if member.is_counted {
        return None;
    }
    let what = format!("log records of group {group} for {}", named(map, member.target));
    Some(Work { kind: "catch-up", what, left: Some(bytes), unit: "bytes", ..work })
}

fn removal(map: &ClusterMap, target: &Target, figures: &TargetFigures) -> Option<Work> {
    let left = figures.get(&catalog::REMOVALS_QUEUED, target.id.raw())?;
    (left > 0).then(|| Work {
        kind: "removal",
        object: target.id.to_string(),
        what: format!("removal of the chunk files of removed files, by {}", named(map, target.id)),
        done: None,
        total: None,
        left: Some(left),
        unit: "chunk files",
        bytes_per_second: None,
        seconds_left: None,
        problem: String::new(),
    })
}

fn clean_up(map: &ClusterMap, target: &Target, figures: &TargetFigures) -> Option<Work> {
    let id = target.id.raw();
    let total = figures.get(&catalog::CLEANUP_DIRECTORIES, id).filter(|total| *total > 0)?;
    let left = figures.get(&catalog::CLEANUP_LEFT, id)?.min(total);
    Some(Work {
        kind: "clean-up",
        object: target.id.to_string(),
        what: format!("search for chunk files without an inode on {}", named(map, target.id)),
        done: Some(total - left),
        total: Some(total),
        left: Some(left),
        unit: "directories",
        bytes_per_second: None,
        seconds_left: None,
        problem: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target_figures::tests::figures;
    use skep_types::{ClusterId, Epoch, Lsn, NodeId, TargetKind};
    use skep_wire::log_shipping::CopyProgress;

    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        for (id, kind) in
            [(1, TargetKind::Metadata), (2, TargetKind::Metadata), (7, TargetKind::Storage)]
        {
            map.targets.push(Target::new(TargetId::new(id), kind, NodeId::new(1), "/d"));
        }
        map
    }

    fn member(missing_bytes: Option<u64>) -> MemberProgress {
        MemberProgress {
            target: TargetId::new(2),
            appended: Lsn::default(),
            synced: Lsn::default(),
            silent_ms: Some(1),
            is_counted: false,
            needs_copy: false,
            missing_bytes,
            copy: None,
        }
    }

    fn of_members(members: Vec<MemberProgress>) -> Vec<Work> {
        let progress = GroupProgress {
            epoch: Epoch::default(),
            primary: TargetId::new(1),
            last: Lsn::default(),
            synced: Lsn::default(),
            held: Lsn::default(),
            safe: Lsn::default(),
            may_answer: true,
            kept_bytes: 0,
            members,
        };
        work(&map(), &vec![(GroupId::new(3), progress)], &TargetFigures::default())
    }

    #[test]
    fn member_that_catches_up_is_listed_until_it_lacks_nothing() {
        assert_eq!(of_members(vec![member(Some(0)), member(None)]), []);
        let counted = MemberProgress { is_counted: true, ..member(Some(9)) };
        assert_eq!(of_members(vec![counted]), [], "a counted member gets each record immediately");
        let found = of_members(vec![member(Some(4096))]);
        assert_eq!(
            (found[0].kind, found[0].left, found[0].unit),
            ("catch-up", Some(4096), "bytes")
        );
        assert_eq!(found[0].what, "log records of group g3 for t2");
    }

    #[test]
    fn copy_of_a_store_is_listed_with_records_done_and_left() {
        let copy = CopyProgress {
            pair_count: 100,
            total_pairs: 400,
            pair_bytes: 10_000,
            bytes_per_second: Some(1_000),
            problem: String::new(),
        };
        let copied = MemberProgress { needs_copy: true, copy: Some(copy), ..member(None) };
        let waiting = MemberProgress { needs_copy: true, ..member(None) };
        let found = of_members(vec![copied, waiting]);
        let [copied, waiting] = &found[..] else { panic!("{found:?}") };
        assert_eq!((copied.done, copied.total, copied.left), (Some(100), Some(400), Some(300)));
        assert_eq!((copied.seconds_left, &*copied.problem), (Some(30), ""));
        assert_eq!((waiting.done, &*waiting.problem), (None, "the copy has not begun"));
    }

    #[test]
    fn removals_and_clean_ups_are_listed_while_something_is_left() {
        let figures = figures(&[
            (&catalog::REMOVALS_QUEUED, 1, 500),
            (&catalog::REMOVALS_QUEUED, 2, 0),
            (&catalog::CLEANUP_DIRECTORIES, 7, 256),
            (&catalog::CLEANUP_LEFT, 7, 200),
        ]);
        let found = work(&map(), &Vec::new(), &figures);
        let [removal, clean_up] = &found[..] else { panic!("{found:?}") };
        assert_eq!((&*removal.object, removal.left), ("t1", Some(500)));
        assert_eq!((&*clean_up.object, clean_up.done, clean_up.total), ("t7", Some(56), Some(256)));
    }

    #[test]
    fn list_of_background_work_is_bounded() {
        assert_eq!(of_members(vec![member(Some(1)); 2 * MAX_WORK]).len(), MAX_WORK);
    }
}

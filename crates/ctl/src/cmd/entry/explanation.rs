//! Explains the targets of a component of a stripe pattern in words, for `skep entry info`.

use skep_cluster::state::closed_groups;
use skep_types::{Chooser, ClusterMap, Component, FileKind, GroupId};
use std::fmt::Write;

/// Describes the effect of lost and closed targets in the groups of a component. For a directory,
/// describes the effect on its new files, and for a file, the effect on its bytes. Returns an empty
/// text if lost and closed targets have no effect.
pub(super) fn effect_of_absent(map: &ClusterMap, kind: FileKind, groups: &[GroupId]) -> String {
    let mut text = String::new();
    for closed in closed_groups(map).iter().filter(|it| groups.contains(&it.group)) {
        let (target, id) = (closed.target, closed.target.raw());
        let _ = match (kind, closed.is_lost) {
            (FileKind::Directory, true) => write!(
                text,
                "; target {target} was marked as lost, so new files in this directory fail with \
                 ENOSPC until `skep entry set --inherit` or `--targets` gives the directory \
                 another pattern"
            ),
            (FileKind::Directory, false) => write!(
                text,
                "; target {target} is closed, so new files in this directory fail with ENOSPC \
                 until `skep target set-state {id} open`, or until `skep entry set` gives the \
                 directory another pattern"
            ),
            (_, true) => write!(
                text,
                "; target {target} was marked as lost, so reads of its bytes fail with EIO"
            ),
            (_, false) => Ok(()),
        };
    }
    text
}

/// Explains how the targets of a component were chosen, and why a file may have fewer targets than
/// requested.
pub(super) fn why(map: &ClusterMap, component: &Component) -> String {
    if component.is_inline() {
        return "stored in metadata, with the inode".to_owned();
    }
    let rule = match component.chooser {
        Chooser::Cluster | Chooser::Balanced if map.has_domains() => {
            "equally many targets on each server, or one additional target on some servers; evenly \
             over failure domains; targets with more free space get more files"
        }
        Chooser::Cluster | Chooser::Balanced => {
            "equally many targets on each server, or one additional target on some servers; \
             targets with more free space get more files"
        }
        Chooser::Randomized => {
            "random targets, one from each of several equal parts of the list of all targets"
        }
        Chooser::RoundRobin => "the next targets in the order of their ids",
        Chooser::RandomRobin => "the next targets in the order of their ids, shuffled",
        Chooser::RandomInterNode => "one random target on each of several servers",
        Chooser::RandomIntraNode => "random targets of one random server",
        Chooser::Listed => "the targets that the pattern lists, in this order",
    };
    let (wanted, found) = (usize::from(component.wanted), component.groups.len());
    match found < wanted && found > 0 {
        true => format!("{rule}; only {found} targets were available"),
        false => rule.to_owned(),
    }
}

//! Explains why a target that has accepted a request does not reply: names the other target for
//! which this target itself waits.
//!
//! A mount reports the targets that do not reply to the mount only in the text of its error. So
//! this module finds the ids of these targets in the text.

use skep_types::{ClusterMap, NodeId, TargetId};

/// The words of a mount before the ids of the targets that do not reply.
const SILENT: &str = "without a reply from target";

/// Requests of a node that wait for a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) node: NodeId,
    pub(crate) target: TargetId,
}

/// Returns the clause that names the target for which a silent target itself waits. An example is
/// `target t1 on metadata-1 itself waits for target t5 on storage-2`. `error` is the error of the
/// waiting mount. `None` if the error names no target, or if the node of the target does not wait.
pub(crate) fn chain(
    error: &str,
    waits: impl Iterator<Item = Wait> + Clone,
    map: &ClusterMap,
) -> Option<String> {
    silent_targets(error).find_map(|silent| {
        let node = map.target(silent)?.node;
        let wait = waits.clone().find(|it| it.node == node && it.target != silent)?;
        let (from, to) = (with_node(silent, map), with_node(wait.target, map));
        Some(format!("{from} itself waits for {to}"))
    })
}

/// Returns the targets that do not reply to a mount, according to the text of the mount's error.
pub(crate) fn silent_targets(error: &str) -> impl Iterator<Item = TargetId> {
    let named = error.split_once(SILENT).map_or("", |(_, named)| named);
    // The list ends before the first word that is no target id.
    let words = named.trim_start_matches('s').split(", ");
    words.map_while(|word| {
        let id = word.split_whitespace().next()?.trim_end_matches(':').strip_prefix('t')?;
        id.parse().ok().map(TargetId::new)
    })
}

/// Returns a target with the name of its node.
pub(crate) fn with_node(target: TargetId, map: &ClusterMap) -> String {
    let node = map.target(target).and_then(|it| map.node(it.node));
    let node = node.map_or_else(String::new, |node| format!(" on {}", node.name));
    format!("target {target}{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_without_a_reply_are_parsed_from_the_text_of_a_mount() {
        let ids = |text: &str| -> Vec<_> { silent_targets(text).map(TargetId::raw).collect() };
        assert_eq!(ids("open of inode 9, without a reply from target t1"), [1]);
        assert_eq!(ids("open, without a reply from targets t3, t15 and 2 more"), [3, 15]);
        let named = "open, without a reply from targets t3 on storage-1, t15 on storage-2";
        assert_eq!(ids(named), [3, 15]);
        let refused = "open, without a reply from target t3 on storage-1: 10.0.0.5:7420: refused";
        assert_eq!(ids(refused), [3]);
        assert!(ids("open of inode 9 by process 7").is_empty());
    }
}

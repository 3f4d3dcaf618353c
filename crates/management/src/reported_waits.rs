//! The requests that wait for a group at their senders, as nodes report them in heartbeats. These
//! waits are soft state: a restart of management loses the waits, and the next heartbeats restore
//! them.

use skep_types::NodeId;
use skep_wire::limits::{MAX_LISTED_REQUEST_WAITS, MAX_REPORTED_WAITS, MAX_WAIT_ERROR_CHARS};
use skep_wire::management::{NodeWait, RequestWait, RequestWaitList};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The waits of each node whose last heartbeat has reported at least one wait.
#[derive(Debug, Default)]
pub(crate) struct ReportedWaits(RefCell<BTreeMap<NodeId, Vec<RequestWait>>>);

impl ReportedWaits {
    /// Replaces the waits of a node by the waits in its newest heartbeat.
    pub(crate) fn report(&self, node: NodeId, mut waits: Vec<RequestWait>) {
        waits.truncate(MAX_REPORTED_WAITS);
        for wait in &mut waits {
            let end = wait.error.char_indices().nth(MAX_WAIT_ERROR_CHARS);
            wait.error.truncate(end.map_or(wait.error.len(), |(at, _)| at));
        }
        match waits.is_empty() {
            true => self.0.borrow_mut().remove(&node),
            false => self.0.borrow_mut().insert(node, waits),
        };
    }

    /// Returns the reported waits, the longest first. Drops the waits of each node for which
    /// `is_current` returns `false`, because that node's last heartbeat is too old.
    pub(crate) fn list(&self, is_current: impl Fn(NodeId) -> bool) -> RequestWaitList {
        let mut reported = self.0.borrow_mut();
        reported.retain(|node, _| is_current(*node));
        let of_node = |(node, waits): (&NodeId, &Vec<RequestWait>)| {
            let node = *node;
            waits.clone().into_iter().map(move |wait| NodeWait { node, wait })
        };
        let mut waits: Vec<_> = reported.iter().flat_map(of_node).collect();
        waits.sort_by_key(|it| Reverse(it.wait.since_ms));
        waits.truncate(MAX_LISTED_REQUEST_WAITS);
        RequestWaitList { waits, nodes: u32::try_from(reported.len()).unwrap_or(u32::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::GroupId;

    fn wait(since_ms: u64) -> RequestWait {
        RequestWait { group: GroupId::new(3), since_ms, requests: 2, error: "no route".into() }
    }

    #[test]
    fn reported_waits_are_listed_until_a_heartbeat_omits_them() {
        let reported = ReportedWaits::default();
        let [one, two, gone] = [1, 2, 3].map(NodeId::new);
        reported.report(one, vec![wait(6_000)]);
        reported.report(two, vec![wait(9_000), wait(7_000)]);
        reported.report(gone, vec![wait(8_000)]);
        let list = reported.list(|node| node != gone);
        let order: Vec<_> = list.waits.iter().map(|it| (it.node, it.wait.since_ms)).collect();
        assert_eq!(order, [(two, 9_000), (two, 7_000), (one, 6_000)]);
        assert_eq!(list.nodes, 2);
        reported.report(two, Vec::new());
        assert_eq!(reported.list(|_| true).waits.len(), 1);
    }

    #[test]
    fn list_of_reported_waits_is_bounded() {
        let reported = ReportedWaits::default();
        for node in 1..=200 {
            reported.report(NodeId::new(node), vec![wait(6_000); MAX_REPORTED_WAITS + 1]);
        }
        let list = reported.list(|_| true);
        assert_eq!((list.waits.len(), list.nodes), (MAX_LISTED_REQUEST_WAITS, 200));
        // An over-long error text of a faulty node must not make the reply too long.
        let long = RequestWait { error: "x".repeat(100_000), ..wait(1) };
        reported.report(NodeId::new(1), vec![long]);
        let list = reported.list(|node| node == NodeId::new(1));
        assert_eq!(list.waits[0].wait.error.len(), MAX_WAIT_ERROR_CHARS);
    }
}

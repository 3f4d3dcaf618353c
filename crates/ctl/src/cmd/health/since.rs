//! Finds the time at which each problem of a server or target began, as the leader of management
//! has observed it.
//!
//! The module [`super::check`] finds the problems.

use super::problem::{Object, Problem, Since};
use crate::access::Access;
use skep_types::{ErrorCode, NodeId, Result, TargetId, Timestamp};
use skep_wire::management::{ListOutages, OutageList};

/// The outages that management has recorded. `now` is the time at which management's reply arrived,
/// by the clock of this host.
#[derive(Debug)]
pub(super) struct OutageTimes {
    list: OutageList,
    now: Timestamp,
}

impl OutageTimes {
    /// Asks management for the outages.
    ///
    /// # Errors
    /// Errors of management. A leader of an older version does not support this request. In this
    /// case, the function returns no outages and no error.
    pub(super) async fn fetch(access: &Access) -> Result<Self> {
        let list = match access.ask(&ListOutages {}).await {
            Err(error) if error.code() == ErrorCode::Unsupported => OutageList::default(),
            list => list?,
        };
        Ok(Self { list, now: skep_env::wall_time() })
    }

    /// Sets the start time of each problem. If several objects have the problem, the longest of
    /// their outages counts.
    pub(super) fn set_in(&self, problems: &mut [Problem]) {
        for problem in problems {
            let outages = problem.objects.iter().filter_map(|object| self.outage(*object));
            // A problem of several objects began with the first outage, which is the longest one.
            if let Some((since_ms, may_be_older)) = outages.max() {
                problem.since = Some(Since::before(self.now, since_ms));
                problem.may_be_older = may_be_older;
            }
        }
    }

    /// Returns the duration of an object's outage in milliseconds, and whether the outage may have
    /// lasted longer.
    fn outage(&self, object: Object) -> Option<(u64, bool)> {
        let of_node = |id: NodeId| {
            let found = self.list.nodes.iter().find(|it| it.node == id);
            found.map(|it| (it.since_ms, it.may_be_longer))
        };
        let of_target = |id: TargetId| {
            let found = self.list.targets.iter().find(|it| it.target == id);
            found.map(|it| (it.since_ms, it.may_be_longer))
        };
        match object {
            Object::Node(id) => of_node(id),
            Object::Target(id) => of_target(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_wire::management::{NodeOutage, TargetOutage};

    #[test]
    fn problem_begins_with_the_earliest_outage_of_its_objects() {
        let node = |id, since_ms, may_be_longer| NodeOutage {
            node: NodeId::new(id),
            since_ms,
            may_be_longer,
        };
        let target =
            TargetOutage { target: TargetId::new(7), since_ms: 90_000, may_be_longer: false };
        let list = OutageList {
            nodes: vec![node(2, 34_000, false), node(3, 40_000, true)],
            targets: vec![target],
        };
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 500_000_000 };
        let times = OutageTimes { list, now };
        let shown = |objects: &[Object]| {
            let objects = objects.to_vec();
            let mut problems = [Problem { what: "it".into(), objects, ..Problem::default() }];
            times.set_in(&mut problems);
            problems[0].what_and_since()
        };
        let nodes = [2, 3].map(|id| Object::Node(NodeId::new(id)));
        assert_eq!(shown(&nodes[..1]), "it (since 2023-11-14T22:12:46Z, for 34.0s)");
        assert_eq!(
            shown(&nodes),
            "it (since 2023-11-14T22:12:40Z, when this management node began to lead, or earlier)"
        );
        let target = Object::Target(TargetId::new(7));
        assert_eq!(shown(&[target]), "it (since 2023-11-14T22:11:50Z, for 1.5min)");
        assert_eq!(shown(&[Object::Node(NodeId::new(9))]), "it");
    }
}

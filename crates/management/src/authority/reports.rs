//! On the leader, processes the reports in heartbeats and registrations, and the absence of
//! heartbeats.

use super::{Authority, now_ms};
use crate::map_log;
use skep_cluster::reachability::{Outage, ReachabilityChanges};
use skep_cluster::{RequestId, SoftState};
use skep_types::map::{Capacity, Condition, KnownReason, TargetHealth};
use skep_types::{ErrorCode, EvictionCause, GroupId, NodeId, NodeKind, Target, TargetId};
use skep_wire::management::{NodeOutage, OutageList, TargetOutage, TargetReport};
use std::time::Duration;

/// The problem that is reported for a target that is missing from the registration of its node.
const UNSERVED: &str = "the service has registered this target, and does not serve it yet";

impl Authority {
    /// Records a heartbeat of a node with the reports about its targets. If the heartbeat has no
    /// report about a target of the node, this target counts as down.
    pub(crate) fn note_heartbeat(&self, node: NodeId, reports: &[TargetReport]) {
        let capacities: Vec<_> = reports
            .iter()
            .filter(|report| report.health.condition != Condition::Down)
            .map(|report| (report.target, report.capacity))
            .collect();
        let mut changed = false;
        for target in self.targets_of(node) {
            let report = reports.iter().find(|report| report.target == target.id);
            let health = report.map_or_else(
                || TargetHealth::new(Condition::Down, KnownReason::Unreported.text()),
                |report| report.health.clone(),
            );
            if self.with_soft(|soft| soft.report_health(now_ms(), target.id, &health)) {
                changed = true;
                map_log::condition_line(&self.map(), target.id, &health).write();
            }
        }
        self.soft_change(changed);
        self.note_alive(node, &capacities);
    }

    /// Records that a server has registered. `capacities` has an item for each target that the
    /// server serves. The server's other targets count as down.
    pub(crate) fn note_registration(&self, node: NodeId, capacities: &[(TargetId, Capacity)]) {
        let mut changed = false;
        for target in self.targets_of(node) {
            if capacities.iter().all(|(served, _)| *served != target.id) {
                let health = TargetHealth::new(Condition::Down, UNSERVED);
                changed |= self.with_soft(|soft| soft.report_health(now_ms(), target.id, &health));
            }
        }
        self.soft_change(changed);
        self.note_alive(node, capacities);
    }

    /// Records that a node is alive: it has registered, or has sent a heartbeat. `capacities` are
    /// the capacities of its targets in this message.
    pub(crate) fn note_alive(&self, node: NodeId, capacities: &[(TargetId, Capacity)]) {
        let mut changed = self.with_soft(|soft| soft.record_contact(now_ms(), node));
        let own = self.targets_of(node);
        for (target, capacity) in capacities {
            let is_its_own = own.iter().any(|it| it.id == *target);
            if is_its_own && self.with_soft(|soft| soft.report(*target, *capacity)) {
                changed = true;
                // Until `soft_change` below, the map contains the capacity from before this report.
                if let Some(line) = map_log::space_line(&self.map(), *target, capacity) {
                    line.write();
                }
            }
        }
        self.soft_change(changed);
    }

    /// Records that a server has shut down cleanly.
    pub(crate) fn left(&self, node: NodeId) {
        let changed = self.with_soft(|soft| soft.record_leave(now_ms(), node));
        self.soft_change(changed);
    }

    /// Returns the targets of a node.
    pub(super) fn targets_of(&self, node: NodeId) -> Vec<Target> {
        self.member.with_state(|it| {
            let targets = it.state.map().targets.iter();
            targets.filter(|target| target.node == node).cloned().collect()
        })
    }

    /// Calls `change` with the soft state. Returns its result, or `false` if this member does not
    /// lead.
    pub(super) fn with_soft(&self, change: impl FnOnce(&mut SoftState) -> bool) -> bool {
        self.inner.borrow_mut().lead.as_mut().is_some_and(|lead| change(&mut lead.soft))
    }

    /// Returns the time since the last heartbeat of a node or since its clean shutdown, but at most
    /// the time since this member began to lead.
    pub(crate) fn silence(&self, node: NodeId) -> Duration {
        let inner = self.inner.borrow();
        let silent_ms = inner.lead.as_ref().and_then(|lead| lead.soft.silent_ms(now_ms(), node));
        Duration::from_millis(silent_ms.unwrap_or(0))
    }

    /// Returns the outages of servers and targets that this leader has observed.
    pub(crate) fn outages(&self) -> OutageList {
        let (inner, map) = (self.inner.borrow(), self.map());
        let Some(lead) = &inner.lead else { return OutageList::default() };
        let is_server = |id: NodeId| map.node(id).is_some_and(|node| node.kind != NodeKind::Client);
        let nodes = lead.soft.silent_nodes(now_ms()).filter(|(node, _)| is_server(*node));
        let nodes = nodes.map(|(node, Outage { lasted_ms, may_be_longer })| NodeOutage {
            node,
            since_ms: lasted_ms,
            may_be_longer,
        });
        let targets = lead.soft.faulty_targets(now_ms());
        let targets = targets.map(|(target, Outage { lasted_ms, may_be_longer })| TargetOutage {
            target,
            since_ms: lasted_ms,
            may_be_longer,
        });
        OutageList { nodes: nodes.collect(), targets: targets.collect() }
    }

    /// Whether management has received a heartbeat of a node within the last lease.
    pub(crate) fn has_contact(&self, node: NodeId) -> bool {
        let inner = self.inner.borrow();
        let lease_ms = u64::from(inner.published.policy.lease_ms);
        let silent = inner.lead.as_ref().and_then(|it| it.soft.ms_since_contact(now_ms(), node));
        silent.is_some_and(|silent| silent <= lease_ms)
    }

    /// Removes a node from the soft state, because the map does not have the node any more.
    pub(super) fn forget(&self, node: NodeId) {
        if let Some(lead) = &mut self.inner.borrow_mut().lead {
            lead.soft.remove(node);
        }
    }

    /// Updates everything that depends on time: reachability, leases and free space.
    pub(crate) async fn tick(&self) {
        if self.check_leader().is_err() {
            return;
        }
        self.note_alive(self.own, &[]);
        let Some(passed) = self.tick_soft() else { return };
        self.soft_change(passed.changed);
        for client in passed.expired_clients {
            let cause = EvictionCause::Silent;
            let id = RequestId::default();
            match self.evict(id, client, cause, GroupId::default()).await {
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::NotLeader => return,
                Err(error) => tracing::error!(
                    "management cannot evict client {client}, which has been silent for too long, \
                     and retries: {error}"
                ),
            }
        }
    }

    fn tick_soft(&self) -> Option<ReachabilityChanges> {
        let mut inner = self.inner.borrow_mut();
        let lead = inner.lead.as_mut()?;
        self.member.with_state(|it| {
            let passed = lead.soft.tick(now_ms(), &it.state);
            lead.total_capacity = lead.soft.total_capacity(it.state.map());
            Some(passed)
        })
    }
}

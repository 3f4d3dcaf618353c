//! The state of a management directory that was restored from a backup. Its next ids and map
//! versions continue far above all ids and versions that were assigned after the backup was made.
//!
//! This module does not decide whether the directory was restored. Management decides that it was
//! restored when management starts with a marked directory, or when a node reports a newer map.

use super::skipped_ids::{NextIds, SkippedIds};
use super::{Durable, limit};
use crate::command::Outcome;
use crate::groups;
use crate::versions::{MAX_STARTS, starts_of};
use skep_types::{Epoch, MapVersion, NodeId, Result};

/// Number of start numbers that management skips after a restoration. The number is larger than any
/// plausible number of starts between a backup and its restoration, so no map version is used
/// twice.
const SKIPPED_STARTS: u64 = 1 << 12;
/// Number of node ids that management skips after a restoration. Each mount takes one id.
const SKIPPED_NODES: u32 = 1 << 20;
/// Number of target ids, and also of group ids, that management skips after a restoration.
const SKIPPED_TARGETS: u32 = 1 << 16;
/// Maximum number of starts in a map version that a node reports: half of all possible starts.
/// Reports of a faulty node can then never use up the starts of management itself.
const MAX_REPORTED_STARTS: u64 = MAX_STARTS / 2;
/// Maximum node id that a node reports: half of all ids, so that reports never use up the ids.
const MAX_REPORTED_NODE: u32 = u32::MAX / 2;

/// Checks the map version and the node id in a report of a node, before management raises its own
/// numbers above them. Management raises its numbers only for a report that exceeds its own map
/// versions or node ids. Each raise skips starts and node ids. So management accepts at most about
/// 2,000 such reports, and these reports leave half of all starts and node ids unused.
///
/// # Errors
/// Returns `LimitReached` if the version or the id is too high.
pub fn check_report(node: NodeId, version: MapVersion, newest_node: NodeId) -> Result<()> {
    let starts = starts_of(version);
    if starts > MAX_REPORTED_STARTS {
        return Err(limit(format!(
            "cannot accept cluster map {version}, which node {node} reports: by its version, \
             management was started {starts} times, and management accepts at most \
             {MAX_REPORTED_STARTS} starts in a report; remove the cached cluster map (`kept-map`) \
             of that node's service, and restart the service"
        )));
    }
    if newest_node.raw() > MAX_REPORTED_NODE {
        return Err(limit(format!(
            "cannot accept the node id {newest_node} that node {node} reports: management accepts \
             ids up to {MAX_REPORTED_NODE} in a report; remove the cached cluster map (`kept-map`) \
             of that node's service, and restart the service"
        )));
    }
    Ok(())
}

impl Durable {
    /// Raises the next ids and the number of starts above the values in `reported`. A map version
    /// contains the number of starts, so later map versions are also above the reported one.
    ///
    /// # Errors
    /// Returns `LimitReached` if the numbers of a kind would run out.
    pub(super) fn continue_above(
        &mut self,
        reported: MapVersion,
        skipped: &mut SkippedIds,
    ) -> Result<Outcome> {
        let starts = self.starts.max(starts_of(reported)) + SKIPPED_STARTS;
        if starts > MAX_STARTS {
            return Err(limit(format!(
                "cannot publish a cluster map: no version is left above the reported version \
                 {reported}"
            )));
        }
        let raise = |next: u32, count: u32| {
            next.checked_add(count)
                .ok_or_else(|| limit(format!("cannot assign an id: no id is left above {next}")))
        };
        let before = self.next_ids();
        self.next_node = raise(self.next_node, SKIPPED_NODES)?;
        self.next_target = raise(self.next_target, SKIPPED_TARGETS)?;
        self.next_group = raise(self.next_group, SKIPPED_TARGETS)?;
        skipped.skip(before, self.next_ids());
        // Clients that registered after the backup was made count as removed. So all targets refuse
        // their requests, and the clients register again.
        self.map.newest_node = NodeId::new(self.next_node - 1);
        self.starts = starts;
        // A target in a group of one member continues: its own record of the group shows whether
        // the backup is older than the last change of the group (`Durable::revise_group`).
        let several = self.map.groups.iter().filter(|group| group.members.len() > 1);
        let reopened = several.map(|group| groups::reopen(group, Epoch::default(), &[]));
        let reopened: Vec<_> = reopened.collect();
        reopened.into_iter().for_each(|group| self.put_group(group));
        Ok(Outcome::default())
    }

    fn next_ids(&self) -> NextIds {
        [self.next_node, self.next_target, self.next_group]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::ClientRegistration;
    use crate::{ClusterState, Command};
    use skep_types::{ClusterId, ErrorCode};

    fn register(state: &mut ClusterState) -> u32 {
        let client = Command::RegisterClient(ClientRegistration::default());
        state.apply(&client).unwrap().node.raw()
    }

    /// Checks the guarantee of docs/semantics.md 1.8.
    #[test]
    fn restored_cluster_state_reuses_no_id() {
        let mut state = ClusterState::new(ClusterId::default());
        state.apply(&Command::Start).unwrap();
        register(&mut state);
        let mut copy = ClusterState::from_snapshot(&state.snapshot()).unwrap();
        state.apply(&Command::Start).unwrap();
        let lost = register(&mut state);
        copy.apply(&Command::ContinueAbove { version: MapVersion::default() }).unwrap();
        copy.check_invariants();
        assert!(copy.starts() > state.starts());
        assert!(
            copy.map().has_removed(skep_types::NodeId::new(lost)),
            "no target serves this client"
        );
        assert!(register(&mut copy) > lost);
        // A node reports a much newer map.
        let newer = MapVersion::new(5000 << 40);
        copy.apply(&Command::ContinueAbove { version: newer }).unwrap();
        assert!(copy.starts() > 5000);
        let before = copy.clone();
        let wild = Command::ContinueAbove { version: MapVersion::new(u64::MAX) };
        assert_eq!(copy.apply(&wild).unwrap_err().code(), ErrorCode::LimitReached);
        assert_eq!(copy, before);
    }

    /// The backup may be older than a take-over, so the primary in the backup may lack changes.
    #[test]
    fn restored_management_skips_epochs_of_groups_with_copies() {
        use skep_types::{Group, GroupId, GroupMember, MemberState, TargetId, TargetKind};
        let mut durable = ClusterState::new(ClusterId::default()).durable;
        let [one, two] = [1, 2]
            .map(|id| Group::of_one(GroupId::new(id), TargetKind::Metadata, TargetId::new(id)));
        let mut several = two.clone();
        let (target, state) = (TargetId::new(3), MemberState::Waiting);
        several.members.push(GroupMember { target, state });
        durable.put_group(one.clone());
        durable.put_group(several);
        durable.continue_above(MapVersion::default(), &mut SkippedIds::default()).unwrap();
        let group = |id| durable.map.group(GroupId::new(id)).unwrap();
        assert_eq!(group(1), &one, "a group of one member changes no epoch");
        assert!(groups::has_skipped(two.epoch, group(2).epoch));
        assert!(groups::is_undecided(group(2).epoch), "no member leads");
        assert!(group(2).members.iter().all(|it| it.state == MemberState::Serving));
    }

    /// Returns the registration of a server and its targets under the ids that `lost` has.
    fn again(server: Command, lost: &Outcome) -> Command {
        let Command::RegisterServer(mut server) = server else { panic!("a registration") };
        server.node = lost.node;
        for (claim, id) in server.targets.iter_mut().zip(&lost.targets) {
            claim.target = *id;
        }
        Command::RegisterServer(server)
    }

    #[test]
    fn server_added_after_the_backup_keeps_its_ids_and_group() {
        use crate::state::tests::{cluster, server};
        use skep_types::TargetKind::{Metadata, Storage};
        let mut state = cluster();
        state.apply(&server(Storage, 1, &[11])).unwrap();
        let mut copy = ClusterState::from_snapshot(&state.snapshot()).unwrap();
        let storage = state.apply(&server(Storage, 2, &[21])).unwrap();
        let metadata = state.apply(&server(Metadata, 3, &[31])).unwrap();
        let returns = again(server(Storage, 2, &[21]), &storage);
        let early = copy.apply(&returns).unwrap_err();
        assert_eq!(early.code(), ErrorCode::NotPermitted, "management was not restored");
        copy.apply(&Command::ContinueAbove { version: MapVersion::default() }).unwrap();
        let mut copy = ClusterState::from_snapshot(&copy.snapshot()).unwrap();
        assert_eq!(copy.apply(&returns).unwrap().targets, storage.targets);
        let (target, group) = (storage.targets[0], state.map().group_of(storage.targets[0]));
        let group = group.unwrap().id;
        assert!(copy.map().group_of(target).is_none());
        for changed in [true, false] {
            let command = Command::ReturnToGroup { target, group };
            assert_eq!(copy.apply(&command).unwrap().changed, changed);
        }
        assert_eq!(copy.map().group(group), state.map().group(group));
        let stolen = again(server(Storage, 4, &[41]), &storage);
        assert_eq!(copy.apply(&stolen).unwrap_err().code(), ErrorCode::NotPermitted);

        // An administrator removes a server and its target. Neither of them can register again.
        let returns = again(server(Metadata, 3, &[31]), &metadata);
        assert_eq!(copy.apply(&returns).unwrap().node, metadata.node);
        copy.apply(&Command::RemoveTarget { target: metadata.targets[0] }).unwrap();
        copy.apply(&Command::RemoveServer { node: metadata.node }).unwrap();
        assert_eq!(copy.apply(&returns).unwrap_err().code(), ErrorCode::NotPermitted);
        copy.check_invariants();
    }

    /// Sends the highest permitted report again and again, until the report no longer exceeds
    /// management's own versions and ids.
    #[test]
    fn false_heartbeats_use_up_at_most_half_of_ids_and_versions() {
        let mut state = ClusterState::new(ClusterId::default());
        state.apply(&Command::Start).unwrap();
        let highest = MapVersion::new(MAX_REPORTED_STARTS << 40);
        let node = NodeId::new(7);
        let mut accepted = 0;
        while state.map().newest_node.raw() < MAX_REPORTED_NODE {
            let newest = NodeId::new(MAX_REPORTED_NODE);
            check_report(node, MapVersion::default(), newest).unwrap();
            state.apply(&Command::ContinueAbove { version: MapVersion::default() }).unwrap();
            accepted += 1;
        }
        assert!(accepted < 3_000, "{accepted}");
        check_report(node, highest, NodeId::default()).unwrap();
        state.apply(&Command::ContinueAbove { version: highest }).unwrap();
        state.apply(&Command::Start).unwrap();
        assert!(state.starts() < MAX_STARTS * 3 / 4);
        assert!(register(&mut state) < u32::MAX / 4 * 3);
        let higher = MapVersion::new((MAX_REPORTED_STARTS + 1) << 40);
        let error = check_report(node, higher, NodeId::default()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::LimitReached);
        let higher = NodeId::new(MAX_REPORTED_NODE + 1);
        let error = check_report(node, highest, higher).unwrap_err();
        assert_eq!(error.code(), ErrorCode::LimitReached);
    }
}

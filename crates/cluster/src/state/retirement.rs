//! Retirement of targets and servers: closes a target to new files, removes a target, and removes a
//! server that has no targets. Also renames servers.
//!
//! Does not own the search for files on a target. `skep target remove` asks the metadata targets
//! for such files before it sends the command.

use super::{Durable, check_text, kind_word};
use crate::command::Outcome;
use skep_types::map::{Condition, Consistency, TargetHealth};
use skep_types::{
    ClusterMap, Error, ErrorCode, GroupId, NodeId, NodeKind, Result, TargetId, TargetKind,
};

impl Durable {
    /// Closes a storage target to new files, or opens it again.
    pub(super) fn close_target(&mut self, id: TargetId, is_closed: bool) -> Result<Outcome> {
        let target = self.map.target(id).ok_or_else(|| unknown_target(id))?;
        if target.kind != TargetKind::Storage {
            let what = format!(
                "cannot close metadata target {id}: new entries of a directory must be on the \
                 target that serves the directory, so only storage targets can be closed"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        if target.consistency == Consistency::Bad && !is_closed {
            let what = format!(
                "cannot open target {id}: it was marked as lost, so its chunk files no longer \
                 match the files of the cluster; remove the target with `skep target remove {0}`, \
                 and add its disk as a new target",
                id.raw()
            );
            return Err(Error::new(ErrorCode::NotPermitted, what));
        }
        self.closed.retain(|closed| *closed != id);
        if is_closed {
            self.closed.push(id);
            self.closed.sort_unstable();
        }
        Ok(Outcome::default())
    }

    /// Marks a storage target as lost, and closes it to new files. The target stays in the map, so
    /// that requests for its files fail immediately.
    pub(super) fn give_up_target(&mut self, id: TargetId) -> Result<Outcome> {
        let target = self.map.target(id).ok_or_else(|| unknown_target(id))?;
        let refused = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
        if target.kind != TargetKind::Storage {
            return refused(format!(
                "cannot mark metadata target {id} as lost: a part of the namespace lies on it; \
                 restore its directory from a backup"
            ));
        }
        let group = self.map.group_of(id).filter(|group| group.members.len() > 1);
        if let Some(group) = group {
            return refused(format!(
                "cannot mark target {id} as lost: the other members of group {} have its data; \
                 remove the target from the group",
                group.id
            ));
        }
        let outcome = self.close_target(id, true)?;
        let at = self.map.targets.iter().position(|target| target.id == id);
        self.map.targets[at.expect("the target was found above")].consistency = Consistency::Bad;
        Ok(outcome)
    }

    /// Removes a target and its group. The removal of a target that does not exist changes nothing,
    /// so that the command can be retried.
    pub(super) fn remove_target(&mut self, id: TargetId) -> Result<Outcome> {
        let Some(target) = self.map.target(id) else { return Ok(Outcome::default()) };
        let refused = |what: String| Err(Error::new(ErrorCode::InUse, what));
        if target.kind == TargetKind::Storage && !self.closed.contains(&id) {
            return refused(format!(
                "cannot remove target {id}: it is open to new files; close it with `skep target \
                 set-state {} closed`",
                id.raw()
            ));
        }
        let group = self.map.group_of(id);
        if let Some(group) = group.filter(|group| group.members.len() > 1) {
            return refused(format!(
                "cannot remove target {id}: group {} has other members; remove the target from the \
                 group first",
                group.id
            ));
        }
        let group = group.map(|group| group.id);
        let shards = self.map.shards.iter().filter(|range| Some(range.group) == group);
        let shards: u32 = shards
            .map(|range| u32::from(range.last.raw()) - u32::from(range.first.raw()) + 1)
            .sum();
        if shards > 0 {
            return refused(format!(
                "cannot remove metadata target {id}: {shards} shards of the namespace lie on it, \
                 and shards do not move to other targets yet"
            ));
        }
        self.map.targets.retain(|target| target.id != id);
        self.map.groups.retain(|it| Some(it.id) != group);
        self.target_uuids.retain(|(target, _)| *target != id);
        self.closed.retain(|target| *target != id);
        Ok(Outcome::default())
    }

    /// Removes a server without targets. The removal of a server that does not exist changes
    /// nothing.
    pub(super) fn remove_server(&mut self, id: NodeId) -> Result<Outcome> {
        let Some(node) = self.map.node(id) else { return Ok(Outcome::default()) };
        if node.kind == NodeKind::Client {
            let what = format!(
                "cannot remove {} ({id}): it is a client; `skep client evict {}` evicts it",
                node.name,
                id.raw()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let targets = self.map.targets.iter().filter(|target| target.node == id);
        let targets: Vec<String> = targets.map(|target| target.id.to_string()).collect();
        if !targets.is_empty() {
            let what = format!(
                "cannot remove {} ({id}): targets {} belong to this node; first remove these \
                 targets with `skep target remove`",
                node.name,
                targets.join(", ")
            );
            return Err(Error::new(ErrorCode::InUse, what));
        }
        self.map.nodes.retain(|node| node.id != id);
        self.node_uuids.retain(|(node, _)| *node != id);
        Ok(Outcome { node: id, ..Outcome::default() })
    }

    /// Renames a server.
    pub(super) fn rename_server(&mut self, id: NodeId, name: &str) -> Result<Outcome> {
        check_text("the name", name)?;
        let wrong = |what: String| Err(Error::new(ErrorCode::InvalidArgument, what));
        let Some(node) = self.map.node(id) else {
            let what = format!(
                "cannot rename node {id}: it does not exist; `skep node list` shows all nodes"
            );
            return Err(Error::new(ErrorCode::NotFound, what));
        };
        if node.kind == NodeKind::Client {
            return wrong(format!(
                "cannot rename {} ({id}): the name of a client is its host and mount point",
                node.name
            ));
        }
        if name.is_empty() || name.contains(char::is_whitespace) || name.parse::<u32>().is_ok() {
            return wrong(format!(
                "invalid name '{name}': expected a word without spaces that is not a number"
            ));
        }
        let kind = node.kind;
        let is_taken = |it: &&skep_types::Node| it.id != id && it.kind == kind && it.name == name;
        if let Some(other) = self.map.nodes.iter().find(is_taken) {
            let what = format!(
                "cannot rename node {id}: the name '{name}' belongs to {} service {}",
                kind_word(kind),
                other.id
            );
            return Err(Error::new(ErrorCode::Exists, what));
        }
        if let Some(node) = self.map.nodes.iter_mut().find(|node| node.id == id) {
            name.clone_into(&mut node.name);
        }
        Ok(Outcome { node: id, ..Outcome::default() })
    }

    /// Marks the closed targets in a map. A target with a fault keeps its condition, so that the
    /// fault stays visible.
    pub(super) fn mark_closed(&self, map: &mut ClusterMap) {
        for target in &mut map.targets {
            let is_closed = self.closed.binary_search(&target.id).is_ok();
            if is_closed && target.health.condition == Condition::Serving {
                let problem = target.health.problem.clone();
                target.health = TargetHealth { condition: Condition::Closed, problem };
            }
        }
    }

    /// Asserts that the closed targets are storage targets of the map, in ascending order.
    pub(super) fn check_closed(&self) {
        assert!(self.closed.is_sorted_by(|one, next| one < next), "closed targets are sorted");
        for id in &self.closed {
            let kind = self.map.target(*id).map(|target| target.kind);
            assert_eq!(kind, Some(TargetKind::Storage), "closed target {id} exists");
        }
    }
}

/// A group that gets no new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedGroup {
    /// The group that gets no new files.
    pub group: GroupId,
    /// The closed or lost target of the group.
    pub target: TargetId,
    /// Whether the target was marked as lost. `false` means that an administrator has closed it to
    /// new files.
    pub is_lost: bool,
}

/// Returns the groups of a map that are closed to new files, or whose target is lost, in ascending
/// order of their ids.
pub fn closed_groups(map: &ClusterMap) -> Vec<ClosedGroup> {
    let closed = |group: &skep_types::Group| {
        let targets = group.members.iter().filter_map(|member| map.target(member.target));
        let mut closed = targets.filter_map(|target| {
            let is_lost = target.consistency == Consistency::Bad;
            let is_closed = is_lost || target.health.condition == Condition::Closed;
            is_closed.then_some(ClosedGroup { group: group.id, target: target.id, is_lost })
        });
        closed.next()
    };
    map.groups.iter().filter_map(closed).collect()
}

fn unknown_target(id: TargetId) -> Error {
    let what =
        format!("cannot find target {id}: it does not exist; `skep target list` shows all targets");
    Error::new(ErrorCode::NotFound, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::state::tests::{cluster, server};

    #[test]
    fn only_targets_closed_to_new_files_can_be_removed() {
        let mut state = cluster();
        state.apply(&server(TargetKind::Metadata, 1, &[10])).unwrap();
        let storage = state.apply(&server(TargetKind::Storage, 2, &[20, 21])).unwrap();
        state.apply(&Command::Format).unwrap();
        let [first, second] = storage.targets[..] else { panic!("two targets") };
        let refused = |state: &crate::ClusterState, command: &Command| {
            let error = state.clone().apply(command).unwrap_err();
            error.context().to_owned()
        };
        let remove = Command::RemoveTarget { target: first };
        assert!(refused(&state, &remove).contains("set-state 2 closed"));
        let close = |target, is_closed| Command::CloseTarget { target, is_closed };
        assert!(state.apply(&close(first, true)).unwrap().changed);
        assert!(!state.apply(&close(first, true)).unwrap().changed);
        let shown = |state: &crate::ClusterState| {
            let mut map = state.map().clone();
            state.mark_closed(&mut map);
            map.target(first).unwrap().health.condition
        };
        assert_eq!(shown(&state), Condition::Closed);
        state.apply(&close(first, false)).unwrap();
        assert_eq!(shown(&state), Condition::Serving);
        state.apply(&close(first, true)).unwrap();

        // In a state that is decoded from a snapshot, the target is still closed.
        state = crate::ClusterState::from_snapshot(&state.snapshot()).unwrap();
        assert_eq!(shown(&state), Condition::Closed);

        let server = Command::RemoveServer { node: storage.node };
        assert!(refused(&state, &server).contains("targets t2, t3 belong to this node"));
        assert!(state.apply(&remove).unwrap().changed);
        assert!(!state.apply(&remove).unwrap().changed);
        state.apply(&close(second, true)).unwrap();
        state.apply(&Command::RemoveTarget { target: second }).unwrap();
        assert!(state.apply(&server).unwrap().changed);
        assert!(!state.apply(&server).unwrap().changed);

        let metadata = state.map().targets[0].id;
        let remove = Command::RemoveTarget { target: metadata };
        assert!(refused(&state, &remove).contains("65536 shards"));
        assert!(refused(&state, &close(metadata, true)).contains("metadata target"));
    }

    #[test]
    fn lost_target_never_becomes_good_again() {
        let mut state = cluster();
        state.apply(&server(TargetKind::Metadata, 1, &[10])).unwrap();
        let storage = state.apply(&server(TargetKind::Storage, 2, &[20, 21])).unwrap();
        state.apply(&Command::Format).unwrap();
        let lost = storage.targets[0];
        let give_up = Command::GiveUpTarget { target: lost };
        assert!(state.apply(&give_up).unwrap().changed);
        assert!(!state.apply(&give_up).unwrap().changed);
        state = crate::ClusterState::from_snapshot(&state.snapshot()).unwrap();
        // A new registration of the service does not make the lost target good again.
        state.apply(&server(TargetKind::Storage, 2, &[20, 21])).unwrap();
        assert_eq!(state.map().target(lost).unwrap().consistency, Consistency::Bad);
        let group = state.map().group_of(lost).unwrap().id;
        let closed: Vec<_> = closed_groups(state.map()).iter().map(|it| it.group).collect();
        assert_eq!(closed, [group]);
        let open = Command::CloseTarget { target: lost, is_closed: false };
        assert_eq!(state.apply(&open).unwrap_err().code(), ErrorCode::NotPermitted);
        let metadata = state.map().targets[0].id;
        let refused = state.apply(&Command::GiveUpTarget { target: metadata }).unwrap_err();
        assert!(refused.context().contains("metadata target"), "{refused}");
        assert!(state.apply(&Command::RemoveTarget { target: lost }).unwrap().changed);
    }

    #[test]
    fn unused_metadata_targets_can_be_removed() {
        let mut state = cluster();
        state.apply(&server(TargetKind::Metadata, 1, &[10])).unwrap();
        state.apply(&Command::Format).unwrap();
        let late = state.apply(&server(TargetKind::Metadata, 2, &[11])).unwrap();
        assert!(state.apply(&Command::RemoveTarget { target: late.targets[0] }).unwrap().changed);
        assert!(state.apply(&Command::RemoveServer { node: late.node }).unwrap().changed);
    }

    #[test]
    fn servers_can_be_renamed_to_unused_names() {
        let mut state = cluster();
        let first = state.apply(&server(TargetKind::Storage, 1, &[10])).unwrap().node;
        state.apply(&server(TargetKind::Storage, 2, &[20])).unwrap();
        let mut rename = |name: &str| {
            let name = name.to_owned();
            state.apply(&Command::RenameServer { node: first, name }).map_err(|it| it.code())
        };
        assert!(rename("rack1-a").unwrap().changed);
        assert!(!rename("rack1-a").unwrap().changed);
        assert_eq!(rename("storage-2").unwrap_err(), ErrorCode::Exists);
        for wrong in ["", "a b", "7"] {
            assert_eq!(rename(wrong).unwrap_err(), ErrorCode::InvalidArgument, "{wrong}");
        }
    }
}

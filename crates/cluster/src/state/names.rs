//! Information about server names, beside the names in the cluster map: the highest number in the
//! names of each kind of server, and the host of each server.
//!
//! Management never generates a name twice, even if the server was renamed or removed. Otherwise,
//! old logs and administrators' notes would refer to the wrong server. The module `servers` chooses
//! the name of a server.
//!
//! # Invariants
//! - Each number is at least the highest number in the names of the servers in the map. Numbers
//!   above [`MAX_NUMBER`] do not count.
//! - Each host belongs to a server in the map, and the hosts are in ascending order of ids.

use super::insert_sorted;
use skep_types::codec::record;
use skep_types::{ClusterMap, Error, ErrorCode, NodeId, NodeKind, Result};

/// An administrator may choose a name with a number above this limit, such as the date in
/// `storage-20261125`. Such a number does not affect generated names.
const MAX_NUMBER: u32 = 100_000;

record! {
    /// The host names of servers, and the highest numbers in their generated names. A new server
    /// gets the next number.
    #[derive(Default)]
    pub struct ServerNames {
        /// Highest number in the name of any management service so far.
        pub management: u32,
        /// Highest number in the name of any metadata service so far.
        pub metadata: u32,
        /// Highest number in the name of any storage service so far.
        pub storage: u32,
        /// The host name of each server that has reported it, in ascending order of server id.
        pub hosts: Vec<(NodeId, String)>,
    }
}

/// Returns the generated name of a server.
pub(super) fn generated(kind: NodeKind, number: u32) -> String {
    format!("{}-{number}", super::kind_word(kind))
}

/// Checks that the new name of the server `id` is unambiguous. In a command or a log, the name must
/// not mean another node.
///
/// # Errors
/// - `Exists` if another server has the name.
/// - `InvalidArgument` if the name is an id, a word of `skep node log-level`, or a generated name
///   of another kind of server.
pub fn check_new_name(map: &ClusterMap, id: NodeId, name: &str) -> Result<()> {
    let Some(node) = map.node(id).filter(|node| node.name != name) else { return Ok(()) };
    let refused = |code, what: String| {
        let what = format!("cannot rename {} ({id}) to '{name}': {what}", node.name);
        Err(Error::new(code, what))
    };
    let number_after = |start: &str| name.strip_prefix(start).is_some_and(is_number);
    if matches!(name, "all" | "mounts") {
        let what = "`skep node log-level` names several nodes by this word; choose another name";
        return refused(ErrorCode::InvalidArgument, what.to_owned());
    }
    if ["n", "t", "g"].into_iter().any(number_after) {
        let what = "logs and commands name nodes, targets and groups by such ids; choose another \
                    name";
        return refused(ErrorCode::InvalidArgument, what.to_owned());
    }
    if let Some(other) = map.nodes.iter().find(|it| it.id != id && it.name == name) {
        let word = super::kind_word(other.kind);
        let what = format!("this is the name of {word} service {}; choose another name", other.id);
        return refused(ErrorCode::Exists, what);
    }
    let kinds = [NodeKind::Management, NodeKind::Metadata, NodeKind::Storage];
    let words = kinds.into_iter().filter(|kind| *kind != node.kind).map(super::kind_word);
    for word in words {
        if number_after(&format!("{word}-")) {
            let what = format!(
                "management gives names of this form to new {word} services; choose another name"
            );
            return refused(ErrorCode::InvalidArgument, what);
        }
    }
    Ok(())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl ServerNames {
    /// Returns the highest number in the names of servers of one kind.
    pub(super) fn newest(&self, kind: NodeKind) -> u32 {
        match kind {
            NodeKind::Management => self.management,
            NodeKind::Metadata => self.metadata,
            NodeKind::Storage => self.storage,
            NodeKind::Client => 0,
        }
    }

    /// Records the host name of a server.
    pub(super) fn set_host(&mut self, node: NodeId, host: &str) {
        insert_sorted(&mut self.hosts, (node, host.to_owned()), |(id, _)| *id);
    }

    /// Raises each highest number to the highest number in the generated names in `map`, and
    /// removes the hosts of servers that are not in `map`.
    pub(super) fn follow(&mut self, map: &ClusterMap) {
        for node in &map.nodes {
            let newest = match node.kind {
                NodeKind::Management => &mut self.management,
                NodeKind::Metadata => &mut self.metadata,
                NodeKind::Storage => &mut self.storage,
                NodeKind::Client => continue,
            };
            let number = node.name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
            let is_generated =
                |number: &u32| *number <= MAX_NUMBER && generated(node.kind, *number) == node.name;
            *newest = number.filter(is_generated).unwrap_or(0).max(*newest);
        }
        self.hosts.retain(|(id, _)| map.node(*id).is_some());
    }

    /// Asserts the invariants of the module.
    pub(super) fn check_invariants(&self, map: &ClusterMap) {
        let mut followed = self.clone();
        followed.follow(map);
        assert_eq!(followed, *self, "the numbers and host names agree with the map");
        assert!(self.hosts.is_sorted_by(|(one, _), (next, _)| one < next), "hosts are in order");
    }
}

#[cfg(test)]
mod tests {
    use super::check_new_name;
    use crate::state::tests::{cluster, server};
    use crate::{ClusterState, Command};
    use skep_types::{NodeId, TargetKind};

    fn name(state: &ClusterState, node: NodeId) -> String {
        state.map().node(node).unwrap().name.clone()
    }

    #[test]
    fn generated_name_of_a_removed_server_is_never_used_again() {
        let mut state = cluster();
        let join = |state: &mut ClusterState, uuid| {
            state.apply(&server(TargetKind::Storage, uuid, &[])).unwrap().node
        };
        let (first, second) = (join(&mut state, 1), join(&mut state, 2));
        let renamed = Command::RenameServer { node: first, name: "rack1-a".into() };
        state.apply(&renamed).unwrap();
        state.apply(&Command::RemoveServer { node: second }).unwrap();
        let mut state = ClusterState::from_snapshot(&state.snapshot()).unwrap();
        let third = join(&mut state, 3);
        assert_eq!(name(&state, third), "storage-3");
        // A date in a name that an administrator has chosen does not affect generated names.
        let name_of_a_day = Command::RenameServer { node: third, name: "storage-20261125".into() };
        state.apply(&name_of_a_day).unwrap();
        let fourth = join(&mut state, 4);
        assert_eq!(name(&state, fourth), "storage-4");
        let metadata = state.apply(&server(TargetKind::Metadata, 5, &[])).unwrap().node;
        assert_eq!(name(&state, metadata), "metadata-1", "each kind has its own numbers");
    }

    #[test]
    fn name_that_could_mean_another_node_is_refused() {
        let mut state = cluster();
        let first = state.apply(&server(TargetKind::Storage, 1, &[])).unwrap().node;
        state.apply(&server(TargetKind::Metadata, 2, &[])).unwrap();
        let map = state.map();
        for name in ["storage-1", "storage-9", "rack1-a", "node7", "n", "n4a"] {
            check_new_name(map, first, name).unwrap();
        }
        for name in ["all", "mounts", "n4", "t7", "g3", "metadata-1", "management-1"] {
            let refused = check_new_name(map, first, name).unwrap_err();
            assert!(refused.context().contains("choose another name"), "{refused}");
        }
    }

    #[test]
    fn host_name_of_a_server_is_stored_until_its_removal() {
        let mut state = cluster();
        let node = state.apply(&server(TargetKind::Storage, 1, &[])).unwrap().node;
        let on = |host: &str| Command::NoteHost { node, host: host.into() };
        assert!(state.apply(&on("stor1")).unwrap().changed);
        assert!(!state.apply(&on("stor1")).unwrap().changed);
        state.apply(&on("stor1.example")).unwrap();
        let hosts = |state: &ClusterState| state.hosts().to_vec();
        let mut state = ClusterState::from_snapshot(&state.snapshot()).unwrap();
        assert_eq!(hosts(&state), [(node, "stor1.example".to_owned())]);
        state.apply(&on(&"x".repeat(10_000))).unwrap_err();
        state.apply(&Command::RemoveServer { node }).unwrap();
        assert_eq!(hosts(&state), []);
        assert!(!state.apply(&on("stor1")).unwrap().changed, "a removed server has no host");
    }
}

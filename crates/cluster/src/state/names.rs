//! Facts about names that the cluster map does not have: the highest number in the generated names
//! of each kind of server, and the host of each server.
//!
//! A generated name is never used again, also after the server was renamed or removed: logs and
//! notes of administrators would mean another server. Does not own the choice of a name
//! (`servers`).
//!
//! # Invariants
//! - Each number is at least the highest number in the names of the servers in the map, unless that
//!   is above [`MAX_NUMBER`].
//! - Each host belongs to a server in the map, and the hosts are in ascending order of ids.

use super::insert_sorted;
use skep_types::codec::record;
use skep_types::{ClusterMap, NodeId, NodeKind};

/// Highest number in a name that an administrator has chosen and that moves the generated ones. A
/// name like `storage-20261125` must not.
const MAX_NUMBER: u32 = 100_000;

record! {
    /// Facts about the names of servers.
    #[derive(Default)]
    pub struct ServerNames {
        /// Highest number in a name of a management service.
        pub management: u32,
        /// Highest number in a name of a metadata service.
        pub metadata: u32,
        /// Highest number in a name of a storage service.
        pub storage: u32,
        /// The host name of each server that has reported it.
        pub hosts: Vec<(NodeId, String)>,
    }
}

/// Returns the generated name of a server.
pub(super) fn generated(kind: NodeKind, number: u32) -> String {
    format!("{}-{number}", super::kind_word(kind))
}

impl ServerNames {
    /// Returns the highest number of a kind.
    pub(super) fn newest(&self, kind: NodeKind) -> u32 {
        match kind {
            NodeKind::Management => self.management,
            NodeKind::Metadata => self.metadata,
            NodeKind::Storage => self.storage,
            NodeKind::Client => 0,
        }
    }

    /// Sets the host of a server.
    pub(super) fn set_host(&mut self, node: NodeId, host: &str) {
        insert_sorted(&mut self.hosts, (node, host.to_owned()), |(id, _)| *id);
    }

    /// Takes the numbers of new names, and forgets the hosts of servers that were removed.
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
        assert_eq!(followed, *self, "numbers and hosts follow the map");
        assert!(self.hosts.is_sorted_by(|(one, _), (next, _)| one < next), "hosts are in order");
    }
}

#[cfg(test)]
mod tests {
    use crate::state::tests::{cluster, server};
    use crate::{ClusterState, Command};
    use skep_types::{NodeId, TargetKind};

    fn name(state: &ClusterState, node: NodeId) -> String {
        state.map().node(node).unwrap().name.clone()
    }

    #[test]
    fn freed_name_of_a_server_is_never_used_again() {
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
        // A date in a chosen name moves no number.
        let name_of_a_day = Command::RenameServer { node: third, name: "storage-20261125".into() };
        state.apply(&name_of_a_day).unwrap();
        let fourth = join(&mut state, 4);
        assert_eq!(name(&state, fourth), "storage-4");
        let metadata = state.apply(&server(TargetKind::Metadata, 5, &[])).unwrap().node;
        assert_eq!(name(&state, metadata), "metadata-1", "each kind has its own numbers");
    }

    #[test]
    fn host_of_a_server_is_kept_until_it_is_removed() {
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

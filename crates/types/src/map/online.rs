//! Entries of nodes and targets that are online, with a default for each field that most callers do
//! not need. Tests, simulations and examples build their maps from these entries; management builds
//! its entries from registrations.

use super::{Node, Reachability, Target};
use crate::{NodeId, NodeKind, TargetId, TargetKind};

impl Node {
    /// Creates the entry of a node that is online. Such a node has no address, no failure domain
    /// and no version.
    pub fn online(id: NodeId, kind: NodeKind, name: impl Into<String>) -> Self {
        Self {
            id,
            kind,
            name: name.into(),
            addresses: Vec::new(),
            domain: String::new(),
            reachability: Reachability::Online,
            version: String::new(),
        }
    }

    /// Returns the entry with `address` as its only address, as `host:port`.
    #[must_use]
    pub fn at(self, address: impl Into<String>) -> Self {
        Self { addresses: vec![address.into()], ..self }
    }
}

impl Target {
    /// Creates the entry of a target that is online and has no capacity. Its path is empty.
    pub fn online(id: TargetId, kind: TargetKind, node: NodeId) -> Self {
        Self { reachability: Reachability::Online, ..Self::new(id, kind, node, "") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Capacity, Consistency};

    #[test]
    fn online_target_equals_a_new_target_except_its_reachability() {
        let target = Target::online(TargetId::new(7), TargetKind::Storage, NodeId::new(2));
        let registered = Target::new(target.id, target.kind, target.node, "");
        assert_eq!(Target { reachability: Reachability::Offline, ..target.clone() }, registered);
        assert_eq!((target.consistency, target.capacity), (Consistency::Good, Capacity::default()));
        let node = Node::online(NodeId::new(2), NodeKind::Storage, "storage-2").at("10.0.0.1:7420");
        assert_eq!(node.reachability, Reachability::Online);
        assert_eq!(node.addresses, ["10.0.0.1:7420"]);
    }
}

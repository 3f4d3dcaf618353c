//! Registration and removal of clients, and the details of clients that only management stores.
//!
//! The module `servers` owns the registration of servers.

use super::{Durable, check_text, insert_sorted, limit};
use crate::command::{ClientRegistration, Outcome};
use crate::limits::MAX_CLIENTS;
use skep_types::codec::record;
use skep_types::map::Reachability;
use skep_types::{Error, ErrorCode, Node, NodeId, NodeKind, Result, Timestamp};

record! {
    /// Details of a client that only management stores. The cluster map, which all nodes receive,
    /// contains only the client's node entry.
    pub struct ClientDetails {
        /// The node id of the client.
        pub node: NodeId,
        /// Name of the client's host.
        pub host: String,
        /// Mount point on the client's host.
        pub mount_point: String,
        /// Process id on the client's host.
        pub pid: u32,
        /// Time of the registration, by management's clock.
        pub registered: Timestamp,
    }
}

impl Durable {
    pub(super) fn register_client(&mut self, registration: &ClientRegistration) -> Result<Outcome> {
        let ClientRegistration { host, mount_point, version, pid, registered } = registration;
        let name = match mount_point.is_empty() {
            true => host.clone(),
            false => format!("{host}:{mount_point}"),
        };
        check_text("the name", &name)?;
        check_text("the version", version)?;
        let clients = self.map.nodes.iter().filter(|node| node.kind == NodeKind::Client);
        if clients.clone().count() >= MAX_CLIENTS {
            return Err(limit(format!(
                "cannot add a client: the cluster has {MAX_CLIENTS} clients, which is the limit"
            )));
        }
        let taken = clients.clone().any(|node| node.name == name);
        let id = self.take_node_id();
        let name = match taken {
            true => format!("{name}#{}", id.raw()),
            false => name,
        };
        let node = Node {
            id,
            kind: NodeKind::Client,
            name,
            addresses: Vec::new(),
            domain: String::new(),
            reachability: Reachability::Offline,
            version: version.clone(),
        };
        insert_sorted(&mut self.map.nodes, node, |node| node.id);
        let details = ClientDetails {
            node: id,
            host: host.clone(),
            mount_point: mount_point.clone(),
            pid: *pid,
            registered: *registered,
        };
        insert_sorted(&mut self.clients, details, |client| client.node);
        Ok(Outcome { node: id, ..Outcome::default() })
    }

    pub(super) fn remove_client(&mut self, id: NodeId) -> Result<Outcome> {
        match self.map.node(id) {
            Some(node) if node.kind != NodeKind::Client => Err(Error::new(
                ErrorCode::NotPermitted,
                format!("cannot remove node {id} ({}): the node is a server", node.name),
            )),
            _ => {
                self.map.nodes.retain(|node| node.id != id);
                self.clients.retain(|client| client.node != id);
                Ok(Outcome { node: id, ..Outcome::default() })
            }
        }
    }
}

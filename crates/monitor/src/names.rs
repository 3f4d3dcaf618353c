//! The names of the objects whose ids are in the history.

use crate::frame::Dimension;
use skep_rpc::origin::job_text;
use skep_types::{ClusterMap, NodeKind};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of clients whose names are stored although the clients have left the cluster.
const MAX_FORMER: usize = 4096;

/// Reads the names of user or group ids from the file with the path `file`, such as `/etc/passwd`.
/// Returns no names if the file cannot be read. Ids from other sources, such as LDAP, have no name.
/// Control characters are replaced, so that a name cannot move the cursor of a terminal.
pub fn names_in(file: &str) -> HashMap<String, String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let (name, id) = (fields.next()?, fields.nth(1)?);
            Some((id.to_owned(), printable(name)))
        })
        .collect()
}

/// Returns a name with all control characters replaced.
pub fn printable(name: &str) -> String {
    name.replace(char::is_control, "?")
}

/// The names that a monitor has found in cluster maps and in the files of its host.
#[derive(Debug)]
pub(crate) struct Names {
    users: HashMap<String, String>,
    groups: HashMap<String, String>,
    /// The names of nodes, by node id. They include clients that have left, because the history
    /// contains their ids.
    nodes: BTreeMap<u32, String>,
}

impl Names {
    pub(crate) fn read() -> Self {
        let (users, groups) = (names_in("/etc/passwd"), names_in("/etc/group"));
        Self { users, groups, nodes: BTreeMap::new() }
    }

    /// Adds the names in a cluster map.
    pub(crate) fn learn(&mut self, map: &ClusterMap) {
        for node in &map.nodes {
            self.nodes.insert(node.id.raw(), printable(&node.name));
        }
        let is_member = |id: u32| map.nodes.iter().any(|node| node.id.raw() == id);
        // Node ids are assigned in ascending order, so the oldest nodes have the lowest ids.
        while self.nodes.len() > map.nodes.len() + MAX_FORMER {
            let Some(oldest) = self.nodes.keys().copied().find(|id| !is_member(*id)) else { break };
            self.nodes.remove(&oldest);
        }
    }

    /// Returns the name of an object. The text is empty if the object has no name.
    pub(crate) fn name(&self, dimension: Dimension, id: &str, map: Option<&ClusterMap>) -> String {
        let known = match dimension {
            Dimension::Node | Dimension::Client => {
                id.parse().ok().and_then(|id: u32| self.nodes.get(&id))
            }
            Dimension::Target | Dimension::LogSync => {
                let target = map.and_then(|map| {
                    map.targets.iter().find(|target| target.id.raw().to_string() == id)
                });
                target.and_then(|target| self.nodes.get(&target.node.raw()))
            }
            Dimension::User => self.users.get(id),
            Dimension::Group => self.groups.get(id),
            Dimension::Job => return id.parse().map_or_else(|_| id.to_owned(), job_text),
            Dimension::Operation => None,
        };
        known.cloned().unwrap_or_default()
    }
}

/// Returns the ids and names of the clients of a map.
pub(crate) fn clients(map: &ClusterMap) -> BTreeMap<u32, String> {
    let clients = map.nodes.iter().filter(|node| node.kind == NodeKind::Client);
    clients.map(|node| (node.id.raw(), printable(&node.name))).collect()
}

//! The names of the objects whose ids are in the history.

use crate::frame::Dimension;
use skep_rpc::origin::job_text;
use skep_types::{ClusterMap, NodeKind};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of clients whose names are stored although the clients have left the cluster.
const MAX_FORMER: usize = 4096;

/// Maximum number of users and groups whose names the monitor looks up at the same time.
const MAX_UNNAMED: usize = 4096;

/// Reads the names of user or group ids from the file with the path `file`, such as `/etc/passwd`.
/// Returns no names if the file cannot be read. Ids from other sources, such as LDAP, have no name.
pub fn names_in(file: &str) -> HashMap<String, String> {
    names_of_lines(&std::fs::read_to_string(file).unwrap_or_default())
}

/// Returns the names of user or group ids, by id. `text` consists of lines in the form of
/// `/etc/passwd` or `/etc/group`, which `getent` prints too. Control characters are replaced, so
/// that a name cannot move the cursor of a terminal.
pub fn names_of_lines(text: &str) -> HashMap<String, String> {
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
    /// The names of nodes, by node id, including the names of clients that have left, because the
    /// history contains their ids.
    nodes: BTreeMap<u32, String>,
    /// The users and groups without a known name that a caller has asked for.
    /// `crate::name_service` searches for their names.
    unnamed: RefCell<BTreeSet<(Dimension, String)>>,
}

impl Names {
    pub(crate) fn read() -> Self {
        let (users, groups) = (names_in("/etc/passwd"), names_in("/etc/group"));
        Self { users, groups, nodes: BTreeMap::new(), unnamed: RefCell::default() }
    }

    /// Adds the names of users or groups, by id. `dimension` is `User` or `Group`.
    pub(crate) fn add(&mut self, dimension: Dimension, names: HashMap<String, String>) {
        match dimension {
            Dimension::Group => self.groups.extend(names),
            _ => self.users.extend(names),
        }
    }

    /// Returns the ids of the users or groups without a known name that callers have asked for
    /// since the last call of this function.
    pub(crate) fn take_unnamed(&self, dimension: Dimension) -> Vec<String> {
        let mut unnamed = self.unnamed.borrow_mut();
        let all = std::mem::take(&mut *unnamed);
        let (taken, left): (BTreeSet<_>, BTreeSet<_>) =
            all.into_iter().partition(|(it, _)| *it == dimension);
        *unnamed = left;
        taken.into_iter().map(|(_, id)| id).collect()
    }

    /// Records that a caller has asked for the name of an id that has no known name.
    fn note_unnamed(&self, dimension: Dimension, id: &str) {
        let is_id = !id.is_empty() && id.len() <= 10 && id.bytes().all(|it| it.is_ascii_digit());
        let mut unnamed = self.unnamed.borrow_mut();
        if is_id && unnamed.len() < MAX_UNNAMED {
            unnamed.insert((dimension, id.to_owned()));
        }
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
        if known.is_none() && matches!(dimension, Dimension::User | Dimension::Group) {
            self.note_unnamed(dimension, id);
        }
        known.cloned().unwrap_or_default()
    }
}

/// Returns the ids and names of the clients of a map.
pub(crate) fn clients(map: &ClusterMap) -> BTreeMap<u32, String> {
    let clients = map.nodes.iter().filter(|node| node.kind == NodeKind::Client);
    clients.map(|node| (node.id.raw(), printable(&node.name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names {
            users: names_of_lines("root:x:0:0::/root:/bin/sh\nshort:x\n"),
            groups: HashMap::new(),
            nodes: BTreeMap::new(),
            unnamed: RefCell::default(),
        }
    }

    #[test]
    fn ids_without_a_name_are_listed_once_and_get_names_later() {
        let mut names = names();
        let name = |names: &Names, id: &str| names.name(Dimension::User, id, None);
        assert_eq!((name(&names, "0").as_str(), name(&names, "1000").as_str()), ("root", ""));
        for not_an_id in ["other", "", "-x", "99999999999"] {
            assert_eq!(name(&names, not_an_id), "");
        }
        names.name(Dimension::Group, "100", None);
        assert_eq!(names.take_unnamed(Dimension::User), ["1000"]);
        assert!(names.take_unnamed(Dimension::User).is_empty());
        assert_eq!(names.take_unnamed(Dimension::Group), ["100"]);
        let line = "ada\u{1b}[2J:*:1000:1000:Ada:/home/ada:/bin/sh";
        names.add(Dimension::User, names_of_lines(line));
        assert_eq!(name(&names, "1000"), "ada?[2J");
        assert!(names.take_unnamed(Dimension::User).is_empty());
    }
}

//! The state of the running cluster: its nodes, targets and metadata groups. Management
//! prints this state, and the script `scripts/cluster.sh` collects the printed lines on a host of
//! management.
//!
//! The module owns the script and the parser of its output. The script changes nothing.

use crate::hosts::{Host, Place, Role};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use skep_types::{Error, ErrorCode, Result};

const SCRIPT: &str = include_str!("scripts/cluster.sh");

/// A management node that the cluster has registered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ManagementNode {
    /// Id of the node.
    pub id: u32,
    /// Name of the node. If `skep deploy` has created it, this is the name of its host.
    pub name: String,
    /// `leader`, `follower`, `learner` (it does not vote yet), or `none` (it is no member).
    pub role: String,
    /// `Online`, `Probably-Offline` or `Offline`.
    pub reachability: String,
    /// Number of changes in the log that the node has not stored yet. `None` means that the node
    /// has not answered the leader.
    pub lag: Option<u64>,
}

impl ManagementNode {
    /// Whether the node votes.
    pub fn is_voter(&self) -> bool {
        matches!(self.role.as_str(), "leader" | "follower")
    }
}

/// A member of a metadata group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// Id of the target.
    pub target: u32,
    /// Id of the target's metadata service.
    pub node: u32,
    /// Host and directory of the target.
    pub place: Place,
    /// The state of the target in its group, such as `Serving`.
    pub state: String,
}

/// A group of metadata targets that hold the same part of the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataGroup {
    /// Id of the group.
    pub id: u32,
    /// The members, in the order of the cluster map.
    pub members: Vec<GroupMember>,
}

/// A metadata or storage service that the cluster has registered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Server {
    /// Id of the node.
    pub id: u32,
    /// Name of the node. If `skep deploy` has created it, this is the name of its host.
    pub name: String,
    /// `metadata` or `storage`.
    pub kind: String,
    /// Addresses of the service, each with its port.
    #[serde(default)]
    pub addresses: Vec<String>,
}

impl Server {
    /// Whether the service has the name of a host and serves a role.
    pub fn is_named(&self, host: &str, role: Role) -> bool {
        self.name == host && self.kind == role.word()
    }

    /// Whether the service has the name or an address of a host. An administrator may have given
    /// the service another name with `skep node rename`.
    fn is_of(&self, host: &Host) -> bool {
        let has_address = |it: &String| {
            let address = it.rsplit_once(':').map_or(it.as_str(), |(address, _)| address);
            let address = address.trim_start_matches('[').trim_end_matches(']');
            host.network.iter().any(|own| own == address)
        };
        self.name == host.name || self.addresses.iter().any(has_address)
    }
}

/// A target that the cluster has registered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ClusterTarget {
    /// Id of the target.
    pub id: u32,
    /// `metadata` or `storage`.
    pub kind: String,
    /// Id of the target's service.
    pub node: u32,
    /// Directory of the target.
    pub path: String,
}

/// The state of the cluster, as management has printed it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// All registered management nodes.
    pub nodes: Vec<ManagementNode>,
    /// Whether the namespace is divided over the metadata groups.
    pub is_formatted: bool,
    /// The setting `metadata-copies`.
    pub copies: u32,
    /// The metadata groups, in the order of their ids.
    pub groups: Vec<MetadataGroup>,
    /// All registered metadata and storage services.
    pub servers: Vec<Server>,
    /// All registered targets.
    pub targets: Vec<ClusterTarget>,
}

/// The output of `skep management status`.
#[derive(Deserialize)]
struct Status {
    /// Whether the cluster is formatted. Older versions of `skep` do not print this field.
    #[serde(default)]
    formatted: bool,
    nodes: Vec<ManagementNode>,
}

/// One line of the output of `skep group list`.
#[derive(Deserialize)]
struct GroupLine {
    id: u32,
    kind: String,
    members: Vec<MemberLine>,
}

#[derive(Deserialize)]
struct MemberLine {
    target: u32,
    node: u32,
    node_name: String,
    state: String,
}

/// The output of `skep config get`.
#[derive(Deserialize)]
struct SettingLine {
    value: u32,
}

/// Returns the script that prints the state of the cluster. The script runs on a host of
/// management.
pub fn script() -> String {
    SCRIPT.to_owned()
}

impl Cluster {
    /// Parses the output of the script.
    ///
    /// # Errors
    /// Returns `Protocol` if a line does not have the expected form, or if a line is missing.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut status, mut copies) = (None, None);
        let (mut groups, mut servers, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (noun, json) in text.lines().filter_map(|line| line.split_once('\t')) {
            match noun {
                "management" => status = Some(parsed::<Status>(json)?),
                "copies" => copies = Some(parsed::<SettingLine>(json)?.value),
                "group" => groups.push(parsed::<GroupLine>(json)?),
                "node" => servers.push(parsed::<Server>(json)?),
                "target" => targets.push(parsed::<ClusterTarget>(json)?),
                _ => {}
            }
        }
        let (Some(status), Some(copies)) = (status, copies) else {
            return Err(Error::new(ErrorCode::Protocol, "the output of management is incomplete"));
        };
        let member = |it: MemberLine| {
            let target = targets.iter().find(|target| target.id == it.target);
            let path = target.map(|target| target.path.clone()).unwrap_or_default();
            let place = Place { host: it.node_name, path };
            GroupMember { target: it.target, node: it.node, place, state: it.state }
        };
        servers.retain(|it| matches!(it.kind.as_str(), "metadata" | "storage"));
        groups.retain(|group| group.kind == "metadata");
        groups.sort_by_key(|group| group.id);
        let group = |it: GroupLine| MetadataGroup {
            id: it.id,
            members: it.members.into_iter().map(member).collect(),
        };
        let groups = groups.into_iter().map(group).collect();
        Ok(Self {
            nodes: status.nodes,
            is_formatted: status.formatted,
            copies,
            groups,
            servers,
            targets,
        })
    }

    /// Returns the targets of a node.
    pub fn targets_of(&self, node: u32) -> impl Iterator<Item = &ClusterTarget> {
        self.targets.iter().filter(move |it| it.node == node)
    }

    /// Returns the targets of all services that have the name or an address of a host.
    pub fn targets_on(&self, host: &Host) -> Vec<&ClusterTarget> {
        let servers = self.servers.iter().filter(|it| it.is_of(host));
        servers.flat_map(|it| self.targets_of(it.id)).collect()
    }

    /// Returns the node that has the name `host`. `None` means that there is no such node, or that
    /// it does not vote.
    pub fn voter(&self, host: &str) -> Option<&ManagementNode> {
        self.nodes.iter().find(|node| node.name == host && node.is_voter())
    }

    /// Returns the name of the leader.
    pub fn leader(&self) -> Option<&str> {
        let leader = self.nodes.iter().find(|node| node.role == "leader");
        leader.map(|node| node.name.as_str())
    }
}

fn parsed<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| {
        let what = format!("cannot read the output of management: {error}");
        Error::new(ErrorCode::Protocol, what)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a cluster in which the hosts `voters` run management, and the first of them leads.
    pub(crate) fn led_by(voters: &[&str]) -> Cluster {
        let node = |(id, name): (u32, &&str)| ManagementNode {
            id,
            name: (*name).to_owned(),
            role: if id == 1 { "leader" } else { "follower" }.into(),
            reachability: "Online".into(),
            lag: Some(0),
        };
        let nodes = (1..).zip(voters).map(node).collect();
        Cluster { nodes, is_formatted: true, copies: 1, ..Cluster::default() }
    }

    /// Adds a storage service with its targets. The service has the name and the address of a
    /// host, and the id 6.
    pub(crate) fn add_storage(cluster: &mut Cluster, name: &str, address: &str, targets: &[u32]) {
        cluster.servers.push(Server {
            id: 6,
            name: name.into(),
            kind: "storage".into(),
            addresses: vec![format!("{address}:7420")],
        });
        let target = |id: &u32| ClusterTarget {
            id: *id,
            kind: "storage".into(),
            node: 6,
            path: format!("/disk{id}"),
        };
        cluster.targets.extend(targets.iter().map(target));
    }

    /// Returns a metadata group. `members` has the host and the directory of each target. The first
    /// target has the id 2, and its service the id 12.
    pub(crate) fn group(id: u32, members: &[(&str, &str)]) -> MetadataGroup {
        let member = |(target, (host, path)): (u32, &(&str, &str))| GroupMember {
            target,
            node: target + 10,
            place: Place { host: (*host).into(), path: (*path).into() },
            state: "Serving".into(),
        };
        MetadataGroup { id, members: (2..).zip(members).map(member).collect() }
    }

    const OUTPUT: &str = concat!(
        "management\t{\"formatted\":true,\"leader\":1,\"nodes\":[",
        "{\"id\":1,\"lag\":0,\"name\":\"m1\",\"reachability\":\"Online\",\"role\":\"leader\"},",
        "{\"id\":9,\"lag\":null,\"name\":\"m2\",\"reachability\":\"Offline\",",
        "\"role\":\"none\"}]}\n",
        "copies\t{\"name\":\"metadata-copies\",\"value\":2}\n",
        "group\t{\"id\":5,\"kind\":\"storage\",\"members\":[]}\n",
        "group\t{\"id\":4,\"kind\":\"metadata\",\"members\":[",
        "{\"node\":12,\"node_name\":\"a1\",\"state\":\"Serving\",\"target\":2}]}\n",
        "node\t{\"addresses\":[\"10.0.0.1:7410\"],\"id\":12,\"kind\":\"metadata\",",
        "\"name\":\"a1\",\"targets\":[2]}\n",
        "node\t{\"addresses\":[],\"id\":13,\"kind\":\"client\",\"name\":\"c1:/mnt/skep\"}\n",
        "target\t{\"group\":4,\"id\":2,\"kind\":\"metadata\",\"node\":12,",
        "\"path\":\"/nvme0/skep\"}\n",
    );

    #[test]
    fn state_of_the_cluster_is_parsed_from_lines() {
        let cluster = Cluster::parse(OUTPUT).unwrap();
        assert_eq!((cluster.is_formatted, cluster.copies), (true, 2));
        assert_eq!(cluster.leader(), Some("m1"));
        assert_eq!(cluster.voter("m1").map(|node| node.id), Some(1));
        assert_eq!(cluster.voter("m2"), None);
        assert_eq!(cluster.groups, [group(4, &[("a1", "/nvme0/skep")])]);
        assert_eq!(cluster.servers.len(), 1, "clients are left out");
        assert!(cluster.servers[0].is_named("a1", Role::Metadata));
        assert_eq!(cluster.targets_of(12).map(|it| it.id).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn renamed_service_is_found_by_the_address_of_its_host() {
        let deployment = crate::hosts::Deployment::parse(crate::hosts::tests::GOOD).unwrap();
        let mut cluster = led_by(&["m1"]);
        add_storage(&mut cluster, "rack1-a", "10.1.0.2", &[4, 5]);
        let on = |name: &str| cluster.targets_on(deployment.host(name).unwrap()).len();
        assert_eq!((on("s1"), on("m1")), (2, 0));
    }

    #[test]
    fn incomplete_output_of_management_is_refused() {
        let without = OUTPUT.replace("copies\t", "noise\t");
        assert!(Cluster::parse(&without).is_err());
        assert!(Cluster::parse(&OUTPUT.replace("\"id\":5", "\"id\":x")).is_err());
    }
}

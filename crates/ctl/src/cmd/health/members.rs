//! The management nodes of a cluster without a leader, for `skep health check`. Asks each node for
//! its role, since only the leader executes other requests.

use super::services::NodeReport;
use crate::access::Access;
use skep_cluster::state::kind_word;
use skep_rpc::{CallOptions, Channel, Connection};
use skep_types::{Error, ErrorCode, NodeKind, Result, TargetId};
use skep_wire::consensus::{ListMembers, leader_addresses};
use std::time::Duration;

/// Time limit for the connection to a management node, and again for the reply of the node.
const PATIENCE: Duration = Duration::from_secs(3);

/// The role of a management node, according to the node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Role {
    Leader,
    /// The node follows the leader at these addresses. The list is empty if the node knows no
    /// leader.
    Follower(Vec<String>),
}

/// A management node, and its reply.
#[derive(Debug)]
pub(super) struct Member {
    /// The name of the node with its address, or only the address.
    pub(super) name: String,
    /// The role, or the reason why the node has not replied.
    pub(super) role: Result<Role>,
}

impl Member {
    /// Returns the reply of the node as a clause for messages.
    fn clause(&self) -> String {
        let name = &self.name;
        match &self.role {
            Ok(Role::Leader) => format!("{name} leads"),
            Ok(Role::Follower(leader)) if leader.is_empty() => {
                format!("{name} answers, and has no leader")
            }
            Ok(Role::Follower(leader)) => {
                format!("{name} answers, and follows the node at {}", leader.join(", "))
            }
            Err(error) => format!("{name} does not answer this host ({})", error.context()),
        }
    }
}

/// Returns the replies of management nodes as a list of clauses.
pub(super) fn clauses(members: &[Member]) -> String {
    members.iter().map(Member::clause).collect::<Vec<_>>().join("; ")
}

/// Asks the management nodes at `addresses` for their roles, all at the same time.
pub(super) async fn ask_addresses(access: &Access, addresses: &[String]) -> Vec<Member> {
    let asked = addresses.iter().map(|address| (address.clone(), address.clone()));
    ask_all(access, asked.collect()).await
}

/// Asks the management nodes that accept connections of this host for their roles.
pub(super) async fn ask_reachable(access: &Access, nodes: &[NodeReport]) -> Vec<Member> {
    let management = nodes.iter().filter(|it| it.kind == kind_word(NodeKind::Management));
    let reachable = management.filter_map(|it| {
        let address = it.address.clone()?;
        Some((it.name.clone(), address))
    });
    ask_all(access, reachable.collect()).await
}

/// Asks the management nodes with these names and addresses for their roles.
async fn ask_all(access: &Access, nodes: Vec<(String, String)>) -> Vec<Member> {
    let asking = nodes.into_iter().map(|(name, address)| {
        let access = access.clone();
        skep_env::spawn(async move { Member { name, role: ask(&access, &address).await } })
    });
    let asking: Vec<_> = asking.collect();
    let mut members = Vec::new();
    for member in asking {
        members.push(member.await);
    }
    members
}

async fn ask(access: &Access, address: &str) -> Result<Role> {
    let identity = access.identity();
    let attempt = Connection::connect(address, &identity, TargetId::default(), Channel::NONE);
    let late = || {
        let what = format!("{address}: no reply within {PATIENCE:?}");
        Error::new(ErrorCode::Disconnected, what)
    };
    let connection = skep_env::timeout(PATIENCE, attempt).await.ok_or_else(late).flatten()?;
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    let reply = connection.call(&ListMembers {}, &options).await;
    connection.close();
    role(reply.map(drop))
}

/// Returns the role of a node from its reply to a request that only the leader executes.
fn role(reply: Result<()>) -> Result<Role> {
    match reply {
        Ok(()) => Ok(Role::Leader),
        Err(error) if error.code() == ErrorCode::NotLeader => {
            Ok(Role::Follower(leader_addresses(error.context())))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_of_each_management_node_follows_from_its_reply() {
        let member =
            |name: &str, reply: Result<()>| Member { name: name.into(), role: role(reply) };
        let not_leader = |text: &str| Err(Error::new(ErrorCode::NotLeader, text));
        let silent = Err(Error::new(ErrorCode::Disconnected, "no route"));
        let members = [
            member("a:7400", not_leader("")),
            member("b:7400", not_leader("c:7400")),
            member("c:7400", silent),
            member("d:7400", Ok(())),
        ];
        assert_eq!(
            clauses(&members),
            "a:7400 answers, and has no leader; b:7400 answers, and follows the node at c:7400; \
             c:7400 does not answer this host (no route); d:7400 leads"
        );
    }
}

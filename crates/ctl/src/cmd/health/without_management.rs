//! `skep health check` while management does not answer: checks the services by the newest cluster
//! map that this host has, and asks the management nodes for their roles.
//!
//! The module [`super::last_map`] finds the map, [`super::members`] asks the management nodes, and
//! [`super::services`] connects to services.

use super::last_map::{self, LastMap};
use super::members::{self, Member};
use super::problem::{Problem, notes};
use super::services::{self, NodeReport, visit_all};
use crate::access::Access;
use skep_cluster::state::kind_word;
use skep_rpc::management_addresses;
use skep_types::{ClusterMap, Error, ErrorCode, NodeKind, Result};
use std::collections::BTreeSet;

/// Key of the problem that this host reaches no server.
const CUT_OFF: &str = "cut-off";

/// The result of a check while management does not answer.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Management answers at an address that the command did not have, with this cluster map.
    Answers(Box<Access>, Box<ClusterMap>),
    /// Management does not answer.
    Silent(Silent),
}

/// The services and problems that a check without management has found.
#[derive(Debug, Default)]
pub(super) struct Silent {
    pub(super) nodes: Vec<NodeReport>,
    pub(super) problems: Vec<Problem>,
    pub(super) notes: Vec<Problem>,
    /// The keys of the problems whose end this check can detect.
    pub(super) judged: BTreeSet<String>,
}

/// Whether management did not answer, or has no leader. I/O continues meanwhile.
pub(super) fn is_silence(error: &Error) -> bool {
    let silence = [ErrorCode::Disconnected, ErrorCode::TimedOut, ErrorCode::NotLeader];
    silence.contains(&error.code())
}

/// Checks the services while management does not answer, by the newest cluster map that this host
/// has.
///
/// # Errors
/// The errors of [`without_map`], if this host has no map.
pub(super) async fn check(access: &Access, error: Error) -> Result<Outcome> {
    let Some(LastMap { map, note }) = last_map::find(access) else {
        return without_map(access, error).await.map(Outcome::Silent);
    };
    // The map may contain addresses of management nodes that this command did not have.
    let known = access.contacts().addresses;
    let wider = access.with_learned(management_addresses(&map));
    if wider.contacts().addresses.iter().any(|it| !known.contains(it))
        && let Ok(map) = wider.map().await
    {
        return Ok(Outcome::Answers(Box::new(wider), Box::new(map)));
    }
    let nodes = visit_all(access, &map).await;
    let members = members::ask_reachable(access, &nodes).await;
    let is_other = |problem: &Problem| !is_of_management(problem, &nodes);
    let mut problems =
        vec![without_leader(&nodes, &members).unwrap_or_else(|| management_unreachable(&error))];
    problems.extend(services::problems(&nodes, &map).problems.into_iter().filter(is_other));
    if services::is_cut_off(&nodes) {
        for problem in &mut problems {
            problem.remedy = "see the first problem".into();
        }
        problems.insert(0, cut_off());
    }
    let notes = note.into_iter().chain(notes(&map)).collect();
    let judged = judged(&nodes);
    Ok(Outcome::Silent(Silent { nodes, problems, notes, judged }))
}

/// Returns the keys of the problems whose end a check without management can detect. The check
/// reports all management nodes in one problem, so the keys of single management nodes are not
/// among them.
fn judged(nodes: &[NodeReport]) -> BTreeSet<String> {
    let others = nodes.iter().filter(|it| it.kind != kind_word(NodeKind::Management));
    others.map(|it| services::unreachable_key(it.id)).chain([CUT_OFF.to_owned()]).collect()
}

/// Reports which management nodes answer, and their roles, while management does not answer and
/// this host has no cluster map.
///
/// # Errors
/// The error `error`, with a hint, if no management node answers, so that the command has checked
/// nothing.
async fn without_map(access: &Access, error: Error) -> Result<Silent> {
    let members = members::ask_addresses(access, &access.contacts().addresses).await;
    if members.iter().all(|member| member.role.is_err()) {
        let what = format!(
            "{}; I/O on files continues meanwhile. This host has no cluster map, so it knows no \
             other service: repeat the command on a host that mounts the cluster or runs a service \
             of it",
            error.context()
        );
        return Err(Error::new(error.code(), what));
    }
    let mut problem = no_leader(members::clauses(&members));
    problem.remedy += ". This host has no cluster map, so this command has checked no metadata and \
                       storage service: repeat it on a host that mounts the cluster or runs a \
                       service of it";
    Ok(Silent { problems: vec![problem], ..Silent::default() })
}

fn is_of_management(problem: &Problem, nodes: &[NodeReport]) -> bool {
    let management = nodes.iter().filter(|it| it.kind == kind_word(NodeKind::Management));
    management.into_iter().any(|it| problem.key == services::unreachable_key(it.id))
}

/// Returns the problem that management does not answer.
pub(super) fn management_unreachable(error: &Error) -> Problem {
    Problem {
        key: "management".into(),
        rule: "management-unreachable",
        what: format!("management does not answer: {}", error.context()),
        remedy: "I/O on files continues, but new mounts and changes of the cluster wait, and this \
                 command cannot show the states of targets. The log of `skep management` on its \
                 host says why it has ended"
            .into(),
        ..Problem::default()
    }
}

/// Returns the problem that this host reaches no server of the cluster.
fn cut_off() -> Problem {
    Problem {
        key: CUT_OFF.into(),
        rule: "management-unreachable",
        what: "this host reaches no server of the cluster".into(),
        remedy: "check the network and the firewall of this host first, and repeat the command on \
                 another host. If no host reaches a server, check the network between them and \
                 the servers, and then the logs of the services"
            .into(),
        ..Problem::default()
    }
}

/// Returns the problem that management nodes answer, but none of them leads. `members` are the
/// replies of the nodes that answer. `None` means that no management node answers.
fn without_leader(nodes: &[NodeReport], members: &[Member]) -> Option<Problem> {
    let management = || nodes.iter().filter(|it| it.kind == kind_word(NodeKind::Management));
    let (count, reachable) = (management().count(), management().filter(|it| it.reachable).count());
    let silent: Vec<_> =
        management().filter(|it| !it.reachable).map(|it| it.name.as_str()).collect();
    let silent = match &silent[..] {
        [] => "all answer this host".to_owned(),
        silent => format!("{} does not answer this host", silent.join(", ")),
    };
    let roles = match members {
        [] => String::new(),
        members => format!("; {}", members::clauses(members)),
    };
    (reachable > 0).then(|| no_leader(format!("of its {count} nodes, {silent}{roles}")))
}

/// Returns the problem that management has no leader. `facts` are clauses about its nodes.
fn no_leader(facts: String) -> Problem {
    Problem {
        key: "management".into(),
        rule: "management-unreachable",
        what: format!("management has no leader: {facts}"),
        remedy:
            "I/O on files continues, but new mounts and changes of the cluster wait until more \
                 than half of the management nodes run and reach each other. Read the log of `skep \
                 management` on their hosts, and start it where it does not run"
                .into(),
        ..Problem::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::health::members::Role;

    #[test]
    fn missing_leader_is_not_reported_as_silent_management() {
        let node = |name: &str, is_reachable| NodeReport::of_management(name, is_reachable);
        assert!(without_leader(&[node("management-1", false)], &[]).is_none());
        let both = [node("management-1", false), node("management-2", true)];
        let follower = Role::Follower(Vec::new());
        let member = Member { name: "management-2".into(), role: Ok(follower) };
        let problem = without_leader(&both, &[member]).expect("a problem");
        assert_eq!(
            problem.what,
            "management has no leader: of its 2 nodes, management-1 does not answer this host; \
             management-2 answers, and knows no leader"
        );
    }

    #[test]
    fn watch_does_not_end_an_outage_that_it_could_not_check() {
        let nodes = [NodeReport::of_management("management-1", true)];
        assert_eq!(judged(&nodes), BTreeSet::from([CUT_OFF.to_owned()]));
    }
}

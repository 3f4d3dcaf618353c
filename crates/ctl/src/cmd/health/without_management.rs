//! `skep health check` while management does not answer. Checks the services in the newest cluster
//! map of this host, and asks the management nodes for their roles.
//!
//! The module [`super::last_map`] finds the map, [`super::members`] asks the management nodes, and
//! [`super::services`] connects to services.

use super::last_map::{self, LastMap};
use super::members::{self, Member};
use super::problem::{Object, Problem, notes};
use super::services::{self, Isolation, NodeReport, visit_all};
use crate::access::Access;
use skep_cluster::state::kind_word;
use skep_env::host_addresses;
use skep_rpc::management_addresses;
use skep_types::map::Reachability;
use skep_types::{ClusterMap, Error, NodeId, NodeKind, Result};
use std::collections::BTreeSet;
use std::net::IpAddr;

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
    /// The last cluster map of this host, and the error of the request to management. `None` means
    /// that this host has no map.
    pub(super) last: Option<Box<(ClusterMap, Error)>>,
}

impl Silent {
    /// Returns the services that do not answer this host.
    pub(super) fn silent_nodes(&self) -> BTreeSet<NodeId> {
        let silent = self.nodes.iter().filter(|node| node.is_silent());
        silent.map(|node| NodeId::new(node.id)).collect()
    }
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
    let own = host_addresses().unwrap_or_default();
    let is_own = |it: IpAddr| it.is_loopback() || own.iter().any(|own| own.address == it);
    let problems = problems(&nodes, &members, map.clone(), &error, is_own);
    let notes = note.into_iter().chain(notes(&map)).collect();
    let judged = judged(&nodes);
    let last = Some(Box::new((map, error)));
    Ok(Outcome::Silent(Silent { nodes, problems, notes, judged, last }))
}

/// Returns the problems of a check without management. `members` are the replies of the management
/// nodes, `error` is the error of management, and `is_own` decides whether an address belongs to
/// this host.
fn problems(
    nodes: &[NodeReport],
    members: &[Member],
    map: ClusterMap,
    error: &Error,
    is_own: impl Fn(IpAddr) -> bool,
) -> Vec<Problem> {
    let map = observed(map, nodes);
    let management = without_leader(nodes, members);
    let mut problems = vec![management.unwrap_or_else(|| management_unreachable(error, nodes))];
    let others = services::problems(nodes, &map).problems.into_iter();
    problems.extend(others.filter(|problem| !is_of_management(problem, nodes)));
    let Some(isolation) = services::isolation(nodes, &map, &is_own) else { return problems };
    // A failure of the network does not explain why a service on this host does not run.
    let is_explained = |problem: &Problem| match &problem.objects[..] {
        [Object::Node(id)] => map.node(*id).is_none_or(|node| !services::is_own(node, &is_own)),
        _ => true,
    };
    for problem in problems.iter_mut().filter(|problem| is_explained(problem)) {
        problem.remedy = "see the remedy of the first problem in this list".into();
    }
    problems.insert(0, cut_off(isolation));
    problems
}

/// Marks the targets of services that do not answer this host as offline. So the report on each
/// outage takes all outages into account: a group counts as serving only if one of its members
/// answers.
fn observed(mut map: ClusterMap, nodes: &[NodeReport]) -> ClusterMap {
    let is_silent = |id: u32| nodes.iter().any(|node| node.id == id && node.is_silent());
    for target in map.targets.iter_mut().filter(|target| is_silent(target.node.raw())) {
        target.reachability = Reachability::Offline;
    }
    map
}

/// Returns the effect of the outage of management on programs, as a clause. I/O on files does not
/// need management, but needs the metadata and storage services of the files.
fn effect_on_files(nodes: &[NodeReport]) -> &'static str {
    let others = || {
        let others = nodes.iter().filter(|it| it.kind != kind_word(NodeKind::Management));
        others.filter(|it| !it.is_needless)
    };
    match (others().any(NodeReport::is_silent), others().any(|it| !it.is_silent())) {
        (false, false) => "I/O on files does not need management",
        (false, true) => "I/O on files continues",
        (true, true) => "I/O on files continues where the services of the files answer",
        (true, false) => {
            "I/O on files waits, since no metadata and no storage service answers this host either"
        }
    }
}

/// Returns the keys of the problems whose end a check without management can detect. The check
/// reports all management nodes in one problem, so the returned keys do not contain the keys of
/// single management nodes.
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
            "{}; {}. This host has no cluster map, so this command finds no other service: repeat \
             the command on a host that mounts the cluster or runs one of its services",
            error.context(),
            effect_on_files(&[])
        );
        return Err(Error::new(error.code(), what));
    }
    let mut problem = no_leader(&members::clauses(&members), &[]);
    problem.remedy += ". This host has no cluster map, so this command has checked no metadata and \
                       storage service: repeat the command on a host that mounts the cluster or \
                       runs one of its services";
    Ok(Silent { problems: vec![problem], ..Silent::default() })
}

fn is_of_management(problem: &Problem, nodes: &[NodeReport]) -> bool {
    let management = nodes.iter().filter(|it| it.kind == kind_word(NodeKind::Management));
    management.into_iter().any(|it| problem.key == services::unreachable_key(it.id))
}

/// Returns the problem that management does not answer. `nodes` are the services that the command
/// has checked.
pub(super) fn management_unreachable(error: &Error, nodes: &[NodeReport]) -> Problem {
    const WHAT: &str = "management does not answer";
    // The error may begin with the words in `WHAT`, or with the name of the service. Do not repeat
    // these words.
    let context = error.context();
    let what = match context.strip_prefix("management: ") {
        None if context.starts_with(WHAT) => context.to_owned(),
        rest => format!("{WHAT}: {}", rest.unwrap_or(context)),
    };
    Problem {
        key: "management".into(),
        rule: "management-unreachable",
        what,
        remedy: format!(
            "{}. New mounts and changes of the cluster wait, and this command cannot show the \
             states of targets. The log of `skep management` on the management host shows why \
             management has ended",
            effect_on_files(nodes)
        ),
        ..Problem::default()
    }
}

/// Returns the problem that this host reaches no server of another host.
fn cut_off(isolation: Isolation) -> Problem {
    let what = match isolation {
        Isolation::NoServer => "this host reaches no server of the cluster",
        Isolation::OwnServersOnly => {
            "only the servers on this host answer this host, and no server on another host answers"
        }
    };
    Problem {
        key: CUT_OFF.into(),
        rule: "management-unreachable",
        what: what.into(),
        remedy: "check the network and the firewall of this host first, and repeat the command on \
                 another host. If no host reaches a server, check the network between these hosts \
                 and the servers, and then the logs of the services"
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
        [one] => format!("{one} does not answer this host"),
        several => format!("{} do not answer this host", several.join(", ")),
    };
    let roles = match members {
        [] => String::new(),
        members => format!("; {}", members::clauses(members)),
    };
    let facts = || format!("of its {count} nodes, {silent}{roles}");
    (reachable > 0).then(|| no_leader(&facts(), nodes))
}

/// Returns the problem that management has no leader. `facts` are clauses about its nodes. `nodes`
/// are the services that the command has checked.
fn no_leader(facts: &str, nodes: &[NodeReport]) -> Problem {
    Problem {
        key: "management".into(),
        rule: "management-unreachable",
        what: format!("management has no leader: {facts}"),
        remedy: format!(
            "{}. New mounts and changes of the cluster wait until more than half of the management \
             nodes run and reach each other. Read the log of `skep management` on their hosts, and \
             start management where it does not run",
            effect_on_files(nodes)
        ),
        ..Problem::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::health::members::Role;
    use skep_cluster::groups;
    use skep_types::{ClusterId, ErrorCode, GroupId, Node, Target, TargetId, TargetKind};

    /// Returns a map with management on host 1, a metadata group of two members on hosts 1 and 2,
    /// and a storage service on host 3.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        let kinds = [
            (1, NodeKind::Management, 1),
            (2, NodeKind::Metadata, 1),
            (3, NodeKind::Metadata, 2),
            (4, NodeKind::Storage, 3),
        ];
        for (id, kind, host) in kinds {
            map.nodes.push(Node {
                id: NodeId::new(id),
                kind,
                name: format!("node-{id}"),
                addresses: vec![format!("10.0.0.{host}:74{id}0")],
                domain: String::new(),
                reachability: Reachability::Offline,
                version: String::new(),
            });
        }
        let kinds = [TargetKind::Metadata, TargetKind::Metadata, TargetKind::Storage];
        for (node, kind) in (2..).zip(kinds) {
            let target = Target::new(TargetId::new(node), kind, NodeId::new(node), "/d");
            map.targets.push(Target { reachability: Reachability::Online, ..target });
        }
        let (pair, one) = ([2, 3].map(TargetId::new), [TargetId::new(4)]);
        map.groups.push(groups::create(GroupId::new(7), TargetKind::Metadata, &pair).unwrap());
        map.groups.push(groups::create(GroupId::new(8), TargetKind::Storage, &one).unwrap());
        map
    }

    /// Returns the problems as texts and remedies, if connections to the services of `map()` end
    /// with `errors`. An empty error means that the service answers.
    fn of(errors: [&str; 4], own: &str) -> Vec<(String, String)> {
        let map = map();
        let nodes: Vec<_> = map
            .nodes
            .iter()
            .zip(errors)
            .map(|(it, error)| NodeReport::of(&map, it, error))
            .collect();
        let error =
            Error::new(ErrorCode::Disconnected, "management does not answer at a, b: a: no");
        let own: IpAddr = own.parse().unwrap();
        let found = problems(&nodes, &[], map, &error, |it| it == own);
        found.into_iter().map(|it| (it.what, it.remedy)).collect()
    }

    const REFUSED: &str = "Connection refused (os error 111)";
    const SILENT: &str = "no answer within 1s";

    #[test]
    fn waiting_io_is_reported_if_no_group_member_is_reachable() {
        let found = of([REFUSED; 4], "10.0.0.9");
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found[0].0, "management does not answer at a, b: a: no", "{found:?}");
        assert!(found[0].1.starts_with("I/O on files waits"), "{found:?}");
        for (_, remedy) in &found[1..3] {
            assert!(remedy.contains("start the service of one of t2, t3"), "{remedy}");
        }
    }

    #[test]
    fn continuing_io_is_reported_if_a_group_member_is_reachable() {
        let found = of([REFUSED, REFUSED, "", ""], "10.0.0.9");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].1.starts_with("I/O on files continues where"), "{found:?}");
        assert!(found[1].1.contains("until other members of its groups take over"), "{found:?}");
    }

    #[test]
    fn isolation_of_this_host_is_the_first_reported_problem() {
        let found = of([SILENT, SILENT, SILENT, ""], "10.0.0.3");
        assert!(found[0].0.contains("only the servers on this host answer"), "{found:?}");
        assert!(
            found[1..].iter().all(|it| it.1 == "see the remedy of the first problem in this list"),
            "{found:?}"
        );
        // A failure of the network does not explain why the service on this host does not run. So
        // the output still has the remedy for this service.
        let found = of([SILENT, SILENT, SILENT, REFUSED], "10.0.0.3");
        let last = found.last().unwrap();
        assert!(last.1.contains("start the service there"), "{found:?}");
    }

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
             management-2 answers, and has no leader"
        );
        let three = ["management-1", "management-2"].map(|it| node(it, false));
        let three: Vec<_> = three.into_iter().chain([node("management-3", true)]).collect();
        let what = without_leader(&three, &[]).expect("a problem").what;
        assert!(what.contains("management-1, management-2 do not answer this host"), "{what}");
    }

    #[test]
    fn problem_of_a_missing_leader_lists_all_silent_nodes() {
        let node = |name: &str, is_reachable| NodeReport::of_management(name, is_reachable);
        let all = [node("m-1", false), node("m-2", false), node("m-3", true)];
        let problem = without_leader(&all, &[]).expect("a problem");
        assert!(problem.what.contains("m-1, m-2 do not answer this host"), "{}", problem.what);
    }

    #[test]
    fn watch_does_not_end_an_outage_without_a_successful_check() {
        let nodes = [NodeReport::of_management("management-1", true)];
        assert_eq!(judged(&nodes), BTreeSet::from([CUT_OFF.to_owned()]));
    }
}

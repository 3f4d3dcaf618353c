//! The services of a cluster for `skep health check`. The check connects to each service. If a
//! connection fails, the report names the cause and its remedy.
//!
//! This module distinguishes four causes: the host does not answer, the service does not run, lacks
//! the newest token, or does not reach management. The module `skep_cluster::problems` finds the
//! problems that the cluster map shows.

use super::problem::{Object, Problem};
use crate::access::Access;
use serde::Serialize;
use skep_cluster::outage_effect::effect_of_outage;
use skep_cluster::problems::has_only_lost_targets;
use skep_cluster::state::kind_word;
use skep_types::map::{Condition, Consistency, Reachability};
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeKind, Result, Target, TargetId};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// Time limit for the handshake. A server that does not complete the handshake in time counts as
/// unreachable.
const PATIENCE: Duration = Duration::from_secs(3);

/// Maximum number of services to which the command connects at the same time.
const MAX_VISITS: usize = 64;
/// The rule of the problem that a service does not accept connections.
pub(super) const UNREACHABLE: &str = "service-unreachable";

/// Whether a connection to a service succeeded, as JSON.
#[derive(Debug, Serialize)]
pub(super) struct NodeReport {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) reachable: bool,
    pub(super) address: Option<String>,
    pub(super) error: Option<String>,
    #[serde(skip)]
    code: Option<ErrorCode>,
    /// Whether all targets of the service are marked as lost, so that the service need not run.
    #[serde(skip)]
    pub(super) is_needless: bool,
}

impl NodeReport {
    /// Whether the service does not answer this host. A service that refuses the token or the
    /// target of the connection does answer, and may serve its files.
    pub(super) fn is_silent(&self) -> bool {
        let refusals = [ErrorCode::AuthenticationFailed, ErrorCode::StaleMap];
        !self.reachable && self.code.is_none_or(|code| !refusals.contains(&code))
    }

    /// Whether the connection failed with an error that shows that the host does not answer.
    fn is_of_silent_host(&self) -> bool {
        let error = self.error.as_deref().filter(|_| !self.reachable);
        error.is_some_and(|error| Silence::of(error) == Silence::Host)
    }
}

#[cfg(test)]
impl NodeReport {
    /// Returns the report about a service, for tests. An empty `error` means that the service
    /// answers.
    pub(super) fn of(map: &ClusterMap, node: &Node, error: &str) -> Self {
        let outcome = match error {
            "" => Ok("10.0.0.1:7400".to_owned()),
            error => Err(Error::new(ErrorCode::Disconnected, error)),
        };
        report(map, node, outcome)
    }

    /// Returns the report about a management node, for tests.
    pub(super) fn of_management(name: &str, is_reachable: bool) -> Self {
        Self {
            id: 1,
            name: name.into(),
            kind: kind_word(NodeKind::Management),
            reachable: is_reachable,
            address: is_reachable.then(|| "10.0.0.1:7400".into()),
            error: (!is_reachable).then(|| "no answer".into()),
            code: None,
            is_needless: false,
        }
    }
}

/// The problems of services, and the targets that are offline because of these problems.
#[derive(Debug, Default)]
pub(super) struct ServiceProblems {
    pub(super) problems: Vec<Problem>,
    /// Targets that are offline because of one of `problems`.
    pub(super) explained: BTreeSet<TargetId>,
    /// Targets whose service does not accept connections, so that no service serves them.
    pub(super) unserved: BTreeSet<TargetId>,
}

/// Connects to the services in a cluster map, to at most [`MAX_VISITS`] at the same time. So many
/// silent services together delay the report only by one time limit.
pub(super) async fn visit_all(access: &Access, map: &ClusterMap) -> Vec<NodeReport> {
    let services: Vec<_> = map.nodes.iter().filter(|it| it.kind != NodeKind::Client).collect();
    let shared = Rc::new(map.clone());
    let mut nodes = Vec::new();
    for some in services.chunks(MAX_VISITS) {
        let visits = some.iter().map(|&node| {
            let (access, map, node) = (access.clone(), Rc::clone(&shared), node.clone());
            skep_env::spawn(async move { visit(&access, &map, &node).await })
        });
        let visits: Vec<_> = visits.collect();
        for visit in visits {
            nodes.push(visit.await);
        }
    }
    nodes
}

/// The servers that answer this host, if the network of this host is the most likely cause of all
/// outages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    /// No server answers this host.
    NoServer,
    /// Only servers on this host answer. Servers on at least two other hosts do not answer.
    OwnServersOnly,
}

/// Returns whether the network of this host is the most likely cause of the outages. This is the
/// case if each connection to a server on another host fails with an error that means that the
/// other host does not answer. `is_own_address` decides whether an address is one of this host.
pub(super) fn isolation(
    nodes: &[NodeReport],
    map: &ClusterMap,
    is_own_address: impl Fn(IpAddr) -> bool,
) -> Option<Isolation> {
    if nodes.len() > 1 && nodes.iter().all(NodeReport::is_of_silent_host) {
        return Some(Isolation::NoServer);
    }
    let node = |id: u32| map.nodes.iter().find(|node| node.id.raw() == id);
    let known = nodes.iter().filter_map(|report| Some((report, node(report.id)?)));
    let others: Vec<_> = known.filter(|(_, node)| !is_own(node, &is_own_address)).collect();
    let hosts: BTreeSet<_> =
        others.iter().filter_map(|(_, node)| host_of(node.addresses.first()?)).collect();
    // If servers on only one other host do not answer, that host may have failed, and not this
    // host's network.
    let is_isolated = hosts.len() > 1 && others.iter().all(|(it, _)| it.is_of_silent_host());
    is_isolated.then_some(Isolation::OwnServersOnly)
}

/// Whether a service runs on this host. `is_own_address` decides whether an address is one of this
/// host.
pub(super) fn is_own(node: &Node, is_own_address: impl Fn(IpAddr) -> bool) -> bool {
    node.addresses.iter().filter_map(|it| host_of(it)).any(is_own_address)
}

/// Returns the IP address in `address`. `None` if `address` contains a host name.
fn host_of(address: &str) -> Option<IpAddr> {
    address.parse::<SocketAddr>().ok().map(|it| it.ip())
}

/// Connects to each target of a node, since each target may have its own thread. Connects to the
/// node itself if no target is left to connect to.
async fn visit(access: &Access, map: &ClusterMap, node: &Node) -> NodeReport {
    // Skips targets that the node has reported as down, because these targets are separate
    // problems. Also skips targets without a group, because these targets serve no files.
    let mut targets: Vec<TargetId> = kept_targets(map, node)
        .filter(|target| target.health.condition != Condition::Down)
        .filter(|target| map.group_of(target.id).is_some())
        .map(|target| target.id)
        .collect();
    if targets.is_empty() {
        targets.push(TargetId::default());
    }
    let mut outcome =
        Err(Error::new(ErrorCode::Disconnected, "the cluster map has no address of this node"));
    for target in targets {
        outcome = access.connect(node, target, PATIENCE).await;
        if outcome.is_err() {
            break;
        }
    }
    let outcome: Result<String> = outcome.map(|(address, connection)| {
        connection.close();
        address
    });
    report(map, node, outcome)
}

fn report(map: &ClusterMap, node: &Node, outcome: Result<String>) -> NodeReport {
    let code = outcome.as_ref().err().map(Error::code);
    NodeReport {
        id: node.id.raw(),
        name: node.name.clone(),
        kind: kind_word(node.kind),
        reachable: outcome.is_ok(),
        error: outcome.as_ref().err().map(|error| error.context().to_owned()),
        address: outcome.ok(),
        code,
        is_needless: has_only_lost_targets(map, node.id),
    }
}

/// Returns the targets of a node that are not marked as lost.
fn kept_targets<'a>(map: &'a ClusterMap, node: &'a Node) -> impl Iterator<Item = &'a Target> {
    let all = map.targets.iter().filter(|target| target.node == node.id);
    all.filter(|target| target.consistency != Consistency::Bad)
}

/// Returns the problems of services. Each cause appears once. `explained` lists the targets that
/// are offline only because of a problem of their service.
pub(super) fn problems(nodes: &[NodeReport], map: &ClusterMap) -> ServiceProblems {
    let mut found = ServiceProblems::default();
    let mut silent = Vec::new();
    for report in nodes.iter().filter(|report| !report.is_needless) {
        let Some(node) = map.nodes.iter().find(|node| node.id.raw() == report.id) else { continue };
        let is_offline = |it: &&Target| it.reachability != Reachability::Online;
        let offline: Vec<_> = kept_targets(map, node).filter(is_offline).map(|it| it.id).collect();
        if !report.reachable {
            found.problems.push(unreachable(report, node, map));
            found.explained.extend(offline);
            found.unserved.extend(kept_targets(map, node).map(|it| it.id));
        } else if !offline.is_empty() {
            found.explained.extend(offline.iter().copied());
            silent.push((node, offline.len()));
        }
    }
    found.problems.extend(not_reaching_management(&silent, map));
    found
}

/// Returns the key of the problem that the service with the id `node` does not accept connections.
pub(super) fn unreachable_key(node: u32) -> String {
    format!("{UNREACHABLE} {node}")
}

/// Returns the problem of a service that does not accept a connection.
fn unreachable(report: &NodeReport, node: &Node, map: &ClusterMap) -> Problem {
    let NodeReport { id, name, .. } = report;
    let error = report.error.as_deref().unwrap_or("no answer");
    let targets: Vec<_> = kept_targets(map, node).map(|target| target.id.to_string()).collect();
    let targets = match &targets[..] {
        [] => String::new(),
        targets => format!(" ({})", targets.join(", ")),
    };
    Problem {
        key: unreachable_key(*id),
        rule: UNREACHABLE,
        what: format!("{name} [ID: {id}]{targets} is unreachable: {error}"),
        remedy: remedy(report, (map, node), error),
        objects: vec![Object::Node(node.id)],
        ..Problem::default()
    }
}

fn remedy(report: &NodeReport, (map, node): (&ClusterMap, &Node), error: &str) -> String {
    let (kind, effect) = (report.kind, effect_of_outage(map, node).text);
    let start = format!("read the log of `skep {kind}` on its host, and start the service there");
    if report.code == Some(ErrorCode::AuthenticationFailed) {
        return "the service runs, and its operations continue, but it refuses the token of this \
                command, because the service or this command has an outdated token. `skep cluster \
                token --cluster DIRECTORY` on the management host prints the newest token; on the \
                host of the service, `skep token install` gives this token to the service"
            .into();
    }
    if report.code == Some(ErrorCode::StaleMap) {
        return format!(
            "the service answers, but does not serve this target now: if this lasts, read the log \
             of `skep {kind}` on its host; {effect}"
        );
    }
    if Silence::of(error) == Silence::Process {
        return format!(
            "the service accepts connections and does not reply. On its host, `ps -eo \
             pid,stat,args` shows the state of its process. If the state is T (stopped), `kill \
             -CONT PID` continues the process. If the state is D (waits for a disk), `dmesg` \
             shows errors of the disk. In other states, end the process with `kill -9 PID`, and \
             start the service; {effect}"
        );
    }
    if node.kind == NodeKind::Management {
        return format!("{effect}; {start}");
    }
    if node.reachability == Reachability::Online {
        return format!(
            "nothing answers at the registered address {} of the service. Management received a \
             heartbeat of the service some seconds ago, so the service may have just died or hang: \
             {start}. If management still receives heartbeats after a minute, the host may have a \
             new address: restart the service, so that it registers the new address. Otherwise \
             check the network and its firewall. Meanwhile {effect}",
            node.addresses.join(", ")
        );
    }
    match Silence::of(error) {
        Silence::Host => format!(
            "the host of the service does not answer: check this host, its network and its \
             firewall; if these are in order, {start}; {effect}"
        ),
        Silence::Service => format!(
            "the host of the service answers, but the service does not run: {start}; {effect}"
        ),
        Silence::Process | Silence::Unknown => format!("{start}; {effect}"),
    }
}

/// The part of a server that does not answer: the service or its host. Derived from the text of the
/// error.
#[derive(Debug, PartialEq, Eq)]
enum Silence {
    /// The service does not run. Its host is up, because its kernel has refused the connection.
    Service,
    Host,
    /// The kernel of the host has accepted the connection, and the service does not complete the
    /// handshake. So its process exists, and is stopped, hangs or waits for a disk.
    Process,
    Unknown,
}

impl Silence {
    fn of(error: &str) -> Self {
        let has = |word: &&str| error.contains(*word);
        // The numbers are ENETUNREACH, ETIMEDOUT and EHOSTUNREACH. 111 below is ECONNREFUSED.
        let of_host = ["no answer within", "(os error 101)", "(os error 110)", "(os error 113)"];
        match error {
            _ if has(&"(os error 111)") => Self::Service,
            // `Access::connect` returns this text if the handshake exceeds its time limit.
            _ if has(&"no reply within") => Self::Process,
            _ if of_host.iter().any(has) => Self::Host,
            _ => Self::Unknown,
        }
    }
}

/// Returns one problem for all services that answer this host although their heartbeats do not
/// arrive at management. `silent` lists these services, each with the number of its targets that
/// management regards as offline.
fn not_reaching_management(silent: &[(&Node, usize)], map: &ClusterMap) -> Option<Problem> {
    let targets = match silent.iter().map(|(_, targets)| targets).sum::<usize>() {
        0 => return None,
        1 => "1 target answers".to_owned(),
        count => format!("{count} targets answer"),
    };
    let names: Vec<_> = silent.iter().map(|(node, _)| node.name.as_str()).collect();
    let management = map.nodes.iter().filter(|node| node.kind == NodeKind::Management);
    let addresses: Vec<_> = management.flat_map(|node| node.addresses.clone()).collect();
    Some(Problem {
        key: "target-offline silent".into(),
        rule: "target-offline",
        what: format!(
            "{targets} this host, but management receives no heartbeats from {}",
            names.join(", ")
        ),
        remedy: format!(
            "check the network between these services and management; if they use an old address \
             of management, which is now at {}: run `skep cluster token --cluster DIRECTORY` on \
             the management host, install the printed token for these services with `skep token \
             install`, and restart them",
            addresses.join(", ")
        ),
        objects: silent.iter().map(|(node, _)| Object::Node(node.id)).collect(),
        ..Problem::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use skep_types::{ClusterId, NodeId, TargetKind};

    fn node(id: u32, kind: NodeKind, name: &str, reachability: Reachability) -> Node {
        Node {
            id: NodeId::new(id),
            kind,
            name: name.into(),
            addresses: vec![format!("10.0.0.{id}:7400")],
            domain: String::new(),
            reachability,
            version: String::new(),
        }
    }

    fn target(id: u32, node: u32, reachability: Reachability) -> Target {
        Target {
            reachability,
            ..Target::new(TargetId::new(id), TargetKind::Storage, NodeId::new(node), "/d")
        }
    }

    /// Returns a map with management. For each of `states`, the map has a storage service with two
    /// targets in this state.
    fn map(states: &[Reachability]) -> ClusterMap {
        let mut map = ClusterMap::empty(ClusterId::default());
        map.nodes.push(node(1, NodeKind::Management, "management-1", Reachability::Online));
        for (id, state) in (2..).zip(states) {
            let name = format!("storage-{}", id - 1);
            map.nodes.push(node(id, NodeKind::Storage, &name, *state));
            map.targets.extend([target(10 * id, id, *state), target(10 * id + 1, id, *state)]);
        }
        map
    }

    /// Returns the problems if `last` is the result of connecting to the last node, and all other
    /// nodes answer.
    fn found(map: &ClusterMap, last: Result<String>) -> ServiceProblems {
        let answers = map.nodes.iter().map(|node| report(map, node, Ok("a".into())));
        let mut reports: Vec<_> = answers.collect();
        reports.pop();
        reports.push(report(map, map.nodes.last().unwrap(), last));
        problems(&reports, map)
    }

    fn error(code: ErrorCode, what: &str) -> Result<String> {
        Err(Error::new(code, what))
    }

    #[test]
    fn dead_service_and_its_targets_are_reported_as_one_problem() {
        let map = map(&[Reachability::Online, Reachability::Offline]);
        for (what, words) in [
            ("10.0.0.3:7400: no answer within 1s", "of the service does not answer"),
            ("10.0.0.3:7400: Connection refused (os error 111)", "service does not run"),
            ("the server does not answer the handshake", "read the log of `skep storage`"),
            ("10.0.0.3:7400: no reply within 3s", "accepts connections and does not reply"),
        ] {
            let found = found(&map, error(ErrorCode::Disconnected, what));
            let [problem] = &found.problems[..] else { panic!("{found:?}") };
            assert!(problem.what.contains("storage-2 [ID: 3] (t30, t31)"), "{}", problem.what);
            assert!(problem.remedy.contains(words), "{}", problem.remedy);
            let explained: Vec<_> = found.explained.iter().map(|it| it.raw()).collect();
            assert_eq!(explained, [30, 31]);
            assert_eq!(found.unserved.len(), 2, "no service serves the two targets");
        }
    }

    #[test]
    fn suspended_service_is_not_reported_as_stopped() {
        for state in [Reachability::Online, Reachability::Offline] {
            let map = map(&[state]);
            let error = error(ErrorCode::Disconnected, "10.0.0.2:7400: no reply within 3s");
            let remedy = &found(&map, error).problems[0].remedy;
            assert!(remedy.contains("`kill -CONT PID`"), "{remedy}");
            assert!(!remedy.contains("read the log of"), "{remedy}");
        }
    }

    #[test]
    fn service_with_an_outdated_token_is_not_reported_as_stopped() {
        let map = map(&[Reachability::Online]);
        let found = found(&map, error(ErrorCode::AuthenticationFailed, "another secret"));
        let remedy = &found.problems[0].remedy;
        assert!(remedy.contains("skep token install") && remedy.contains("runs"), "{remedy}");
        assert!(!remedy.contains("start the service"), "{remedy}");
    }

    #[test]
    fn service_with_an_unserved_target_is_not_reported_as_stopped() {
        let map = map(&[Reachability::Online]);
        let what = "10.0.0.2:7400: target t20 is not served by node n2";
        let remedy = &found(&map, error(ErrorCode::StaleMap, what)).problems[0].remedy;
        assert!(remedy.starts_with("the service answers"), "{remedy}");
        assert!(!remedy.contains("nothing answers"), "{remedy}");
    }

    #[test]
    fn remedy_for_an_unregistered_address_is_a_service_restart() {
        let map = map(&[Reachability::Online]);
        let found = found(&map, error(ErrorCode::Disconnected, "no answer within 1s"));
        let remedy = &found.problems[0].remedy;
        assert!(remedy.contains("may have just died") && remedy.contains("10.0.0.2"), "{remedy}");
        assert!(remedy.contains("restart the service"), "{remedy}");
    }

    #[test]
    fn services_cut_off_from_management_are_listed_as_one_problem() {
        let map = map(&[Reachability::Offline, Reachability::ProbablyOffline]);
        let found = found(&map, Ok("a".into()));
        let [problem] = &found.problems[..] else { panic!("{found:?}") };
        assert!(problem.what.starts_with("4 targets answer this host"), "{}", problem.what);
        assert!(problem.what.contains("storage-1, storage-2"), "{}", problem.what);
        assert!(problem.remedy.contains("now at 10.0.0.1:7400"), "{}", problem.remedy);
        assert_eq!(found.explained.len(), 4);
    }

    #[test]
    fn host_counts_as_cut_off_only_if_all_services_are_silent() {
        let map = map(&[Reachability::Offline]);
        let isolation = |errors: [&str; 2]| {
            let visits = map.nodes.iter().zip(errors);
            let visits: Vec<_> =
                visits.map(|(it, error)| NodeReport::of(&map, it, error)).collect();
            isolation(&visits, &map, |_| false)
        };
        let (silent, refused) = ("no answer within 1s", "Connection refused (os error 111)");
        let unrouted = "No route to host (os error 113)";
        assert_eq!(isolation([silent, unrouted]), Some(Isolation::NoServer));
        assert_eq!((isolation([silent, refused]), isolation([silent, ""])), (None, None));
    }

    #[test]
    fn stopped_service_with_only_lost_targets_is_no_problem() {
        let mut map = map(&[Reachability::Offline]);
        map.targets.iter_mut().for_each(|target| target.consistency = Consistency::Bad);
        let found = found(&map, error(ErrorCode::Disconnected, "no answer within 1s"));
        assert!(found.problems.is_empty(), "{found:?}");
    }
}

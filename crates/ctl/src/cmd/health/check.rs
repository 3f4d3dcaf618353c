//! `skep health check`: connects to every server as a client would, measures for a moment, and
//! lists problems and causes of slowness with their remedies. The loop of `--watch` is
//! [`super::watch`].

use crate::access::{Access, ClusterArgs};
use crate::cmd::stats::{Fetched, measure};
use crate::help::{Example, examples};
use crate::output::{print, span};
use crate::view;
use serde::Serialize;
use skep_cluster::problems::{has_only_lost_targets, problems_of_map};
use skep_cluster::state::kind_word;
use skep_service::Interval;
use skep_stats::why::{Evidence, Thresholds, causes};
use skep_types::map::{Condition, Consistency};
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeId, NodeKind, Result, TargetId};
use skep_wire::management::{ListRequestWaits, NodeWait};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("check the cluster; the exit code is 1 if there are problems", "skep health check"),
    ("print each problem when it begins and when it ends", "skep health check --watch"),
    (
        "for a monitoring system",
        "skep health check --cluster 10.0.0.1:7400 --token-file token --output json",
    ),
];

/// Connect to every server, and list problems with their remedies
///
/// Also compares the latencies of all targets for two seconds, and lists slow disks and links, and
/// load that holds others up. They leave the cluster healthy, and `--watch` leaves them out. `skep
/// why` explains them.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(super) query: ClusterArgs,
    /// Check again and again until Ctrl-C, and print each problem when it begins and when it ends
    #[arg(long = "watch")]
    pub(super) is_watch: bool,
    /// With --watch: time between two checks
    #[arg(long, default_value = "5s", requires = "is_watch")]
    pub(super) interval: Interval,
    /// With --watch: also write the changes to this file, which keeps the last 1000
    #[arg(long, value_name = "FILE", requires = "is_watch")]
    pub(super) history: Option<PathBuf>,
}

/// Time limit for the handshake: a server that does not complete it counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time for which latencies are compared.
const SPAN: Duration = Duration::from_secs(2);

/// The result of the check, as JSON.
#[derive(Debug, Serialize)]
struct Report {
    healthy: bool,
    nodes: Vec<NodeReport>,
    problems: Vec<Problem>,
    /// The nodes whose requests have waited for more than 5 seconds.
    waits: Vec<WaitReport>,
}

#[derive(Debug, Serialize)]
struct WaitReport {
    node: u32,
    /// Name of the node; for a mount, its host and mount point.
    name: String,
    group: u32,
    target: Option<u32>,
    waits_ms: u64,
    requests: u32,
    error: String,
}

#[derive(Debug, Serialize)]
struct NodeReport {
    id: u32,
    name: String,
    kind: &'static str,
    reachable: bool,
    address: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Problem {
    /// The same for one problem in all checks, although its text may change.
    #[serde(skip)]
    pub(super) key: String,
    /// Name of the rule that found the problem, as in alerts of the monitor.
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) remedy: String,
}

pub(crate) fn run(args: CheckArgs) -> Result<ExitCode> {
    let access = args.query.access(None)?;
    let report = crate::cmd::block_on(async move {
        let map = access.map().await?;
        let measured = access.clone();
        let measuring = skep_env::spawn(async move { measure(&measured, SPAN).await });
        let nodes = visit_all(&access, &map).await;
        let (evidence, now) = measuring.await?;
        let waits = waits(&access, &now.map).await?;
        Ok(report(nodes, waits, &evidence, &now))
    })?;
    let healthy = report.healthy;
    print(&report, as_text)?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks the cluster once, without the causes of slowness, and returns its problems.
pub(super) async fn problems(access: &Access) -> Result<Vec<Problem>> {
    let map = access.map().await?;
    let nodes = visit_all(access, &map).await;
    let waits = waits(access, &map).await?;
    Ok(problems_of(&nodes, &waits, &map))
}

async fn visit_all(access: &Access, map: &ClusterMap) -> Vec<NodeReport> {
    let mut nodes = Vec::new();
    for node in map.nodes.iter().filter(|node| node.kind != NodeKind::Client) {
        nodes.push(visit(access, map, node).await);
    }
    nodes
}

async fn waits(access: &Access, map: &ClusterMap) -> Result<Vec<WaitReport>> {
    let list = access.ask(&ListRequestWaits {}).await?;
    Ok(list.waits.iter().map(|waiting| wait_report(map, waiting)).collect())
}

fn report(
    nodes: Vec<NodeReport>,
    waits: Vec<WaitReport>,
    evidence: &Evidence,
    now: &Fetched,
) -> Report {
    let mut problems = problems_of(&nodes, &waits, &now.map);
    // Load makes no cluster unhealthy: scripts that wait for a healthy cluster must end.
    let healthy = problems.is_empty();
    let found = causes(evidence, &now.map, &Thresholds::default());
    problems.extend(found.into_iter().filter(|cause| !cause.is_over).map(|cause| Problem {
        key: format!("{} {}", cause.rule, cause.what),
        rule: cause.rule,
        what: cause.what,
        remedy: cause.remedy,
    }));
    Report { healthy, nodes, problems, waits }
}

/// Returns the problems that make the cluster unhealthy.
fn problems_of(nodes: &[NodeReport], waits: &[WaitReport], map: &ClusterMap) -> Vec<Problem> {
    let mut problems = Vec::new();
    let is_needed = |node: &&NodeReport| !has_only_lost_targets(map, NodeId::new(node.id));
    for node in nodes.iter().filter(|node| !node.reachable).filter(is_needed) {
        problems.push(Problem {
            key: format!("service-unreachable {}", node.id),
            rule: "service-unreachable",
            what: format!(
                "{} [ID: {}] is unreachable: {}",
                node.name,
                node.id,
                node.error.as_deref().unwrap_or("no answer")
            ),
            remedy: format!(
                "read the log of `skep {}` on its host, and start the service there; operations on \
                 its files wait until it is back, other files are not affected",
                node.kind
            ),
        });
    }
    problems.extend(problems_of_map(map).into_iter().map(|problem| Problem {
        key: match problem.target {
            Some(target) => format!("{} {target}", problem.rule),
            None => format!("{} {}", problem.rule, problem.what),
        },
        rule: problem.rule,
        what: problem.what,
        remedy: problem.remedy.to_owned(),
    }));
    problems.extend(waits.iter().map(wait_problem));
    problems
}

fn wait_report(map: &ClusterMap, waiting: &NodeWait) -> WaitReport {
    let NodeWait { node, wait } = waiting;
    WaitReport {
        node: node.raw(),
        name: map.node(*node).map_or_else(|| node.to_string(), |it| it.name.clone()),
        group: wait.group.raw(),
        target: map.primary(wait.group).map(|target| target.id.raw()),
        waits_ms: wait.since_ms,
        requests: wait.requests,
        error: wait.error.clone(),
    }
}

fn wait_problem(wait: &WaitReport) -> Problem {
    let WaitReport { name, requests, error, .. } = wait;
    let requests = match requests {
        1 => "1 request waits".to_owned(),
        count => format!("{count} requests wait"),
    };
    let target = match wait.target {
        Some(target) => format!("target {target}"),
        None => format!("group {}", wait.group),
    };
    let since = span(wait.waits_ms);
    Problem {
        key: format!("requests-wait {} {}", wait.node, wait.group),
        rule: "requests-wait",
        what: format!("{name}: {requests} for {target}, the first one for {since}: {error}"),
        remedy: "the programs continue when the target answers; check its service".into(),
    }
}

/// Connects to each target of a node, since each target has its own thread. Connects to the node
/// itself if it has no targets.
async fn visit(access: &Access, map: &ClusterMap, node: &Node) -> NodeReport {
    // Targets that the node does not serve are problems of their own.
    let mut targets: Vec<TargetId> = map
        .targets
        .iter()
        .filter(|target| target.node == node.id && target.health.condition != Condition::Down)
        .filter(|target| target.consistency != Consistency::Bad)
        .map(|target| target.id)
        .collect();
    if targets.is_empty() {
        targets.push(TargetId::default());
    }
    let mut outcome = Err(Error::new(ErrorCode::Disconnected, "it has no address"));
    for target in targets {
        outcome = access.connect(node, target, PATIENCE).await;
        if outcome.is_err() {
            break;
        }
    }
    let (address, error) = match outcome {
        Ok((address, connection)) => {
            connection.close();
            (Some(address), None)
        }
        Err(error) => (None, Some(error.context().to_owned())),
    };
    NodeReport {
        id: node.id.raw(),
        name: node.name.clone(),
        kind: kind_word(node.kind),
        reachable: address.is_some(),
        address,
        error,
    }
}

fn as_text(report: &Report) -> String {
    let mut text = String::new();
    for kind in [NodeKind::Management, NodeKind::Metadata, NodeKind::Storage] {
        let _ = writeln!(text, "{}\n==========", view::class_title(kind));
        for node in report.nodes.iter().filter(|node| node.kind == kind_word(kind)) {
            let state = match (&node.address, &node.error) {
                (Some(address), _) => format!("reachable at {address} (protocol: TCP)"),
                (None, error) => {
                    format!("UNREACHABLE: {}", error.as_deref().unwrap_or("no answer"))
                }
            };
            let _ = writeln!(text, "{} [ID: {}]: {state}", node.name, node.id);
        }
        text.push('\n');
    }
    if report.problems.is_empty() {
        return text + "The cluster is healthy.\n";
    }
    let title = if report.healthy { "The cluster is healthy, but slow" } else { "Problems" };
    let _ = writeln!(text, "{title}\n==========");
    for problem in &report.problems {
        let _ = writeln!(text, "- {}\n  {}", problem.what, problem.remedy);
    }
    text
}

//! `skep health check`: connects to every server as a client would, measures for a moment, and
//! lists problems and causes of slowness with their remedies.

use crate::access::{Access, ClusterArgs};
use crate::cmd::stats::{Fetched, fetch};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view;
use serde::Serialize;
use skep_cluster::problems::problems_of_map;
use skep_cluster::state::kind_word;
use skep_stats::why::{Evidence, Thresholds, causes};
use skep_types::map::Condition;
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeKind, Result, TargetId};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("check the cluster; the exit code is 1 if there are problems", "skep health check"),
    (
        "for a monitoring system",
        "skep health check --cluster 10.0.0.1:7400 --token-file token --output json",
    ),
];

/// Connect to every server, and list problems with their remedies
///
/// Also compares the latencies of all targets for two seconds, and lists slow disks and links, and
/// load that holds others up. They leave the cluster healthy. `skep why` explains them.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    query: ClusterArgs,
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

#[derive(Debug, Serialize)]
struct Problem {
    /// Name of the rule that found the problem, as in alerts of the monitor.
    rule: &'static str,
    what: String,
    remedy: String,
}

pub(crate) fn run(args: CheckArgs) -> Result<ExitCode> {
    let access = args.query.access(None)?;
    let report = crate::cmd::block_on(async move {
        let before = fetch(&access).await?;
        let started = skep_env::now();
        let mut nodes = Vec::new();
        for node in before.map.nodes.iter().filter(|node| node.kind != NodeKind::Client) {
            nodes.push(visit(&access, &before.map, node).await);
        }
        skep_env::sleep((started + SPAN).saturating_sub(skep_env::now())).await;
        let now = fetch(&access).await?;
        Ok(report(nodes, &before, &now))
    })?;
    let healthy = report.healthy;
    print(&report, as_text)?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(nodes: Vec<NodeReport>, before: &Fetched, now: &Fetched) -> Report {
    let mut problems = Vec::new();
    for node in nodes.iter().filter(|node| !node.reachable) {
        problems.push(Problem {
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
    problems.extend(problems_of_map(&now.map).into_iter().map(|problem| Problem {
        rule: problem.rule,
        what: problem.what,
        remedy: problem.remedy.to_owned(),
    }));
    // Load makes no cluster unhealthy: scripts that wait for a healthy cluster must end.
    let healthy = problems.is_empty();
    let evidence = Evidence::between(&before.round, &now.round);
    let found = causes(&evidence, &now.map, &Thresholds::default());
    problems.extend(found.into_iter().map(|cause| Problem {
        rule: cause.rule,
        what: cause.what,
        remedy: cause.remedy,
    }));
    Report { healthy, nodes, problems }
}

/// Connects to each target of a node, since each target has its own thread. Connects to the node
/// itself if it has no targets.
async fn visit(access: &Access, map: &ClusterMap, node: &Node) -> NodeReport {
    // Targets that the node does not serve are problems of their own.
    let mut targets: Vec<TargetId> = map
        .targets
        .iter()
        .filter(|target| target.node == node.id && target.health.condition != Condition::Down)
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

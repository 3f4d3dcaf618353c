//! `skep node log-level`: shows or changes the log levels of running services and mounts. A change
//! lasts until the service or mount restarts. Mounts accept no connections, so management sends the
//! level to a mount in the reply to the next heartbeat of the mount.

use crate::access::{Access, ClusterArgs, PATIENCE};
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::values;
use crate::view::node_named;
use serde::Serialize;
use skep_cluster::state::kind_word;
use skep_rpc::CallOptions;
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeKind, Result, TargetId};
use skep_wire::management::SetClientLogLevel;
use skep_wire::node::{LogLevel, SetLogLevel};
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("show the log level of all services", "skep node log-level all"),
    ("raise the log level of one service", "skep node log-level storage-1 debug"),
    (
        "raise the log level of one part of a mount",
        "skep node log-level n12 info,skep_client=debug",
    ),
    ("restore the configured log level", "skep node log-level storage-1 default"),
];

/// Show the log level of running services and mounts, or change it until they restart
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct LogLevelArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Name or id of a service or mount, or `all` for all services, or `mounts` for all mounts
    node: String,
    /// Log level, or a filter such as `info,skep_storage=debug`, or `default` for the configured
    /// level
    #[arg(value_parser = values::levels_and_default())]
    level: Option<String>,
}

/// Maximum number of requests that are in flight at the same time.
const AT_ONCE: usize = 100;
/// Number of heartbeat intervals for which the command waits for a mount. The mount receives the
/// level in the reply to its next heartbeat. The command also waits for a second heartbeat, because
/// the first heartbeat may be lost.
const HEARTBEATS: u32 = 2;

/// A node and its log level, as one entry of the list.
#[derive(Debug, Serialize)]
struct NodeLogLevel {
    id: u32,
    name: String,
    kind: &'static str,
    level: Option<String>,
    configured_level: Option<String>,
    error: Option<String>,
}

/// Shows or changes the level of one node, of all services or of all mounts. Returns exit code 0
/// only if all nodes replied.
pub(crate) fn run(args: LogLevelArgs) -> Result<ExitCode> {
    let LogLevelArgs { query, node, level } = args;
    let access = query.access(None)?;
    let is_one = !matches!(node.as_str(), "all" | "mounts");
    let level = level.map(|level| if level == "default" { String::new() } else { level });
    let lines = crate::cmd::block_on(async move {
        let map = access.map().await?;
        let nodes = chosen(&map, &node)?;
        let heartbeat = Duration::from_millis(u64::from(map.policy.heartbeat_ms));
        let mut lines = Vec::new();
        // A mount replies only at its next heartbeat. To save time, the command waits for many
        // mounts at once.
        for some in nodes.chunks(AT_ONCE) {
            let asked: Vec<_> = some
                .iter()
                .map(|node| {
                    let (access, node, level) = (access.clone(), (*node).clone(), level.clone());
                    skep_env::spawn(async move { ask(&access, &node, level, heartbeat).await })
                })
                .collect();
            for (node, outcome) in some.iter().zip(asked) {
                // If a single node fails, the line of this node shows the error. The command ends
                // if the level is invalid, because an invalid level is invalid for all nodes.
                match outcome.await {
                    Err(error) if is_one || error.code() == ErrorCode::InvalidArgument => {
                        return Err(error.within(format_args!("{} ({})", node.name, node.id)));
                    }
                    outcome => lines.push(line(node, outcome)),
                }
            }
        }
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines))?;
    Ok(match lines.iter().any(|line| line.error.is_some()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn chosen<'a>(map: &'a ClusterMap, wanted: &str) -> Result<Vec<&'a Node>> {
    let of_kind = |is_wanted: fn(NodeKind) -> bool| {
        Ok(map.nodes.iter().filter(|node| is_wanted(node.kind)).collect())
    };
    match wanted {
        "all" => of_kind(|kind| kind != NodeKind::Client),
        "mounts" => of_kind(|kind| kind == NodeKind::Client),
        name => Ok(vec![node_named(map, name)?]),
    }
}

/// Sends the request for the log level directly to a service. If the node is a mount, sends the
/// request to management.
async fn ask(
    access: &Access,
    node: &Node,
    level: Option<String>,
    heartbeat: Duration,
) -> Result<LogLevel> {
    if node.kind == NodeKind::Client {
        let order = SetClientLogLevel { client: node.id, level };
        return access.ask_once(&order, PATIENCE + HEARTBEATS * heartbeat).await.map_err(silent);
    }
    let (_, connection) = access.connect(node, TargetId::default(), PATIENCE).await?;
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    let asked = connection.call(&SetLogLevel { level }, &options).await;
    connection.close();
    asked.map(|(reply, _)| reply)
}

/// If a mount does not reply, adds a hint on how to fix this problem to the error.
fn silent(error: Error) -> Error {
    if error.code() != ErrorCode::TimedOut {
        return error;
    }
    let hint = "`skep client list` shows the host and the process of the client: on that host, \
                `kill -USR1 PID` makes the log one step more detailed, and `kill -USR2 PID` \
                restores the level";
    Error::new(error.code(), format!("{}; {hint}", error.context()))
}

fn line(node: &Node, outcome: Result<LogLevel>) -> NodeLogLevel {
    let (level, error) = match outcome {
        Ok(level) => (Some(level), None),
        Err(error) => (None, Some(error.context().to_owned())),
    };
    NodeLogLevel {
        id: node.id.raw(),
        name: node.name.clone(),
        kind: kind_word(node.kind),
        configured_level: level.as_ref().map(|it| it.configured.clone()),
        level: level.map(|it| it.current),
        error,
    }
}

fn as_table(lines: &[NodeLogLevel]) -> String {
    let mut shown = table(&["ID", "NAME", "LEVEL", "CONFIGURED"]);
    for line in lines {
        let level = match (&line.level, &line.error) {
            (Some(level), _) => level.clone(),
            (None, error) => format!("UNREACHABLE: {}", error.as_deref().unwrap_or("no reply")),
        };
        let configured = line.configured_level.clone().unwrap_or_default();
        shown.add_row([line.id.to_string(), line.name.clone(), level, configured]);
    }
    render(&shown)
}

//! `skep node log-level`: what running services log, shown or changed until they end.

use crate::access::{Access, ClusterArgs, PATIENCE};
use crate::output::{print, render, table};
use crate::view::node_named;
use serde::Serialize;
use skep_cluster::state::kind_word;
use skep_rpc::CallOptions;
use skep_types::{ClusterMap, Error, ErrorCode, Node, NodeKind, Result, TargetId};
use skep_wire::node::{LogLevel, SetLogLevel};
use std::process::ExitCode;

/// A service and what it logs.
#[derive(Debug, Serialize)]
struct Line {
    id: u32,
    name: String,
    kind: &'static str,
    level: Option<String>,
    configured_level: Option<String>,
    error: Option<String>,
}

/// Shows or changes the level of one service, or of all. The exit code says whether all answered.
pub(crate) fn run(query: ClusterArgs, node: &str, level: Option<&str>) -> Result<ExitCode> {
    let access = query.access(None)?;
    let wanted = node.to_owned();
    let level = level.map(|level| match level {
        "default" => String::new(),
        level => level.to_owned(),
    });
    let lines = super::super::block_on(async move {
        let map = access.map().await?;
        let nodes = chosen(&map, &wanted)?;
        let mut lines = Vec::new();
        for node in nodes {
            let outcome = ask(&access, node, level.clone()).await;
            // Of one node the error is the answer; a wrong level is wrong for all.
            match outcome {
                Err(error) if wanted != "all" || error.code() == ErrorCode::InvalidArgument => {
                    return Err(error.within(format_args!("{} ({})", node.name, node.id)));
                }
                outcome => lines.push(line(node, outcome)),
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
    if wanted == "all" {
        return Ok(map.nodes.iter().filter(|node| node.kind != NodeKind::Client).collect());
    }
    let node = node_named(map, wanted)?;
    match node.kind {
        NodeKind::Client => Err(Error::new(
            ErrorCode::Unsupported,
            format!(
                "{} is a mount, which takes no connections; `skep client list` shows its host and \
                 its process: there, `kill -USR1 PID` makes its log more detailed by one step, \
                 `kill -USR2 PID` puts it back",
                node.name
            ),
        )),
        _ => Ok(vec![node]),
    }
}

async fn ask(access: &Access, node: &Node, level: Option<String>) -> Result<LogLevel> {
    let (_, connection) = access.connect(node, TargetId::default(), PATIENCE).await?;
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    let asked = connection.call(&SetLogLevel { level }, &options).await;
    connection.close();
    asked.map(|(reply, _)| reply)
}

fn line(node: &Node, outcome: Result<LogLevel>) -> Line {
    let (level, error) = match outcome {
        Ok(level) => (Some(level), None),
        Err(error) => (None, Some(error.context().to_owned())),
    };
    Line {
        id: node.id.raw(),
        name: node.name.clone(),
        kind: kind_word(node.kind),
        configured_level: level.as_ref().map(|it| it.configured.clone()),
        level: level.map(|it| it.current),
        error,
    }
}

fn as_table(lines: &[Line]) -> String {
    let mut shown = table(&["ID", "NAME", "LEVEL", "CONFIGURED"]);
    for line in lines {
        let level = match (&line.level, &line.error) {
            (Some(level), _) => level.clone(),
            (None, error) => format!("UNREACHABLE: {}", error.as_deref().unwrap_or("no answer")),
        };
        let configured = line.configured_level.clone().unwrap_or_default();
        shown.add_row([line.id.to_string(), line.name.clone(), level, configured]);
    }
    render(&shown)
}

//! `skep target add`: adds a target to a running service.

use crate::access::{Access, ClusterArgs, PATIENCE, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use crate::view::node_named;
use serde::Serialize;
use skep_rpc::CallOptions;
use skep_types::map::{Condition, Reachability};
use skep_types::{Error, ErrorCode, MapVersion, NodeKind, Result, TargetId};
use skep_wire::management::GetMap;
use skep_wire::node::{AddTarget, AddTargetReply};
use std::time::Duration;

const EXAMPLES: &[Example] = &[(
    "add a target to the service storage-1, on a new disk that is mounted at /disk3 of its host",
    "skep target add storage-1 /disk3/skep",
)];

/// Add a target to a running service, without a restart
///
/// The service initialises the directory, and serves the new target immediately and after each
/// following start, so the settings of the service need no change. The directory must be blank, or
/// must not exist. New files use a new storage target immediately. `skep target remove` removes the
/// target from the cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct AddArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Name or id of a metadata or storage service
    node: String,
    /// Directory of the target on the host of the service, as an absolute path
    path: String,
}

/// Time limit for the service to initialise the directory and register the target with management.
const ADD_PATIENCE: Duration = Duration::from_secs(30);

/// The JSON output: the added target.
#[derive(Debug, Serialize)]
struct Addition {
    id: u32,
    node: String,
    path: String,
    /// Whether the command has added the target. `false` if the service already had the target.
    is_new: bool,
    warnings: Vec<String>,
}

pub(crate) fn run(args: AddArgs) -> Result<()> {
    let AddArgs { query, node, path } = args;
    let access = query.access(None)?;
    let addition = block_on(async move {
        let map = access.map().await?;
        let node = node_named(&map, &node)?;
        if !matches!(node.kind, NodeKind::Metadata | NodeKind::Storage) {
            let what = format!(
                "cannot add a target to {}: only metadata and storage services have targets; `skep \
                 node list` shows these services",
                node.name
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let (_, connection) = access.connect(node, TargetId::default(), PATIENCE).await?;
        let options = CallOptions { time_left: Some(ADD_PATIENCE), ..CallOptions::default() };
        let added = connection.call(&AddTarget { path: path.clone() }, &options).await;
        connection.close();
        let (AddTargetReply { target, warnings }, _) = added?;
        // The service replies with the id of the target in this directory.
        let is_new = map.target(target).is_none();
        if is_new {
            await_service(&access, target).await?;
        }
        Ok(Addition { id: target.raw(), node: node.name.clone(), path, is_new, warnings })
    })?;
    print(&addition, as_text)
}

fn as_text(addition: &Addition) -> String {
    let Addition { id, node, path, is_new, warnings } = addition;
    let mut text = match is_new {
        true => format!("Target {id} ({path}) is added to {node}, and serves.\n"),
        false => format!(
            "Target {id} ({path}) is already a target of {node}. Nothing is changed; `skep target \
             list` shows its state.\n"
        ),
    };
    for warning in warnings {
        text += &format!("Warning: {warning}.\n");
    }
    text
}

/// Waits until a target serves requests according to the cluster map.
async fn await_service(access: &Access, target: TargetId) -> Result<()> {
    let serves = async {
        let mut known = MapVersion::new(0);
        loop {
            let update = access.ask(&GetMap { known }).await?;
            let Some(map) = update.map else { continue };
            known = map.version;
            let target = map.target(target);
            if target.is_some_and(|it| {
                it.reachability == Reachability::Online && it.health.condition == Condition::Serving
            }) {
                return Ok(());
            }
        }
    };
    skep_env::timeout(ADD_PATIENCE, serves).await.unwrap_or_else(|| {
        let what = format!(
            "target {target} is added, but does not serve after {} s; `skep target list` shows its \
             state, and the log of its service shows the reason",
            ADD_PATIENCE.as_secs()
        );
        Err(Error::new(ErrorCode::TimedOut, what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_target_add_reports_the_existing_target() {
        let addition = |is_new| {
            let (node, path) = ("storage-3".to_owned(), "/disk1/skep".to_owned());
            as_text(&Addition { id: 9, node, path, is_new, warnings: Vec::new() })
        };
        assert!(addition(true).contains("is added to storage-3"));
        let again = addition(false);
        assert!(again.contains("already") && !again.contains("added"), "{again}");
    }
}

//! `skep node list`: lists all nodes of the cluster.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::view;
use skep_types::{ErrorCode, Result};
use skep_wire::management::ListHosts;

const EXAMPLES: &[Example] = &[
    (
        "list the nodes of the cluster that is mounted here, or of the cluster in ./skep-data",
        "skep node list",
    ),
    (
        "list the nodes of another cluster as JSON, for a script",
        "skep node list --cluster 10.0.0.1:7400 --token-file token --output json",
    ),
];

/// List all nodes
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let (map, hosts) = crate::cmd::block_on(async move {
        let map = access.map().await?;
        let hosts = match access.ask(&ListHosts {}).await {
            // A management leader of an older version cannot list the hosts of servers.
            Err(error) if error.code() == ErrorCode::Unsupported => Vec::new(),
            list => list?.hosts,
        };
        Ok((map, hosts))
    })?;
    let hosts = hosts.into_iter().map(|it| (it.node, it.host)).collect();
    print(&view::nodes(&map, &hosts), |nodes| {
        let titles = [
            "ID",
            "Name",
            "Host",
            "Kind",
            "Reachability",
            "Address",
            "Domain",
            "Targets",
            "Version",
        ];
        let mut shown = table(&titles);
        for node in nodes {
            let targets: Vec<String> = node.targets.iter().map(u32::to_string).collect();
            shown.add_row([
                &node.id.to_string(),
                &node.name,
                node.host.as_deref().unwrap_or("-"),
                node.kind,
                node.reachability,
                &node.addresses.join(", "),
                node.domain.as_deref().unwrap_or("-"),
                &targets.join(","),
                &node.version,
            ]);
        }
        render(&shown)
    })
}

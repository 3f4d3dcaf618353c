//! `skep node list`: all nodes.

use crate::access::ClusterArgs;
use crate::output::{print, render, table};
use crate::view;
use skep_types::Result;

pub(crate) fn run(args: ClusterArgs) -> Result<()> {
    let access = args.access(None)?;
    let map = super::super::block_on(async move { access.map().await })?;
    print(&view::nodes(&map), |nodes| {
        let titles =
            ["ID", "Name", "Kind", "Reachability", "Address", "Domain", "Targets", "Version"];
        let mut shown = table(&titles);
        for node in nodes {
            let targets: Vec<String> = node.targets.iter().map(u32::to_string).collect();
            shown.add_row([
                &node.id.to_string(),
                &node.name,
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

//! `skep target list`: all targets.

use crate::access::ClusterArgs;
use crate::output::{print, render, table};
use crate::view;
use skep_types::Result;

pub(crate) fn run(args: ClusterArgs) -> Result<()> {
    let access = args.access(None)?;
    let map = super::super::block_on(async move { access.map().await })?;
    print(&view::targets(&map), |targets| {
        let mut shown =
            table(&["ID", "Kind", "Reachability", "Consistency", "Pool", "Group", "Node", "Path"]);
        for target in targets {
            shown.add_row([
                target.id.to_string(),
                target.kind.into(),
                target.reachability.into(),
                target.consistency.into(),
                target.pool.into(),
                target.group.map_or("-".into(), |group| group.to_string()),
                format!("{} [ID: {}]", target.node_name, target.node),
                target.path.clone(),
            ]);
        }
        render(&shown)
    })
}

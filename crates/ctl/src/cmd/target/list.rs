//! `skep target list`: lists all targets of the cluster.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use crate::view;
use skep_types::Result;
use std::fmt::Write;

const EXAMPLES: &[Example] = &[("list all targets with state and location", "skep target list")];

/// List all targets
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let map = crate::cmd::block_on(async move { access.map().await })?;
    print(&view::targets(&map), |targets| {
        let titles = [
            "ID",
            "Kind",
            "Reachability",
            "Consistency",
            "Condition",
            "Pool",
            "Group",
            "Node",
            "Path",
        ];
        let mut shown = table(&titles);
        for target in targets {
            shown.add_row([
                target.id.to_string(),
                target.kind.into(),
                target.reachability.into(),
                target.consistency.into(),
                target.shown_condition().into(),
                target.pool.into(),
                target.group.map_or("-".into(), |group| group.to_string()),
                format!("{} [ID: {}]", target.node_name, target.node),
                target.path.clone(),
            ]);
        }
        let mut text = render(&shown);
        for target in targets {
            if let Some(problem) = &target.problem {
                let _ = writeln!(text, "\n{} ({}): {problem}", target.id, target.condition);
            }
        }
        text
    })
}

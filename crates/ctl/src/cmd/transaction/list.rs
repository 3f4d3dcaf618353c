//! `skep transaction list`: lists the transactions that are prepared at each metadata target.

use super::{Groups, name};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, span, table, utc};
use serde::Serialize;
use skep_types::{GroupId, Result};
use skep_wire::metadata::TransactionEntry;

const EXAMPLES: &[Example] =
    &[("list all transactions that wait for a decision", "skep transaction list")];

/// List the transactions that are prepared at metadata targets and wait for a decision
///
/// A transaction between metadata targets, such as a rename between two metadata targets, is
/// prepared for milliseconds. A transaction stays in this list if its coordinator does not reply or
/// its decision cannot be carried out. The names and inodes of such a transaction stay locked.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// A transaction that is prepared at a metadata group, as one entry of the list.
#[derive(Debug, Serialize)]
struct PreparedReport {
    transaction: String,
    group: u32,
    coordinator: u32,
    since: String,
    steps: u32,
    /// Time for which the transaction's coordinator has not replied, in milliseconds. Zero if the
    /// coordinator replies.
    coordinator_silent_ms: u64,
    /// The reason why the target could not carry out the decision. Empty if the target has not
    /// tried to carry out a decision.
    problem: String,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let lines = crate::cmd::block_on(async move {
        let groups = Groups::of(&access).await?;
        let mut lines = Vec::new();
        for group in groups.ids() {
            lines.extend(groups.prepared(group).await?.iter().map(|entry| line(group, entry)));
        }
        Ok(lines)
    })?;
    print(&lines, |lines| as_table(lines))
}

fn line(group: GroupId, entry: &TransactionEntry) -> PreparedReport {
    PreparedReport {
        transaction: name(entry.transaction),
        group: group.raw(),
        coordinator: entry.transaction.coordinator.raw(),
        since: utc(entry.since),
        steps: entry.steps,
        coordinator_silent_ms: entry.silent_ms,
        problem: entry.problem.clone(),
    }
}

fn as_table(lines: &[PreparedReport]) -> String {
    let titles =
        ["TRANSACTION", "AT GROUP", "COORDINATOR", "SINCE", ">STEPS", ">NO REPLY FOR", "PROBLEM"];
    let mut shown = table(&titles);
    for line in lines {
        shown.add_row([
            line.transaction.clone(),
            line.group.to_string(),
            line.coordinator.to_string(),
            line.since.clone(),
            line.steps.to_string(),
            span(line.coordinator_silent_ms),
            line.problem.clone(),
        ]);
    }
    render(&shown)
}

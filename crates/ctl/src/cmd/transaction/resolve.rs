//! `skep transaction resolve`: commits or aborts a transaction in place of its coordinator.

use super::{Groups, name, options};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_types::{Error, ErrorCode, GroupId, Result};
use skep_wire::metadata::{ResolveTransaction, TransactionId};

const EXAMPLES: &[Example] = &[
    ("abort a transaction: discard its prepared changes", "skep transaction resolve 3:77 --abort"),
    (
        "commit a transaction: carry out its prepared changes",
        "skep transaction resolve 3:77 --commit",
    ),
];

/// Commit or abort a transaction whose coordinator does not return
///
/// All metadata targets at which the transaction is prepared carry out the same decision. If the
/// coordinator made the other decision before it was lost, names and inodes on different targets no
/// longer match. So restore the coordinator instead if that is possible. The targets refuse the
/// command while they expect a decision of the coordinator.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ResolveArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// The transaction, as `skep transaction list` prints it
    #[arg(value_name = "COORDINATOR:NUMBER")]
    transaction: String,
    /// Carry out the prepared changes
    #[arg(long, required_unless_present = "is_abort", conflicts_with = "is_abort")]
    commit: bool,
    /// Discard the prepared changes
    #[arg(long = "abort")]
    is_abort: bool,
}

/// The JSON output: a transaction that the administrator has committed or aborted.
#[derive(Debug, Serialize)]
struct Resolution {
    transaction: String,
    is_committed: bool,
    groups: Vec<u32>,
}

pub(crate) fn run(args: ResolveArgs) -> Result<()> {
    let ResolveArgs { query, transaction, commit, .. } = args;
    let transaction = parse(&transaction)?;
    let access = query.access(None)?;
    let resolution = crate::cmd::block_on(async move {
        let groups = Groups::of(&access).await?;
        let mut found = Vec::new();
        for group in groups.ids() {
            let prepared = groups.prepared(group).await?;
            found.extend(prepared.iter().any(|it| it.transaction == transaction).then_some(group));
        }
        if found.is_empty() {
            let what = format!(
                "cannot resolve transaction {}: no metadata target has prepared this transaction; \
                 `skep transaction list` lists the transactions",
                name(transaction)
            );
            return Err(Error::new(ErrorCode::NotFound, what));
        }
        for group in &found {
            let request = ResolveTransaction { transaction, commit };
            groups.router.call(*group, &request, options()).await?;
        }
        let groups = found.iter().map(|group| group.raw()).collect();
        Ok(Resolution { transaction: name(transaction), is_committed: commit, groups })
    })?;
    print(&resolution, |it| {
        let how = if it.is_committed { "committed" } else { "aborted" };
        let groups: Vec<_> = it.groups.iter().map(u32::to_string).collect();
        format!("Transaction {} is {how} at metadata group {}.", it.transaction, groups.join(", "))
    })
}

fn parse(text: &str) -> Result<TransactionId> {
    let parts = text.split_once(':');
    let numbers =
        parts.and_then(|(group, number)| Some((group.parse().ok()?, number.parse().ok()?)));
    let (group, number) = numbers.ok_or_else(|| {
        let what = format!("invalid transaction '{text}': expected COORDINATOR:NUMBER, as in 3:77");
        Error::new(ErrorCode::InvalidArgument, what)
    })?;
    Ok(TransactionId { coordinator: GroupId::new(group), number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_transaction_ids_can_be_parsed() {
        let id = TransactionId { coordinator: GroupId::new(3), number: 77 };
        assert_eq!(parse(&name(id)), Ok(id));
        for wrong in ["", "3", "3:", ":7", "3:x", "-1:7"] {
            assert_eq!(parse(wrong).unwrap_err().code(), ErrorCode::InvalidArgument, "{wrong}");
        }
    }
}

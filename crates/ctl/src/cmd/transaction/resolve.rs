//! `skep transaction resolve`: commits or aborts a transaction in place of its coordinator.

use super::{Groups, Transactions, name, options};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_types::{Error, ErrorCode, GroupId, Result};
use skep_wire::metadata::{ResolveTransaction, TransactionId};
use std::fmt::Write;

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
///
/// The command cannot end an `undecided` or `unconfirmed` transaction. Such a transaction ends when
/// the group for which it waits is back, also if you restore this group from a backup.
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
    /// The metadata groups that have not replied, so the transaction may still be prepared there.
    unasked: Vec<u32>,
}

pub(crate) fn run(args: ResolveArgs) -> Result<()> {
    let ResolveArgs { query, transaction, commit, .. } = args;
    let transaction = parse(&transaction)?;
    let access = query.access(None)?;
    let resolution = crate::cmd::block_on(async move {
        let groups = Groups::of(&access).await?;
        let all = groups.transactions().await;
        let found = found_at(&all, transaction)?;
        for group in &found {
            let request = ResolveTransaction { transaction, commit };
            groups.router.call(*group, &request, options()).await?;
        }
        // The coordinator itself has prepared nothing of its transaction.
        let unasked = all.silent.iter().map(|(group, _)| *group);
        let unasked = unasked.filter(|group| *group != transaction.coordinator);
        let unasked = unasked.map(|group| group.raw()).collect();
        let groups = found.iter().map(|group| group.raw()).collect();
        Ok(Resolution { transaction: name(transaction), is_committed: commit, groups, unasked })
    })?;
    print(&resolution, |it| {
        let how = if it.is_committed { "committed" } else { "aborted" };
        let groups: Vec<_> = it.groups.iter().map(u32::to_string).collect();
        let mut text = format!(
            "Transaction {} is {how} at metadata group {}.",
            it.transaction,
            groups.join(", ")
        );
        for group in &it.unasked {
            let _ = write!(
                text,
                " Metadata group {group} does not reply: if it returns, repeat the command."
            );
        }
        text
    })
}

/// Returns the groups at which a transaction is prepared. These groups must resolve it.
///
/// A coordinator cannot resolve its transaction. Before the participant has confirmed its part, a
/// commit could leave a name without its inode, and an abort could undo an acknowledged change.
///
/// # Errors
/// - `InUse` if no group has prepared the transaction, and its coordinator waits for a participant.
/// - `NotFound` if no group has the transaction.
/// - If a group has not replied, the error of this group in place of `NotFound`.
fn found_at(all: &Transactions, transaction: TransactionId) -> Result<Vec<GroupId>> {
    let prepared = all.prepared.iter().filter(|(_, it)| it.transaction == transaction);
    let found: Vec<_> = prepared.map(|(group, _)| *group).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    if let Some(entry) = all.coordinated.iter().find(|it| it.transaction == transaction) {
        let groups: Vec<_> = entry.participants.iter().map(|it| it.raw().to_string()).collect();
        let groups = groups.join(", ");
        let what = format!(
            "cannot resolve transaction {}: its coordinator waits for metadata group {groups}, and \
             a decision without this group could leave a name without its inode; start the service \
             of this group, or restore the group from a backup",
            name(transaction)
        );
        return Err(Error::new(ErrorCode::InUse, what));
    }
    if let Some((_, error)) = all.silent.first() {
        return Err(error.clone());
    }
    let what = format!(
        "cannot resolve transaction {}: no metadata target has prepared this transaction; `skep \
         transaction list` lists the transactions",
        name(transaction)
    );
    Err(Error::new(ErrorCode::NotFound, what))
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
    use skep_types::codec::Bytes;
    use skep_types::{InodeId, Timestamp};
    use skep_wire::metadata::{CoordinatedEntry, TransactionEntry};

    /// Hole H241 in `docs/tests/holes.md`. The coordinator of the transaction is lost, so it does
    /// not reply.
    #[test]
    fn transaction_is_found_although_its_coordinator_is_silent() {
        let transaction = TransactionId { coordinator: GroupId::new(3), number: 77 };
        let entry = TransactionEntry {
            transaction,
            since: Timestamp::default(),
            steps: 1,
            silent_ms: 20_000,
            problem: String::new(),
        };
        let silent = vec![(GroupId::new(3), Error::new(ErrorCode::TimedOut, "no reply"))];
        let mut all = Transactions { silent, ..Transactions::default() };
        assert_eq!(found_at(&all, transaction).unwrap_err().code(), ErrorCode::TimedOut);
        all.prepared.push((GroupId::new(1), entry));
        assert_eq!(found_at(&all, transaction), Ok(vec![GroupId::new(1)]));
    }

    #[test]
    fn undecided_transaction_is_not_resolved_by_its_coordinator() {
        let transaction = TransactionId { coordinator: GroupId::new(3), number: 77 };
        let entry = CoordinatedEntry {
            transaction,
            participants: vec![GroupId::new(1)],
            waits_ms: 20_000,
            directory: Some(InodeId::ROOT),
            name: Bytes::from(b"a".as_slice()),
        };
        let all = Transactions { coordinated: vec![entry], ..Transactions::default() };
        let refused = found_at(&all, transaction).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InUse);
        assert!(refused.context().contains("waits for metadata group 1"), "{refused}");
    }

    #[test]
    fn listed_transaction_ids_can_be_parsed() {
        let id = TransactionId { coordinator: GroupId::new(3), number: 77 };
        assert_eq!(parse(&name(id)), Ok(id));
        for wrong in ["", "3", "3:", ":7", "3:x", "-1:7"] {
            assert_eq!(parse(wrong).unwrap_err().code(), ErrorCode::InvalidArgument, "{wrong}");
        }
    }
}

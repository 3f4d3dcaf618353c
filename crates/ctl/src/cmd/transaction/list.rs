//! `skep transaction list`: lists the transactions that wait for another metadata group, at their
//! participants and at their coordinators.

use super::{Groups, name};
use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, span, table, utc};
use serde::Serialize;
use skep_types::{GroupId, Result, Timestamp};
use skep_wire::metadata::{CoordinatedEntry, TransactionEntry};

const EXAMPLES: &[Example] =
    &[("list all transactions that wait for another metadata group", "skep transaction list")];

/// Time in milliseconds after which the list shows a transaction at its coordinator. Each
/// transaction waits for its participants for some milliseconds.
const SHOWN_AFTER_MS: u64 = 1_000;

/// List the transactions that wait for another metadata group
///
/// A transaction between metadata groups, such as a rename between two metadata targets, takes
/// milliseconds. A participant has `prepared` a transaction until it has carried out the decision
/// of the coordinator. A transaction stays in this state if its coordinator does not reply or its
/// decision cannot be carried out. The list also shows transactions for whose participants a
/// coordinator has waited for more than a second. An `undecided` transaction depends on a
/// participant. An `unconfirmed` transaction is committed, but a participant has not confirmed
/// it. The names and inodes of prepared and undecided transactions stay locked.
///
/// If a metadata group does not reply, the command lists the transactions of all other groups, and
/// fails. It also fails if the service of a group has an earlier version, which cannot list the
/// transactions that the group coordinates.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// A transaction at a metadata group, as one entry of the list.
#[derive(Debug, Serialize)]
struct TransactionReport {
    transaction: String,
    group: u32,
    /// `prepared` at a participant, `undecided` or `unconfirmed` at the coordinator.
    state: &'static str,
    coordinator: u32,
    /// The groups for which the transaction waits.
    waits_for: Vec<u32>,
    since: String,
    /// Number of prepared steps. Zero at the coordinator.
    steps: u32,
    /// Time for which the transaction's coordinator has not replied, in milliseconds. Zero if the
    /// coordinator replies.
    coordinator_silent_ms: u64,
    /// The directory of the name that an undecided transaction locks.
    directory: Option<String>,
    /// The name that an undecided transaction locks.
    name: Option<String>,
    /// The reason why the target could not carry out the decision. Empty if the target has not
    /// tried to carry out a decision.
    problem: String,
}

pub(crate) fn run(args: ListArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let all = crate::cmd::block_on(async move {
        let groups = Groups::of(&access).await?;
        Ok(groups.transactions().await)
    })?;
    let now = skep_env::wall_time();
    let mut lines: Vec<_> = all.prepared.iter().map(|(group, it)| prepared(*group, it)).collect();
    let waiting = all.coordinated.iter().filter(|it| it.waits_ms > SHOWN_AFTER_MS);
    lines.extend(waiting.map(|entry| coordinated(entry, now)));
    print(&lines, |lines| as_table(lines))?;
    all.check_complete()
}

fn prepared(group: GroupId, entry: &TransactionEntry) -> TransactionReport {
    let coordinator = entry.transaction.coordinator.raw();
    TransactionReport {
        transaction: name(entry.transaction),
        group: group.raw(),
        state: "prepared",
        coordinator,
        waits_for: vec![coordinator],
        since: utc(entry.since),
        steps: entry.steps,
        coordinator_silent_ms: entry.silent_ms,
        directory: None,
        name: None,
        problem: entry.problem.clone(),
    }
}

fn coordinated(entry: &CoordinatedEntry, now: Timestamp) -> TransactionReport {
    let CoordinatedEntry { transaction, participants, waits_ms, directory, .. } = entry;
    let seconds = now.seconds.saturating_sub_unsigned(waits_ms / 1_000);
    TransactionReport {
        transaction: name(*transaction),
        group: transaction.coordinator.raw(),
        state: if directory.is_some() { "undecided" } else { "unconfirmed" },
        coordinator: transaction.coordinator.raw(),
        waits_for: participants.iter().map(|group| group.raw()).collect(),
        since: utc(Timestamp { seconds, nanoseconds: 0 }),
        steps: 0,
        coordinator_silent_ms: 0,
        directory: directory.map(|directory| directory.to_string()),
        name: directory.map(|_| String::from_utf8_lossy(&entry.name).into_owned()),
        problem: String::new(),
    }
}

fn as_table(lines: &[TransactionReport]) -> String {
    let titles = [
        "TRANSACTION",
        "AT GROUP",
        "STATE",
        "WAITS FOR",
        "SINCE",
        ">STEPS",
        ">NO REPLY FOR",
        "DIRECTORY",
        "NAME",
        "PROBLEM",
    ];
    let mut shown = table(&titles);
    for line in lines {
        let groups: Vec<_> = line.waits_for.iter().map(u32::to_string).collect();
        shown.add_row([
            line.transaction.clone(),
            line.group.to_string(),
            line.state.to_owned(),
            groups.join(", "),
            line.since.clone(),
            line.steps.to_string(),
            span(line.coordinator_silent_ms),
            line.directory.clone().unwrap_or_default(),
            line.name.clone().unwrap_or_default(),
            line.problem.clone(),
        ]);
    }
    render(&shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::InodeId;
    use skep_types::codec::Bytes;
    use skep_wire::metadata::TransactionId;

    #[test]
    fn coordinator_rows_name_the_locked_name_and_the_silent_group() {
        let entry = CoordinatedEntry {
            transaction: TransactionId { coordinator: GroupId::new(1), number: 77 },
            participants: vec![GroupId::new(3)],
            waits_ms: 61_500,
            directory: Some(InodeId::ROOT),
            name: Bytes::from(b"a".as_slice()),
        };
        let now = Timestamp { seconds: 100, nanoseconds: 0 };
        let line = coordinated(&entry, now);
        assert_eq!((line.transaction.as_str(), line.state), ("1:77", "undecided"));
        assert_eq!((&line.waits_for[..], line.name.as_deref()), (&[3][..], Some("a")));
        assert_eq!(line.since, utc(Timestamp { seconds: 39, nanoseconds: 0 }));
        let committed = CoordinatedEntry { directory: None, name: Bytes::default(), ..entry };
        let line = coordinated(&committed, now);
        assert_eq!((line.state, line.name), ("unconfirmed", None));
    }
}

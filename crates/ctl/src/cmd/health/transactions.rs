//! The transactions in the report of `skep health check`: those for which a coordinator has waited
//! for a minute, because a participant has not confirmed them.

use super::problem::{Problem, Since};
use crate::access::Access;
use crate::cmd::transaction::{Groups, coordinated};
use crate::output::span;
use skep_env::Task;
use skep_types::text::escape_controls;
use skep_types::{ClusterMap, GroupId};
use skep_wire::metadata::CoordinatedEntry;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time limit for all replies of a metadata group.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time after which a transaction counts as a problem. A restart or a take-over of a metadata
/// target takes less time.
const REPORTED_AFTER_MS: u64 = 60_000;

/// Starts to ask all metadata groups, at the same time, for the transactions that wait for another
/// group. The task returns the problems. It leaves out groups that do not reply, because other
/// problems name them, and services of earlier versions, which do not know the request.
pub(super) fn begin(access: &Access, map: &ClusterMap) -> Task<Vec<Problem>> {
    let groups = Groups::of_map(access, map.clone());
    skep_env::spawn(async move {
        let replies = groups.of_each(PATIENCE, coordinated).await;
        let listed = replies.into_iter().filter_map(|(_, listed)| listed.ok());
        let found: Vec<_> = listed.flatten().collect();
        problems_of(&found)
    })
}

/// Returns one problem for each coordinator and each group for which the coordinator waits.
fn problems_of(found: &[CoordinatedEntry]) -> Vec<Problem> {
    let mut waiting: BTreeMap<(GroupId, GroupId), Vec<&CoordinatedEntry>> = BTreeMap::new();
    for entry in found.iter().filter(|it| it.waits_ms >= REPORTED_AFTER_MS) {
        for participant in &entry.participants {
            let pair = (entry.transaction.coordinator, *participant);
            waiting.entry(pair).or_default().push(entry);
        }
    }
    waiting.into_iter().map(|(pair, entries)| problem(pair, &entries)).collect()
}

fn problem((coordinator, group): (GroupId, GroupId), entries: &[&CoordinatedEntry]) -> Problem {
    let (coordinator, group) = (coordinator.raw(), group.raw());
    let oldest = entries.iter().map(|it| it.waits_ms).max().unwrap_or_default();
    let locked: Vec<_> = entries.iter().filter_map(|it| Some((it.directory?, it))).collect();
    let count = match entries.len() {
        1 => format!("1 transaction of metadata group {coordinator} waits"),
        count => format!("{count} transactions of metadata group {coordinator} wait"),
    };
    let (effect, hint) = match locked.first() {
        None => ("all of them are committed and lock no name".to_owned(), "no program waits"),
        Some((directory, entry)) => {
            let name = String::from_utf8_lossy(&entry.name);
            let name = escape_controls(&name);
            let more = match locked.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more names"),
            };
            (
                format!(
                    "programs that use these names wait: '{name}' in directory {directory}{more}"
                ),
                "`skep entry path INODE` prints the path of a directory",
            )
        }
    };
    Problem {
        key: format!("transaction-waits {coordinator} {group}"),
        rule: "transaction-waits",
        what: format!(
            "{count} for the confirmation of metadata group {group}, and the oldest has waited {}; \
             {effect}",
            span(oldest)
        ),
        remedy: format!(
            "start the service of metadata group {group}: the transactions end when this group \
             replies, also if its disks are lost and you restore it from a backup. `skep \
             transaction list` lists the transactions; {hint}"
        ),
        since: Some(Since::before(skep_env::wall_time(), oldest)),
        ..Problem::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::InodeId;
    use skep_types::codec::Bytes;
    use skep_wire::metadata::TransactionId;

    fn entry(number: u64, waits_ms: u64, name: &str) -> CoordinatedEntry {
        CoordinatedEntry {
            transaction: TransactionId { coordinator: GroupId::new(1), number },
            participants: vec![GroupId::new(3)],
            waits_ms,
            directory: (!name.is_empty()).then_some(InodeId::ROOT),
            name: Bytes::from(name.as_bytes()),
        }
    }

    /// Hole H242 in `docs/tests/holes.md`.
    #[test]
    fn transaction_that_waits_for_a_minute_is_a_problem() {
        assert!(problems_of(&[entry(7, 59_999, "a")]).is_empty());
        let found = problems_of(&[entry(6, 61_000, ""), entry(7, 90_000, "a"), entry(8, 0, "b")]);
        let [problem] = &found[..] else { panic!("{found:?}") };
        for words in ["2 transactions of metadata group 1", "metadata group 3", "'a' in directory"]
        {
            assert!(problem.what.contains(words), "{}", problem.what);
        }
        assert!(problem.remedy.contains("`skep entry path INODE`"), "{}", problem.remedy);
        let found = problems_of(&[entry(6, 61_000, "")]);
        assert!(found[0].what.contains("lock no name"), "{}", found[0].what);
        let found = problems_of(&[entry(7, 61_000, "a\nb")]);
        assert!(found[0].what.contains("'a\\nb' in directory"), "{}", found[0].what);
    }
}

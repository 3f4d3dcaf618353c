//! Load of metadata targets that one user or one directory causes.
//!
//! A metadata target has one thread. While this thread works for most of the time, requests wait
//! for it. The evidence has the time in which the thread handles batches; receiving and sending
//! take about twice as long. If one user sends most of the requests, the user is named, otherwise
//! the directory with most of the requests. Never both: the user's requests may all be for one
//! directory.

use super::cause::Cause;
use super::comparison::median;
use super::evidence::TargetEvidence;
use super::names;
use crate::change::LEFT_OUT;
use skep_cluster::problems::Severity;
use skep_types::{ClusterMap, InodeId};
use std::collections::BTreeMap;

/// Share of the time in percent in which the thread handles batches, from which on requests wait
/// notably: the thread then works for about half of the time, and a request waits as long as the
/// thread works on it. On a host of two processors that many clients keep busy, 21 was measured.
const BUSY_PERCENT: u64 = 15;
/// Fewest requests in a second. With fewer, each of them is slow, and their number is no cause.
const FEWEST_PER_SECOND: u64 = 1_000;
/// Share of the requests in percent that one user or one directory must have.
const MOST_PERCENT: u64 = 60;
/// Share of the requests in percent that must be about names in directories, before a directory can
/// be the cause.
const NAMES_PERCENT: u64 = 25;

/// Returns the users and directories that keep metadata targets busy.
pub(super) fn heavy_load(targets: &BTreeMap<u32, &TargetEvidence>, map: &ClusterMap) -> Vec<Cause> {
    targets.iter().filter_map(|(id, target)| load_of(targets, (*id, target), map)).collect()
}

/// Returns the entry with the highest count, if it has most of `all`.
fn most(counts: &BTreeMap<String, u64>, all: u64) -> Option<(&str, u64)> {
    let named = counts.iter().filter(|(id, _)| *id != LEFT_OUT);
    let (id, count) = named.max_by_key(|(_, count)| **count)?;
    (names::percent(*count, all) >= MOST_PERCENT).then_some((id, *count))
}

fn load_of(
    targets: &BTreeMap<u32, &TargetEvidence>,
    (id, target): (u32, &TargetEvidence),
    map: &ClusterMap,
) -> Option<Cause> {
    let busy = names::percent(target.batch_ns, target.span_ns);
    let requests = target.all().requests;
    let per_second = |count: u64| count.saturating_mul(1_000_000_000) / target.span_ns.max(1);
    if busy < BUSY_PERCENT || per_second(requests) < FEWEST_PER_SECOND {
        return None;
    }
    let peers = targets.iter().filter(|(other, _)| **other != id);
    let peers = peers.map(|(_, peer)| names::percent(peer.batch_ns, peer.span_ns)).collect();
    let compared = median(peers).map_or_else(String::new, |it| format!(" (its peers: {it} %)"));
    let works =
        format!("{} handles requests {busy} % of the time{compared}", names::target(map, id));
    // Requests for attributes name no directory, and programs send them for the names that they
    // use.
    let about_names =
        target.directories.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let directory = most(&target.directories, about_names)
        .filter(|_| names::percent(about_names, requests) >= NAMES_PERCENT);
    let path_of = |directory: &str| match directory.parse().map(InodeId::new) {
        Ok(inode) => format!("the directory with entry id {inode}"),
        Err(_) => "a directory".to_owned(),
    };
    if let Some((user, count)) = most(&target.users, requests) {
        let place = directory.map(|(it, _)| format!(", most in {}", path_of(it)));
        return Some(Cause {
            rule: "user-storm",
            severity: Severity::Warning,
            object: format!("user {user}"),
            targets: vec![id],
            client: None,
            what: format!(
                "user {user} sends {} of {} metadata requests each second{}; {works}",
                per_second(count),
                per_second(requests),
                place.unwrap_or_default()
            ),
            remedy: "other users wait behind them; `skep stats --by job` and `--by client` show \
                     where they come from"
                .into(),
        });
    }
    let (directory, count) = directory?;
    let name = path_of(directory);
    Some(Cause {
        rule: "directory-hot",
        severity: Severity::Warning,
        object: format!("directory {directory}"),
        targets: vec![id],
        client: None,
        what: format!(
            "{name} gets {} of {} requests about names each second; {works}",
            per_second(count),
            per_second(about_names)
        ),
        remedy: "one target serves a directory; spread the files over several directories; `skep \
                 entry path ID` prints its path"
            .into(),
    })
}

//! Finds load of metadata targets that one user or one directory causes.
//!
//! A metadata target has one thread, so its requests wait for each other. The rule finds a cause of
//! slowness only if two conditions hold. The thread is seldom idle. And requests stay in the queue
//! and in the batches of the thread for longer than the thread works on a request. Both conditions
//! compare times of the same host, so they are valid for fast and slow hosts. If one user sends
//! most of the requests, the rule tests only the requests of other users, and names the user.
//! Otherwise it names the directory with most of the requests. The rule never names both a user and
//! a directory, since all requests of the user may be for one directory.

use super::cause::Cause;
use super::evidence::{TargetEvidence, Times};
use super::median::median;
use super::names;
use crate::change::LEFT_OUT;
use skep_cluster::problems::Severity;
use skep_types::{ClusterMap, InodeId};
use std::collections::BTreeMap;

/// Minimum busy share of the thread, in percent. At this share, the waiting time of a request
/// equals the time that the thread works on the request. This follows from the theory of queues
/// with one server. If the busy share is `r`, the waiting time of a request that arrives at random
/// is `r / (1 - r)` times its service time.
const BUSY_PERCENT: u64 = 50;
/// Minimum number of requests of a target before the rule judges the target.
const FEWEST_REQUESTS: u64 = 100;
/// Minimum number of requests whose waiting time the rule tests, such as the requests of other
/// users.
const FEWEST_OF_OTHERS: u64 = 3;
/// Minimum share of the requests, in percent, that a user or a directory must have to be the cause.
const MOST_PERCENT: u64 = 60;
/// Minimum share of the requests, in percent, that must be about names in directories before a
/// directory can be the cause.
const NAMES_PERCENT: u64 = 25;

/// Returns the users and directories whose load keeps metadata targets busy.
pub(super) fn heavy_load(targets: &BTreeMap<u32, &TargetEvidence>, map: &ClusterMap) -> Vec<Cause> {
    targets.iter().filter_map(|(id, target)| load_of(targets, (*id, target), map)).collect()
}

/// Returns the entry with the highest count. `None` means that its share of `all` is below
/// [`MOST_PERCENT`].
fn most<'a>(counts: impl Iterator<Item = (&'a String, u64)>, all: u64) -> Option<(&'a str, u64)> {
    let named = counts.filter(|(id, _)| *id != LEFT_OUT);
    let (id, count) = named.max_by_key(|(_, count)| *count)?;
    (names::percent(count, all) >= MOST_PERCENT).then_some((id, count))
}

/// Whether, on average, requests stay in the queue and in the batches of the thread for at least as
/// long as the thread works on a request.
fn wait(requests: &Times, target: &TargetEvidence, all: u64) -> bool {
    let work_ns = target.working_ns / all.max(1);
    let held = requests.held_ns().checked_div(requests.requests);
    requests.requests >= FEWEST_OF_OTHERS && held.is_some_and(|held| held >= work_ns)
}

/// Returns the requests of all users except `user`.
fn of_others(target: &TargetEvidence, user: &str) -> Times {
    let others = target.users.iter().filter(|(id, _)| *id != user);
    others.fold(Times::default(), |mut sum, (_, requests)| {
        sum.add(requests);
        sum
    })
}

fn load_of(
    targets: &BTreeMap<u32, &TargetEvidence>,
    (id, target): (u32, &TargetEvidence),
    map: &ClusterMap,
) -> Option<Cause> {
    let busy = names::percent(target.working_ns, target.span_ns);
    let all = target.all();
    if busy < BUSY_PERCENT || all.requests < FEWEST_REQUESTS {
        return None;
    }
    let peers = targets.iter().filter(|(other, _)| **other != id);
    let peers = peers.map(|(_, peer)| names::percent(peer.working_ns, peer.span_ns)).collect();
    let compared = median(peers).map_or_else(String::new, |it| format!(" (its peers: {it} %)"));
    let load = Load {
        id,
        target,
        requests: all.requests,
        works: format!("{} works {busy} % of the time{compared}", names::target(map, id)),
    };
    let users = target.users.iter().map(|(user, requests)| (user, requests.requests));
    if let Some((user, count)) = most(users, load.requests) {
        let others = of_others(target, user);
        return wait(&others, target, load.requests).then(|| load.of_user(user, count));
    }
    let (directory, count) = load.directory()?;
    wait(&all, target, load.requests).then(|| load.of_directory(directory, count))
}

/// The load of a busy target.
struct Load<'a> {
    id: u32,
    target: &'a TargetEvidence,
    requests: u64,
    /// A text with the name of the target and its busy share.
    works: String,
}

/// Formats the name of a directory for users.
fn path_of(directory: &str) -> String {
    match directory.parse().map(InodeId::new) {
        Ok(inode) => format!("the directory with entry id {inode}"),
        Err(_) => "a directory".to_owned(),
    }
}

impl Load<'_> {
    fn per_second(&self, count: u64) -> u64 {
        count.saturating_mul(1_000_000_000) / self.target.span_ns.max(1)
    }

    /// Returns the number of requests about names. Requests for attributes do not count, because
    /// they name no directory. Programs send such requests in addition to the requests about names.
    fn about_names(&self) -> u64 {
        self.target.directories.values().fold(0_u64, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the directory with most of the requests about names, and its number of requests.
    fn directory(&self) -> Option<(&str, u64)> {
        let about_names = self.about_names();
        let counts = self.target.directories.iter().map(|(id, count)| (id, *count));
        most(counts, about_names)
            .filter(|_| names::percent(about_names, self.requests) >= NAMES_PERCENT)
    }

    fn of_user(&self, user: &str, count: u64) -> Cause {
        let place = self.directory().map(|(it, _)| format!(", most in {}", path_of(it)));
        Cause {
            rule: "user-storm",
            severity: Severity::Warning,
            object: format!("user {user}"),
            targets: vec![self.id],
            client: None,
            is_over: false,
            what: format!(
                "user {user} sends {} of {} metadata requests each second{}; {}",
                self.per_second(count),
                self.per_second(self.requests),
                place.unwrap_or_default(),
                self.works
            ),
            remedy: "`skep stats --by job` and `--by client` show the sources of these requests; \
                     requests of other users wait behind them"
                .into(),
        }
    }

    fn of_directory(&self, directory: &str, count: u64) -> Cause {
        Cause {
            rule: "directory-hot",
            severity: Severity::Warning,
            object: format!("directory {directory}"),
            targets: vec![self.id],
            client: None,
            is_over: false,
            what: format!(
                "{} gets {} of {} requests about names each second; {}",
                path_of(directory),
                self.per_second(count),
                self.per_second(self.about_names()),
                self.works
            ),
            remedy: "spread the files over several directories, because one target serves all \
                     names of a directory; `skep entry path ID` prints the path of the directory"
                .into(),
        }
    }
}

//! The causes of the load of some targets in the last minutes: the clients, users, jobs and
//! directories with the most requests to these targets.
//!
//! The module is pure. The history has the causes of load only for all targets together. The
//! evidence of the last ten minutes has the heaviest causes for each target.

use crate::frame::Dimension;
use crate::names::Names;
use crate::series::rounded;
use serde_json::{Value, json};
use skep_stats::LEFT_OUT;
use skep_stats::why::{Evidence, Times};
use skep_types::{ClusterMap, InodeId};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of rows of each kind in a reply.
const MAX_ROWS: usize = 16;

/// The load of each cause at some targets.
#[derive(Debug, Default)]
struct Sums {
    clients: BTreeMap<String, Times>,
    users: BTreeMap<String, Times>,
    jobs: BTreeMap<String, Times>,
    /// The number of requests about names in each directory.
    directories: BTreeMap<String, u64>,
}

impl Sums {
    /// Adds up the evidence of some targets. `None` means all targets.
    fn of(evidence: &Evidence, targets: Option<&[u32]>) -> Self {
        let mut sums = Self::default();
        let is_meant = |id: &u32| targets.is_none_or(|targets| targets.contains(id));
        for (_, target) in evidence.targets.iter().filter(|(id, _)| is_meant(id)) {
            for (id, link) in &target.clients {
                sums.clients.entry(id.clone()).or_default().add(&link.times);
            }
            for (own, all) in [(&mut sums.users, &target.users), (&mut sums.jobs, &target.jobs)] {
                for (id, times) in all {
                    own.entry(id.clone()).or_default().add(times);
                }
            }
            for (id, count) in &target.directories {
                let sum = sums.directories.entry(id.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        sums
    }
}

/// Returns the causes of the load of some targets, the heaviest first. `None` means all targets.
/// The id `other` stands for all causes that the evidence does not name.
pub(crate) fn causes(
    evidence: &Evidence,
    targets: Option<&[u32]>,
    (names, map): (&Names, Option<&ClusterMap>),
) -> Value {
    let sums = Sums::of(evidence, targets);
    let seconds = (evidence.span_ns as f64 / 1e9).max(1e-9);
    let of_times = |all: &BTreeMap<String, Times>, dimension: Dimension| {
        let loads = all.iter().map(|(id, times)| (id.as_str(), times.requests, times.all_ns()));
        rows(loads, seconds, |id| names.name(dimension, id, map))
    };
    let directories = sums.directories.iter().map(|(id, count)| (id.as_str(), *count, *count));
    json!({
        "span_seconds": evidence.span_ns as f64 / 1e9,
        "clients": of_times(&sums.clients, Dimension::Client),
        "users": of_times(&sums.users, Dimension::User),
        "jobs": of_times(&sums.jobs, Dimension::Job),
        "directories": rows(directories, seconds, entry_id),
    })
}

/// Returns the rows of the heaviest causes. Each load consists of an id, a number of requests, and
/// a weight, which is the time of the requests or their number.
fn rows<'a>(
    loads: impl Iterator<Item = (&'a str, u64, u64)>,
    seconds: f64,
    name: impl Fn(&str) -> String,
) -> Vec<Value> {
    let is_idle = |requests: u64, weight: u64| requests == 0 && weight == 0;
    let mut loads: Vec<_> =
        loads.filter(|(_, requests, weight)| !is_idle(*requests, *weight)).collect();
    let all = loads.iter().fold(0_u64, |sum, (.., weight)| sum.saturating_add(*weight));
    // The causes that the evidence does not name are one row at the end.
    loads.sort_by_key(|(id, requests, weight)| (*id == LEFT_OUT, Reverse((*weight, *requests))));
    let rest = loads.iter().position(|(id, ..)| *id == LEFT_OUT).map(|at| loads.remove(at));
    loads.truncate(MAX_ROWS);
    loads.extend(rest);
    let rows = loads.into_iter().map(|(id, requests, weight)| {
        json!({
            "id": id,
            "name": name(id),
            "requests": requests,
            "requests_per_second": rounded(requests as f64 / seconds),
            "share": weight as f64 / all.max(1) as f64,
        })
    });
    rows.collect()
}

/// Returns the entry id of a directory as commands show it, such as `skep entry path`.
fn entry_id(id: &str) -> String {
    id.parse().map(InodeId::new).map_or_else(|_| String::new(), |inode| inode.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::Stage;
    use skep_stats::why::{Link, TargetEvidence};

    fn times(requests: u64, ms: u64) -> Times {
        let mut times = Times { requests, ..Times::default() };
        times.stages_ns[Stage::Disk as usize] = ms * 1_000_000;
        times
    }

    fn evidence() -> Evidence {
        let mut evidence = Evidence { span_ns: 10_000_000_000, ..Evidence::default() };
        for id in [7, 8] {
            let mut target = TargetEvidence::default();
            for user in 0..20_u64 {
                target.users.insert((1000 + user).to_string(), times(10 + user, 1));
            }
            target.users.insert(LEFT_OUT.into(), times(1, 500));
            let link = Link { times: times(100, 80), ..Link::default() };
            target.clients.insert("12".into(), link);
            target.directories = [("5".to_owned(), 30), ("6".to_owned(), 10)].into();
            evidence.targets.insert(id, target);
        }
        evidence
    }

    #[test]
    fn causes_of_the_requested_targets_are_listed_by_load() {
        let names = Names::read();
        let of = |targets: Option<&[u32]>| causes(&evidence(), targets, (&names, None));
        let one = of(Some(&[7]));
        assert_eq!((&one["span_seconds"], &one["jobs"]), (&10.0.into(), &json!([])));
        assert_eq!(one["clients"][0]["requests_per_second"], 10.0);
        assert_eq!(one["clients"][0]["share"], 1.0);
        assert_eq!(of(None)["clients"][0]["requests"], 200);
        assert_eq!(of(Some(&[9]))["clients"], json!([]));
        let users = one["users"].as_array().unwrap();
        assert_eq!(users.len(), MAX_ROWS + 1);
        assert_eq!((&users[0]["id"], &users[MAX_ROWS]["id"]), (&"1019".into(), &LEFT_OUT.into()));
        let share = users[MAX_ROWS]["share"].as_f64().unwrap();
        assert!((share - 500.0 / 520.0).abs() < 1e-9, "the rest counts for the shares: {share}");
    }

    #[test]
    fn directories_have_the_entry_ids_that_commands_accept() {
        let found = causes(&evidence(), Some(&[8]), (&Names::read(), None));
        let first = &found["directories"][0];
        assert_eq!((&first["requests"], &first["share"]), (&30.into(), &0.75.into()));
        assert_eq!(first["name"], InodeId::new(5).to_string());
        assert_eq!(entry_id(LEFT_OUT), "");
    }
}

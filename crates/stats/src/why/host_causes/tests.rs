//! Tests of the rules about hosts with artificial replies of services.

use super::*;
use crate::why::Focus;
use crate::why::tests::{SECOND, map};
use crate::{Round, ServiceFigures};
use skep_types::NodeId;
use skep_wire::node::{Statistics, StatisticsSeries};

/// The state of a host at one moment.
#[derive(Clone, Copy)]
struct State {
    clock_ns: u64,
    is_synchronised: bool,
    dirty_percent: u64,
    stalled_ns: u64,
}

const GOOD: State = State {
    clock_ns: 1_800_000_000 * SECOND,
    is_synchronised: true,
    dirty_percent: 3,
    stalled_ns: 0,
};

/// Returns a map in which each service runs on its own host, with the address `10.0.0.ID`.
fn map_with_addresses() -> ClusterMap {
    let mut map = map();
    for node in &mut map.nodes {
        node.addresses = vec![format!("10.0.0.{}:7420", node.id.raw())];
    }
    map
}

fn reply(node: u32, second: u64, state: State) -> ServiceFigures {
    let series = |metric: &str, labels: &[(&str, &str)], value: u64| StatisticsSeries {
        metric: metric.into(),
        labels: labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        value: i64::try_from(value).unwrap(),
        buckets: Vec::new(),
    };
    let stalled = [("resource", "memory"), ("stalled", "all")];
    let series = vec![
        series("skep_host_clock_seconds", &[], state.clock_ns + second * SECOND),
        series("skep_host_clock_synchronised", &[], u64::from(state.is_synchronised)),
        series("skep_host_memory_dirty_ratio", &[], state.dirty_percent * 10_000),
        series("skep_host_pressure_seconds", &stalled, second * state.stalled_ns),
    ];
    let moment_ns = (node_boot(node) + second) * SECOND;
    let statistics = Statistics { moment_ns, incarnation: 1, page: String::new(), series };
    ServiceFigures { node, name: format!("node-{node}"), statistics }
}

/// Returns the time at which the host of a node booted. The hosts booted at different times.
fn node_boot(node: u32) -> u64 {
    u64::from(node) * 1000
}

/// Returns the evidence of three seconds, with five services. `state` returns the state of the host
/// of a service in a second.
fn evidence(state: impl Fn(u32, u64) -> State) -> Evidence {
    let round = |second| -> Round {
        (1..=5).map(|node| reply(node, second, state(node, second))).collect()
    };
    let mut sum = Evidence::default();
    for second in 1..=3 {
        sum.add(&Evidence::between(&round(second - 1), &round(second), Focus::default()));
    }
    sum
}

fn found(state: impl Fn(u32, u64) -> State) -> Vec<(&'static str, String)> {
    let (evidence, map) = (evidence(state), map_with_addresses());
    let all = slow_hosts(&evidence, &map).into_iter().chain(clock_findings(&evidence, &map));
    all.map(|it| (it.rule, it.object)).collect()
}

fn one(rule: &'static str, object: &str) -> Vec<(&'static str, String)> {
    vec![(rule, object.to_owned())]
}

#[test]
fn healthy_hosts_have_no_finding() {
    assert_eq!(found(|_, _| GOOD), []);
    // Without a time service on any host, only a difference of the clocks is a problem.
    assert_eq!(found(|_, _| State { is_synchronised: false, ..GOOD }), []);
}

#[test]
fn clock_that_differs_in_all_rounds_is_reported() {
    let shifted = |node: u32, shift: i64| match node {
        4 => State { clock_ns: GOOD.clock_ns.saturating_add_signed(shift), ..GOOD },
        _ => GOOD,
    };
    let behind = -7 * SECOND as i64;
    assert_eq!(found(|node, _| shifted(node, behind)), one("clock-differs", "host 10.0.0.4"));
    let what = clock_findings(&evidence(|node, _| shifted(node, behind)), &map_with_addresses());
    let words =
        "the clock of host 10.0.0.4 (storage-2) is 7.0 s behind the clocks of most other hosts";
    assert_eq!(what[0].what, words);
    assert_eq!(found(|node, _| shifted(node, SECOND as i64)), [], "within the time of a reply");
    let late = |node: u32, second: u64| shifted(node, if second == 2 { 0 } else { behind });
    assert_eq!(found(late), [], "replies that are late in some rounds");
}

#[test]
fn each_host_counts_once_in_the_comparison_of_clocks() {
    let mut map = map_with_addresses();
    let addresses = vec!["10.0.0.5:7420".into()];
    let fifth = Node { id: NodeId::new(5), addresses, ..map.nodes[3].clone() };
    map.nodes.push(fifth);
    for index in [1, 2] {
        map.nodes[index].addresses = map.nodes[0].addresses.clone();
    }
    let behind = |node: u32, _: u64| {
        let shift = if node <= 3 { 7 * SECOND } else { 0 };
        State { clock_ns: GOOD.clock_ns - shift, ..GOOD }
    };
    let found = clock_findings(&evidence(behind), &map);
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert!(finding.what.contains("is 7.0 s behind the clocks of most other hosts"), "{finding:?}");
    assert_eq!(finding.object, "host 10.0.0.1");
}

#[test]
fn finding_names_both_hosts_if_their_clocks_differ() {
    let mut map = map_with_addresses();
    for index in [1, 2] {
        map.nodes[index].addresses = map.nodes[0].addresses.clone();
    }
    map.nodes[0].kind = NodeKind::Management;
    let found = |shift: i64, kept: [bool; 2]| {
        let state = move |node: u32, _: u64| match node {
            4 | 5 => State {
                clock_ns: GOOD.clock_ns.saturating_add_signed(shift),
                is_synchronised: kept[1],
                ..GOOD
            },
            _ => State { is_synchronised: kept[0], ..GOOD },
        };
        clock_findings(&evidence(state), &map)
    };
    let ahead = 7 * SECOND as i64;
    for kept in [[true, true], [false, false]] {
        for shift in [ahead, -ahead] {
            let found = found(shift, kept);
            let [finding] = &found[..] else { panic!("{found:?}") };
            let what = &finding.what;
            assert!(what.contains("host 10.0.0.1 (") && what.contains("host 10.0.0.4 ("), "{what}");
            assert!(what.contains(" is 7.0 s behind the clock of "), "{what}");
            let of_fourth = what.starts_with("the clock of host 10.0.0.4 (");
            assert_eq!(of_fourth, shift < 0, "{what}");
            assert!(what.ends_with("; one of these two clocks is wrong"), "{what}");
            assert_eq!(finding.object, "host 10.0.0.4", "the host without management");
            assert!(finding.remedy.contains("`timedatectl`"), "{}", finding.remedy);
        }
    }
    for (kept, suspect) in [([false, true], "host 10.0.0.1"), ([true, false], "host 10.0.0.4")] {
        let found = found(ahead, kept);
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert_eq!((finding.rule, finding.object.as_str()), ("clock-differs", suspect));
        assert!(finding.what.contains("so this clock is probably wrong"), "{}", finding.what);
    }
    assert!(found(SECOND as i64, [true, true]).is_empty(), "within the time of a reply");
    assert_eq!(found(0, [true, false])[0].rule, "clock-unsynchronised");
}

#[test]
fn only_host_without_a_time_service_is_reported() {
    let state = |node: u32, _: u64| State { is_synchronised: node != 2, ..GOOD };
    assert_eq!(found(state), one("clock-unsynchronised", "host 10.0.0.2"));
}

#[test]
fn full_page_cache_is_reported_if_it_stays_full() {
    let full = |node: u32, _: u64| State { dirty_percent: if node == 3 { 86 } else { 10 }, ..GOOD };
    assert_eq!(found(full), one("page-cache-full", "host 10.0.0.3"));
    let short =
        |_: u32, second: u64| State { dirty_percent: if second == 2 { 40 } else { 90 }, ..GOOD };
    assert_eq!(found(short), []);
    let all = |_: u32, _: u64| State { dirty_percent: 95, ..GOOD };
    assert_eq!(found(all), [], "the load fills all page caches alike");
    let cause = &slow_hosts(&evidence(full), &map_with_addresses())[0];
    assert_eq!(cause.targets, [3, 4], "the targets of the host are slow");
}

#[test]
fn memory_pressure_is_reported_if_it_lasts_a_tenth_of_the_time() {
    let stalled = |ms: u64| {
        move |node: u32, _: u64| State {
            stalled_ns: if node == 1 { ms * SECOND / 1000 } else { 0 },
            ..GOOD
        }
    };
    assert_eq!(found(stalled(300)), one("memory-pressure", "host 10.0.0.1"));
    assert_eq!(found(stalled(50)), []);
}

#[test]
fn host_with_several_services_has_one_finding() {
    let mut map = map_with_addresses();
    map.nodes[3].addresses = map.nodes[2].addresses.clone();
    let stalled =
        |node: u32, _: u64| State { stalled_ns: if node >= 3 { SECOND / 2 } else { 0 }, ..GOOD };
    let found = slow_hosts(&evidence(stalled), &map);
    let [cause] = &found[..] else { panic!("{found:?}") };
    assert!(cause.what.contains("host 10.0.0.3 (storage-1, storage-2)"), "{}", cause.what);
    assert_eq!(cause.targets, [3, 4, 5, 6]);
}

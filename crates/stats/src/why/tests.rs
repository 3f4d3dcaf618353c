//! Tests the rules with artificial evidence. For each cause in the evidence, the rules must find
//! this cause and no other cause.

use super::*;
use skep_cluster::problems::Severity;
use skep_metrics::Stage;
use skep_types::map::{CapacityPool, Condition, Reachability, TargetHealth};
use skep_types::{ClusterId, ClusterMap, Node, NodeId, NodeKind, Target, TargetId, TargetKind};

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;
const MIB: u64 = 1 << 20;

fn node(id: u32, kind: NodeKind, name: &str) -> Node {
    Node::online(NodeId::new(id), kind, name)
}

fn target(id: u32, kind: TargetKind, node: u32) -> Target {
    Target {
        reachability: Reachability::Online,
        ..Target::new(TargetId::new(id), kind, NodeId::new(node), "/d")
    }
}

/// Returns a map with metadata targets 1 and 2, and storage targets 3 to 6 on two servers.
pub(crate) fn map() -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::default());
    map.formatted = true;
    map.nodes = vec![
        node(1, NodeKind::Metadata, "metadata-1"),
        node(2, NodeKind::Metadata, "metadata-2"),
        node(3, NodeKind::Storage, "storage-1"),
        node(4, NodeKind::Storage, "storage-2"),
        node(8, NodeKind::Client, "host-a:/mnt"),
        node(9, NodeKind::Client, "host-b:/mnt"),
    ];
    map.targets = vec![
        target(1, TargetKind::Metadata, 1),
        target(2, TargetKind::Metadata, 2),
        target(3, TargetKind::Storage, 3),
        target(4, TargetKind::Storage, 3),
        target(5, TargetKind::Storage, 4),
        target(6, TargetKind::Storage, 4),
    ];
    map
}

pub(super) fn requests(count: u64, each_ns: u64) -> Times {
    times(count, Stage::Waiting, each_ns)
}

pub(super) fn times(requests: u64, stage: Stage, each_ns: u64) -> Times {
    let mut times = Times { requests, ..Times::default() };
    times.stages_ns[stage as usize] = requests * each_ns;
    times
}

/// Returns evidence of ten seconds in which no request is slow.
pub(super) fn healthy() -> Evidence {
    let mut evidence = Evidence { span_ns: 10 * SECOND, ..Evidence::default() };
    for id in 1..=6 {
        let target = evidence.targets.entry(id).or_default();
        target.span_ns = 10 * SECOND;
        if id <= 2 {
            target.kinds.insert("lookup".into(), times(3_000, Stage::Processing, 10_000));
            target.working_ns = SECOND;
            target.log_syncs = (100, 100 * MS);
            let each = requests(1_000, 10_000);
            target.users = [("1001".into(), each.clone()), ("1002".into(), each)].into();
            target.directories = [("77".into(), 2_000), ("78".into(), 300)].into();
        } else {
            target.kinds.insert("write_chunk".into(), times(100, Stage::Disk, MS));
            target.kinds.insert("sync_chunk".into(), times(10, Stage::Disk, 8 * MS));
            for client in ["8", "9"] {
                let times = times(100, Stage::Network, 2 * MS);
                let traffic = Traffic { bytes: 100 * MIB, moving_ns: 200 * MS };
                target.clients.insert(client.into(), Link { times, traffic });
            }
        }
    }
    evidence.intervals = vec![evidence::interval_of(&evidence.targets); 3];
    evidence
}

pub(super) fn found(evidence: &Evidence) -> Vec<(&'static str, String)> {
    let found = causes(evidence, &map(), &Thresholds::default());
    found.into_iter().map(|cause| (cause.rule, cause.object)).collect()
}

pub(super) fn change(evidence: &mut Evidence, target: u32) -> &mut TargetEvidence {
    evidence.targets.get_mut(&target).expect("a target of the map")
}

#[test]
fn healthy_cluster_has_no_cause_of_slowness() {
    assert_eq!(found(&healthy()), []);
    // A target may be twice as slow as its peers by chance, so this is no cause.
    let mut uneven = healthy();
    change(&mut uneven, 4).kinds.insert("write_chunk".into(), times(100, Stage::Disk, 2 * MS));
    assert_eq!(found(&uneven), []);
    // If all targets are equally slow, the reason is the load, so there is no cause.
    let mut loaded = healthy();
    for id in 3..=6 {
        change(&mut loaded, id)
            .kinds
            .insert("write_chunk".into(), times(100, Stage::Disk, 90 * MS));
    }
    assert_eq!(found(&loaded), []);
}

#[test]
fn slow_disk_is_reported_with_the_latency_of_other_targets() {
    let mut evidence = healthy();
    change(&mut evidence, 5).kinds.insert("write_chunk".into(), times(50, Stage::Disk, 40 * MS));
    // While a target's thread waits for its disk, it receives no data of other requests.
    change(&mut evidence, 5).clients.get_mut("8").unwrap().times.stages_ns =
        times(100, Stage::Network, 300 * MS).stages_ns;
    let causes = causes(&evidence, &map(), &Thresholds::default());
    let [cause] = &causes[..] else { panic!("{causes:?}") };
    assert_eq!((cause.rule, cause.object.as_str()), ("target-slow", "t5"));
    assert_eq!(cause.severity, Severity::Warning);
    let words = "storage target t5 on storage-2 takes 35 ms, but 2.2 ms at its peers";
    assert!(cause.what.contains(words), "{}", cause.what);
}

#[test]
fn latencies_are_compared_for_each_kind_of_request() {
    // Target 6 gets many slow syncs, and its peers get mostly fast writes.
    let mut evidence = healthy();
    change(&mut evidence, 6).kinds.insert("sync_chunk".into(), times(500, Stage::Disk, 8 * MS));
    assert_eq!(found(&evidence), []);
}

#[test]
fn target_with_larger_requests_is_not_slow() {
    let sized = |requests, each_bytes, each_ns| Times {
        bytes: requests * each_bytes,
        ..times(requests, Stage::Disk, each_ns)
    };
    let mut evidence = healthy();
    for id in 3..=6 {
        let (bytes, ns) = if id == 4 { (MIB, 20 * MS) } else { (MIB / 16, 2 * MS) };
        change(&mut evidence, id).kinds.insert("write_chunk".into(), sized(100, bytes, ns));
        // Target 4 has slow syncs, but they write back more data than the syncs of its peers.
        let ns = if id == 4 { 100 * MS } else { 8 * MS };
        change(&mut evidence, id).kinds.insert("sync_chunk".into(), times(10, Stage::Disk, ns));
    }
    assert_eq!(found(&evidence), []);
    // Now the requests of target 4 have less data than the requests of its peers, but take ten
    // times as long. This time proves that the disk of target 4 is slow.
    change(&mut evidence, 4).kinds.insert("write_chunk".into(), sized(100, MIB / 64, 20 * MS));
    assert_eq!(found(&evidence), [("target-slow", "t4".to_owned())]);
}

#[test]
fn slow_log_sync_is_reported_even_without_a_target_to_compare() {
    let mut evidence = healthy();
    change(&mut evidence, 2).log_syncs = (50, 50 * 30 * MS);
    assert_eq!(found(&evidence), [("log-sync-slow", "t2".to_owned())]);
    change(&mut evidence, 1).log_syncs = (0, 0);
    assert_eq!(found(&evidence), [], "without another target, 30 ms are not slow");
    change(&mut evidence, 2).log_syncs = (5, 5 * 300 * MS);
    assert_eq!(found(&evidence), [("log-sync-slow", "t2".to_owned())]);
}

/// Sets the traffic of a client with some targets, in the intervals with the given indexes.
fn set_link_in(
    evidence: &mut Evidence,
    intervals: &[usize],
    (targets, client): (&[u32], u32),
    mib: u64,
    ms_per_mib: u64,
) {
    for (interval, target) in intervals.iter().flat_map(|it| targets.iter().map(move |id| (it, id)))
    {
        let traffic = Traffic { bytes: mib * MIB, moving_ns: mib * ms_per_mib * MS };
        evidence.intervals[*interval].insert((*target, client), traffic);
    }
}

fn set_link(evidence: &mut Evidence, targets: &[u32], client: u32, mib: u64, ms_per_mib: u64) {
    set_link_in(evidence, &[0, 1, 2], (targets, client), mib, ms_per_mib);
}

#[test]
fn slow_link_of_a_client_or_of_a_server_is_reported() {
    let mut of_client = healthy();
    set_link(&mut of_client, &[3, 4, 5, 6], 9, 5, 400);
    let causes = causes(&of_client, &map(), &Thresholds::default());
    let [cause] = &causes[..] else { panic!("{causes:?}") };
    assert_eq!((cause.rule, cause.object.as_str()), ("link-slow", "n9"));
    let words = "its data moves at 10.5 MB/s, data of other clients at 2097 MB/s";
    assert!(cause.what.ends_with(words), "{}", cause.what);
    let mut of_server = healthy();
    for client in [8, 9] {
        set_link(&mut of_server, &[5, 6], client, 5, 400);
    }
    assert_eq!(found(&of_server), [("link-slow", "n4".to_owned())]);
}

#[test]
fn short_burst_of_a_client_is_no_slow_link() {
    let mut evidence = healthy();
    set_link_in(&mut evidence, &[1], (&[3, 4, 5, 6], 9), 5, 400);
    assert_eq!(found(&evidence), [], "slow in one of three intervals");
    set_link_in(&mut evidence, &[2], (&[3, 4, 5, 6], 9), 5, 400);
    assert_eq!(found(&evidence), [("link-slow", "n9".to_owned())], "slow in most intervals");
    for interval in &mut evidence.intervals {
        interval.retain(|(_, client), _| *client != 9);
    }
    set_link_in(&mut evidence, &[0], (&[3, 4, 5, 6], 9), 5, 400);
    assert_eq!(found(&evidence), [], "all of its data moved in one interval");
}

#[test]
fn small_metadata_transfers_are_no_sign_of_a_slow_link() {
    let mut evidence = healthy();
    (7..10).for_each(|client| set_link(&mut evidence, &[3, 4, 5, 6], client, 5, 30));
    (7..10).for_each(|client| set_link(&mut evidence, &[1, 2], client, 5, 0));
    assert_eq!(found(&evidence), []);
}

#[test]
fn transfers_to_many_targets_do_not_make_a_client_link_slow() {
    // At each of the four targets, data always moves at a quarter of the link's rate.
    let mut evidence = healthy();
    set_link(&mut evidence, &[3, 4, 5, 6], 8, 20, 36);
    for id in [3, 4, 5, 6] {
        set_link(&mut evidence, &[id], 9, u64::from(id == 3) * 80, 9);
    }
    assert_eq!(found(&evidence), []);
}

#[test]
fn slow_link_of_a_crowded_server_is_not_blamed_on_clients() {
    let mut evidence = healthy();
    for interval in &mut evidence.intervals {
        interval.clear();
    }
    // Two clients share the link of server 3, and three other clients use server 4.
    for client in [8, 9] {
        set_link(&mut evidence, &[3], client, 5, 90);
    }
    for client in [10, 11, 12] {
        set_link(&mut evidence, &[5], client, 50, 9);
    }
    let named = found(&evidence);
    assert!(named.iter().all(|(_, object)| object == "n3"), "no client: {named:?}");
}

#[test]
fn fully_used_link_is_not_reported_as_slow() {
    // One client uses a whole link of 1 Gbit/s, and the other client hardly writes.
    let mut evidence = healthy();
    set_link(&mut evidence, &[3, 4, 5, 6], 8, 300, 35);
    set_link(&mut evidence, &[3, 4, 5, 6], 9, 1, 2);
    assert_eq!(found(&evidence), []);
    // Without another client as a peer, only the absolute rate decides.
    for interval in &mut evidence.intervals {
        interval.retain(|(_, client), _| *client != 9);
    }
    assert_eq!(found(&evidence), []);
    set_link(&mut evidence, &[3, 4, 5, 6], 8, 5, 400);
    assert_eq!(found(&evidence), [("link-slow", "n8".to_owned())]);
}

#[test]
fn report_names_a_busy_user_or_a_busy_directory_but_not_both() {
    let mut storm = healthy();
    let busy = change(&mut storm, 1);
    busy.working_ns = 8 * SECOND;
    busy.kinds.insert("lookup".into(), times(30_000, Stage::Waiting, MS));
    busy.users =
        [("1001".into(), requests(28_000, MS)), ("1002".into(), requests(1_000, MS))].into();
    busy.directories = [("77".into(), 29_000)].into();
    assert_eq!(found(&storm), [("user-storm", "user 1001".to_owned())]);
    let busy = change(&mut storm, 1);
    let half = requests(14_000, MS);
    busy.users = [("1001".into(), half.clone()), ("1002".into(), half)].into();
    assert_eq!(found(&storm), [("directory-hot", "directory 77".to_owned())]);
    change(&mut storm, 1).directories = [("77".into(), 9_000), ("78".into(), 8_000)].into();
    assert_eq!(found(&storm), [], "even load");
    change(&mut storm, 1).directories = [("77".into(), 5_000)].into();
    assert_eq!(found(&storm), [], "most requests are not about names");
    let idle = change(&mut storm, 1);
    idle.users =
        [("1001".into(), requests(28_000, MS)), ("1002".into(), requests(1_000, MS))].into();
    idle.working_ns = 4 * SECOND;
    assert_eq!(found(&storm), [], "a thread that is mostly idle makes no request wait");
}

#[test]
fn busy_thread_is_a_cause_only_if_other_users_wait() {
    let mut evidence = healthy();
    let busy = change(&mut evidence, 1);
    busy.working_ns = 8 * SECOND;
    busy.kinds.insert("lookup".into(), times(30_000, Stage::Waiting, 10_000));
    let storm = requests(28_000, 10_000);
    busy.users = [("1001".into(), storm.clone()), ("1002".into(), requests(1_000, 10_000))].into();
    busy.directories.clear();
    assert_eq!(found(&evidence), [], "each request is handled immediately");
    change(&mut evidence, 1).users = [("1001".into(), requests(28_000, MS))].into();
    assert_eq!(found(&evidence), [], "there are no requests of other users");
    change(&mut evidence, 1).users =
        [("1001".into(), storm), ("1002".into(), requests(1_000, MS))].into();
    assert_eq!(found(&evidence), [("user-storm", "user 1001".to_owned())]);
}

#[test]
fn silent_client_is_reported_while_other_clients_wait() {
    let mut evidence = healthy();
    let holder = Holder { silent_ns: 3 * SECOND, waits: 2, ago_ns: 0 };
    change(&mut evidence, 1).holders.insert(9, holder);
    let causes = causes(&evidence, &map(), &Thresholds::default());
    let [cause] = &causes[..] else { panic!("{causes:?}") };
    assert_eq!((cause.rule, cause.client), ("client-silent", Some(9)));
    let words = "client host-b:/mnt (n9) has sent nothing for 3.0 s; 2 requests of other";
    assert!(cause.what.starts_with(words), "{}", cause.what);
    change(&mut evidence, 1).holders.get_mut(&9).unwrap().waits = 0;
    assert_eq!(found(&evidence), []);
}

#[test]
fn past_silence_of_a_client_is_reported_as_an_ended_cause() {
    let mut sum = healthy();
    let holder = Holder { silent_ns: 3 * SECOND, waits: 2, ago_ns: 0 };
    change(&mut sum, 1).holders.insert(9, holder);
    sum.add(&healthy());
    let causes = causes(&sum, &map(), &Thresholds::default());
    let [cause] = &causes[..] else { panic!("{causes:?}") };
    assert!(cause.is_over, "{cause:?}");
    let words = "client host-b:/mnt (n9) was silent from 13 s to 10 s ago; up to 2 requests of";
    assert!(cause.what.starts_with(words), "{}", cause.what);
    // After a pause, the client is silent again.
    let mut again = healthy();
    change(&mut again, 1).holders.insert(9, Holder { waits: 1, ..holder });
    sum.add(&again);
    assert_eq!(sum.targets[&1].holders[&9], holder);
}

#[test]
fn number_of_reported_silent_clients_is_bounded() {
    let mut sum = Evidence::default();
    for client in 0..40 {
        let mut evidence = healthy();
        let holder = Holder { silent_ns: SECOND, waits: 1, ago_ns: 0 };
        change(&mut evidence, 1).holders.insert(client, holder);
        sum.add(&evidence);
    }
    let holders = &sum.targets[&1].holders;
    assert_eq!(holders.len(), MAX_NAMED);
    assert!(holders.contains_key(&39) && !holders.contains_key(&0), "{holders:?}");
    assert_eq!(sum.intervals.len(), 8, "intervals are merged");
}

#[test]
fn report_splits_the_time_of_the_chosen_scope_into_phases() {
    let mut evidence = healthy();
    change(&mut evidence, 5).kinds.insert("write_chunk".into(), times(50, Stage::Disk, 400 * MS));
    let explain = |scope: &Scope| explain(&evidence, &map(), scope, &Thresholds::default());
    let rules = |report: &Report| -> Vec<String> {
        let found = report.findings.iter().filter(|it| it.rule != "target-waits");
        found.map(|it| it.rule.clone()).collect()
    };
    let all = explain(&Scope::default());
    assert_eq!(all.requests, 2 * 3_000 + 3 * 110 + 60);
    let first = &all.phases[0];
    assert_eq!(first.what, "waiting for the disk of storage target t5 on storage-2");
    assert!(first.share > 0.9, "{first:?}");
    assert!(first.peers_ms.is_some_and(|ms| (2.1..2.2).contains(&ms)), "{first:?}");
    let sum: f64 = all.phases.iter().map(|phase| phase.share).sum();
    assert!((0.9..=1.0001).contains(&sum), "{sum}");
    assert_eq!(rules(&all), ["target-slow"]);
    let others = explain(&Scope { targets: Some(vec![1, 3]), ..Scope::default() });
    assert_eq!(rules(&others), Vec::<String>::new());
    assert!(others.phases.iter().all(|phase| [1, 3].contains(&phase.target)));
}

#[test]
fn problems_in_the_cluster_map_are_findings_of_their_targets() {
    let mut map = map();
    map.targets[2].capacity_pool = CapacityPool::Emergency;
    map.targets[3].health = TargetHealth { condition: Condition::Hung, problem: "no reply".into() };
    let of = |targets| {
        let scope = Scope { targets, ..Scope::default() };
        let report = explain(&healthy(), &map, &scope, &Thresholds::default());
        let found = report.findings.into_iter().filter(|it| it.rule != "target-waits");
        found.map(|it| (it.rule, it.object)).collect::<Vec<_>>()
    };
    let full = ("target-full".to_owned(), "t3".to_owned());
    let hung = ("target-hung".to_owned(), "t4".to_owned());
    assert_eq!(of(None), [full.clone(), hung]);
    assert_eq!(of(Some(vec![3])), [full]);
}

#[test]
fn summed_evidence_is_exact_and_has_a_bounded_size() {
    let mut sum = Evidence::default();
    for second in 0..20_u64 {
        let mut evidence = healthy();
        let target = change(&mut evidence, 3);
        target.clients.clear();
        let traffic = Traffic { bytes: MIB, moving_ns: second };
        let link = Link { times: times(1, Stage::Network, second + 1), traffic };
        target.clients.insert(second.to_string(), link);
        change(&mut evidence, 1).users = [(second.to_string(), requests(second, 1))].into();
        sum.add(&evidence);
    }
    assert_eq!(sum.span_ns, 200 * SECOND);
    let target = &sum.targets[&3];
    assert_eq!(target.clients.len(), MAX_NAMED + 1);
    assert_eq!(target.clients.values().map(|it| it.traffic.bytes).sum::<u64>(), 20 * MIB);
    assert!(target.clients.contains_key("19") && !target.clients.contains_key("0"));
    assert_eq!(sum.targets[&1].users.values().map(|it| it.requests).sum::<u64>(), 190);
    assert_eq!(target.kinds["write_chunk"].requests, 2_000);
}

mod rounds {
    use super::*;
    use crate::{Round, ServiceFigures};
    use skep_wire::node::{Statistics, StatisticsSeries};

    fn series(metric: &str, labels: &[(&str, &str)], value: u64) -> StatisticsSeries {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let value = i64::try_from(value).unwrap();
        let buckets = Vec::new();
        StatisticsSeries { metric: metric.into(), labels: labels.collect(), value, buckets }
    }

    fn round(second: u64, incarnation: u64) -> Round {
        let write = [("target", "3"), ("operation", "write_chunk")];
        let disk = [&write[..], &[("stage", "disk")]].concat();
        let poll = [("target", "3"), ("operation", "wait_notifications"), ("stage", "others")];
        let sync = [("target", "3"), ("operation", "await_log_sync"), ("stage", "others")];
        let account = [("service", "storage"), ("target", "3"), ("by", "client"), ("id", "8")];
        let network = [&account[..], &[("stage", "network")]].concat();
        let of_user = [&account[..2], &[("by", "user"), ("id", "1001")]].concat();
        let held = [&of_user[..], &[("stage", "waiting")]].concat();
        let of_log = series("skep_metadata_log_sync_seconds", &[("target", "1")], second * 10);
        let silent = [("target", "1"), ("client", "9")];
        let series = vec![
            series("skep_storage_operations", &write, second * 5),
            series("skep_storage_stage_seconds", &disk, second * 100),
            series("skep_metadata_stage_seconds", &poll, second * SECOND),
            series("skep_metadata_stage_seconds", &sync, second * SECOND),
            series("skep_load_operations", &account, second * 4),
            series("skep_load_written_bytes", &account, second * 4000),
            series("skep_load_read_bytes", &account, second * 96),
            series("skep_load_stage_seconds", &network, second * 7),
            series("skep_load_moving_seconds", &account, second * 6),
            series("skep_load_operations", &of_user, second * 3),
            series("skep_load_stage_seconds", &held, second * 9),
            series("skep_storage_received_bytes", &write, second * 4000),
            StatisticsSeries { buckets: vec![(3, second)], ..of_log },
            series("skep_metadata_working_seconds", &[("target", "1")], second * MS),
            series("skep_metadata_client_silent_seconds", &silent, 3 * SECOND),
            series("skep_metadata_waits_for_client", &silent, 2),
        ];
        let moment_ns = second * SECOND;
        let statistics = Statistics { moment_ns, incarnation, page: String::new(), series };
        vec![ServiceFigures { node: 3, name: "storage-1".into(), statistics }]
    }

    #[test]
    fn evidence_has_the_change_of_counters_between_two_replies() {
        let evidence = Evidence::between(&round(10, 1), &round(12, 1), Focus::default());
        assert_eq!(evidence.span_ns, 2 * SECOND);
        let storage = &evidence.targets[&3];
        let written = Times { bytes: 8000, ..times(10, Stage::Disk, 20) };
        assert_eq!(storage.all(), written, "polls do not count as load");
        let link = &storage.clients["8"];
        let traffic = Traffic { bytes: 8192, moving_ns: 12 };
        assert_eq!((link.times.requests, link.traffic), (8, traffic));
        assert_eq!(evidence.intervals, [Interval::from([((3, 8), traffic)])]);
        let of_user = &storage.users["1001"];
        assert_eq!((of_user.requests, of_user.held_ns()), (6, 18));
        assert_eq!(link.times.of(Stage::Network), 14);
        let metadata = &evidence.targets[&1];
        assert_eq!((metadata.log_syncs, metadata.working_ns), ((2, 20), 2 * MS));
        assert_eq!(metadata.holders[&9], Holder { silent_ns: 3 * SECOND, waits: 2, ago_ns: 0 });
    }

    #[test]
    fn why_ignores_intervals_in_which_a_service_restarted() {
        assert_eq!(
            Evidence::between(&round(10, 1), &round(12, 2), Focus::default()),
            Evidence::default()
        );
        assert_eq!(
            Evidence::between(&Round::new(), &round(12, 1), Focus::default()),
            Evidence::default()
        );
    }
}

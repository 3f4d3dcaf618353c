//! Examples of messages to management.

use crate::vectors::{Example, example};
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::{
    Capacity, CapacityPool, Condition, Consistency, Policy, Reachability, ShardRange, TargetHealth,
};
use skep_types::registration::{ServerRegistration, TargetClaim};
use skep_types::{
    ClusterId, ClusterMap, Epoch, Eviction, EvictionCause, Group, GroupId, GroupMember,
    GroupRecord, Lsn, MapVersion,
};
use skep_types::{
    MemberState, Node, NodeId, NodeKind, ShardId, Target, TargetId, TargetKind, Timestamp,
};
use skep_wire::management::{
    AskTakeOver, ChangeGroup, ChangeGroupReply, ChangeSetting, ChangeSettingReply, ClientEntry,
    ClientList, ConfirmLogLevel, CreateGroup, CreateGroupReply, EmptyReply, Evict, EvictionList,
    Format, GetMap, Heartbeat, HeartbeatReply, HostEntry, HostList, Leave, ListClients,
    ListEvictions, ListHosts, ListOutages, ListRequestWaits, LogLevelChange, MapUpdate, NodeOutage,
    NodeWait, OutageList, RegisterClient, RegisterReply, RegisterServer, RemoveServer,
    RemoveTarget, RenameServer, RequestWait, RequestWaitList, SetClientLogLevel, SetPolicy,
    SetTargetState, TargetOutage, TargetReport,
};
use skep_wire::node::LogLevel;

fn capacity() -> Capacity {
    Capacity {
        total_bytes: 16 << 40,
        free_bytes: 15 << 40,
        total_inodes: 1 << 30,
        free_inodes: (1 << 30) - 5,
        file_system: 0x2122_2324_2526_2728_292a_2b2c_2d2e_2f30,
    }
}

/// Returns a cluster map that has a target of each kind and contains every unusual state.
fn map() -> ClusterMap {
    let node = |id: u32, kind, name: &str, reachability| Node {
        id: NodeId::new(id),
        kind,
        name: name.into(),
        addresses: vec![format!("10.0.0.{id}:8000"), format!("[fe80::{id}]:8000")],
        domain: if kind == NodeKind::Storage { "rack-2".into() } else { String::new() },
        reachability,
        version: "0.1.0".into(),
    };
    let health = |consistency| match consistency {
        Consistency::Bad => TargetHealth::new(Condition::ReadOnly, "a write failed: EIO"),
        Consistency::NeedsResync => TargetHealth::new(Condition::Down, "cannot open it"),
        Consistency::Good => TargetHealth::default(),
    };
    let target = |id: u32, kind, node: u32, consistency, capacity_pool| Target {
        id: TargetId::new(id),
        kind,
        node: NodeId::new(node),
        path: format!("/srv/skep/target-{id}"),
        reachability: Reachability::Online,
        consistency,
        health: health(consistency),
        capacity: capacity(),
        capacity_pool,
    };
    let group = |id: u32, kind, members: &[(u32, MemberState)]| Group {
        id: GroupId::new(id),
        kind,
        epoch: Epoch::new(4),
        primary: TargetId::new(members[0].0),
        primary_since: Epoch::new(3),
        members: members
            .iter()
            .map(|(target, state)| GroupMember { target: TargetId::new(*target), state: *state })
            .collect(),
    };
    ClusterMap {
        version: MapVersion::new(21),
        formatted: true,
        nodes: vec![
            node(1, NodeKind::Metadata, "metadata-1", Reachability::Online),
            node(2, NodeKind::Storage, "storage-1", Reachability::ProbablyOffline),
            node(9, NodeKind::Client, "client-9", Reachability::Offline),
        ],
        targets: vec![
            target(1, TargetKind::Metadata, 1, Consistency::Good, CapacityPool::Normal),
            target(2, TargetKind::Storage, 2, Consistency::NeedsResync, CapacityPool::Low),
            target(3, TargetKind::Storage, 2, Consistency::Bad, CapacityPool::Emergency),
        ],
        groups: vec![
            group(1, TargetKind::Metadata, &[(1, MemberState::Serving)]),
            group(2, TargetKind::Storage, &[(2, MemberState::Syncing), (3, MemberState::Offline)]),
        ],
        shards: vec![ShardRange {
            first: ShardId::new(0),
            last: ShardId::new(u16::MAX),
            group: GroupId::new(1),
        }],
        ..ClusterMap::empty(ClusterId::new([7; 16]))
    }
}

#[expect(clippy::too_many_lines, reason = "one table")]
pub(super) fn examples() -> Vec<Example> {
    let claim = TargetClaim {
        target: TargetId::new(0),
        uuid: 42,
        kind: TargetKind::Storage,
        path: "/srv/skep/target-2".into(),
    };
    let server = ServerRegistration {
        node: NodeId::new(2),
        uuid: 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100,
        kind: NodeKind::Storage,
        name: "storage-1".into(),
        addresses: vec!["10.0.0.2:8000".into()],
        domain: Some("rack-2".into()),
        version: "0.1.0".into(),
        targets: vec![claim],
    };
    let (capacities, groups) = (vec![capacity()], vec![GroupId::new(2)]);
    let server = RegisterServer { server, capacities, groups, host: "stor1".into() };
    let client = RegisterClient {
        host: "login-1".into(),
        mount_point: "/mnt/skep".into(),
        version: "0.1.0".into(),
        pid: 4_711,
    };
    let registered = |node: u32, targets: &[u32]| RegisterReply {
        node: NodeId::new(node),
        targets: targets.iter().copied().map(TargetId::new).collect(),
        map: map(),
    };
    let nothing_new = MapUpdate { map: None };
    let update = MapUpdate { map: Some(map()) };
    let wait = RequestWait {
        group: GroupId::new(3),
        since_ms: 34_000,
        requests: 2,
        error: "10.0.0.3:7420: no answer within 1s".into(),
    };
    let waits = RequestWaitList {
        waits: vec![NodeWait { node: NodeId::new(9), wait: wait.clone() }],
        nodes: 1,
    };
    let now = Timestamp { seconds: 1_700_000_090, nanoseconds: 0 };
    let eviction = Eviction {
        client: NodeId::new(9),
        name: "login-1:/mnt/skep".into(),
        time: Timestamp { seconds: 1_700_000_000, nanoseconds: 5 },
        cause: EvictionCause::LeaseExpired,
        group: GroupId::new(1),
        silent_ms: 5_300,
    };
    let evictions = EvictionList { now, evictions: vec![eviction] };
    let hosts = HostList { hosts: vec![HostEntry { node: NodeId::new(2), host: "stor1".into() }] };
    let outages = OutageList {
        nodes: vec![NodeOutage { node: NodeId::new(2), since_ms: 34_000, may_be_longer: false }],
        targets: vec![TargetOutage {
            target: TargetId::new(7),
            since_ms: 1_000,
            may_be_longer: true,
        }],
    };
    let heartbeat = Heartbeat {
        node: NodeId::new(2),
        known: MapVersion::new(20),
        newest_node: NodeId::new(9),
        targets: vec![
            TargetReport {
                target: TargetId::new(2),
                capacity: capacity(),
                health: TargetHealth::default(),
            },
            TargetReport {
                target: TargetId::new(3),
                capacity: Capacity::default(),
                health: TargetHealth::new(Condition::Hung, "no answer for 12 s"),
            },
        ],
        waits: vec![wait.clone()],
    };
    let change = ChangeSetting { name: "lease".into(), value: 8_000, is_dry_run: true };
    let changed = ChangeSettingReply { before: 5_000, version: MapVersion::new(21) };
    let entry = ClientEntry {
        node: NodeId::new(9),
        host: "login-1".into(),
        mount_point: "/mnt/skep".into(),
        pid: 4_711,
        registered: Timestamp { seconds: 1_700_000_000, nanoseconds: 5 },
        silent_ms: Some(250),
    };
    let clients = ClientList {
        clients: vec![entry.clone(), ClientEntry { silent_ms: None, ..entry }],
        next: Some(NodeId::new(9)),
    };
    let policy = Policy { lease_ms: 8_000, ..Policy::default() };
    let level = LogLevel { current: "debug".into(), configured: "info".into() };
    let done = ConfirmLogLevel {
        client: NodeId::new(9),
        number: 3,
        level: Some(level.clone()),
        refusal: String::new(),
    };
    vec![
        example(&server, &registered(2, &[2])),
        example(&client, &registered(9, &[])),
        example(&heartbeat, &HeartbeatReply { capacity: None, log_level_change: None, map: None })
            .reply::<Heartbeat>(&HeartbeatReply {
                capacity: Some(capacity()),
                log_level_change: Some(LogLevelChange { number: 3, level: Some("debug".into()) }),
                map: Some(map()),
            })
            .reply::<Heartbeat>(&HeartbeatReply {
                capacity: None,
                log_level_change: Some(LogLevelChange { number: 4, level: None }),
                map: None,
            }),
        example(&SetClientLogLevel { client: NodeId::new(9), level: Some("debug".into()) }, &level)
            .request(&SetClientLogLevel { client: NodeId::new(9), level: None }),
        example(&done, &EmptyReply {}).request(&ConfirmLogLevel {
            level: None,
            refusal: "log level 'loud': no such level".into(),
            ..done.clone()
        }),
        example(&GetMap { known: MapVersion::new(20) }, &update).reply::<GetMap>(&nothing_new),
        example(&Leave { node: NodeId::new(9) }, &EmptyReply {}),
        example(&Evict { client: NodeId::new(9), unless_heard: true }, &EmptyReply {}),
        example(
            &CreateGroup { targets: vec![TargetId::new(7)] },
            &CreateGroupReply { group: GroupId::new(3), version: MapVersion::new(22) },
        ),
        example(
            &ChangeGroup {
                change: GroupChange {
                    group: GroupId::new(3),
                    epoch: Epoch::new(5),
                    change: MemberChange::Drop,
                    target: TargetId::new(7),
                },
            },
            &ChangeGroupReply { epoch: Epoch::new(6), version: MapVersion::new(22) },
        ),
        example(
            &AskTakeOver {
                group: GroupId::new(3),
                epoch: Epoch::new(5),
                target: TargetId::new(7),
                lacks_records: true,
                last_epoch: Epoch::new(4),
                last: Lsn::new(0x0102_0304_0506_0708),
                record: GroupRecord {
                    epoch: Epoch::new(6),
                    members: vec![TargetId::new(7), TargetId::new(8)],
                },
            },
            &EmptyReply {},
        ),
        example(&SetTargetState { target: TargetId::new(2), is_closed: true }, &update),
        example(
            &RemoveTarget { target: TargetId::new(2), is_dry_run: true, is_lost: false },
            &EmptyReply {},
        ),
        example(&ListRequestWaits {}, &waits),
        example(&ListOutages {}, &outages),
        example(&ListEvictions {}, &evictions),
        example(&ListHosts {}, &hosts),
        example(&RemoveServer { node: NodeId::new(2), is_dry_run: false }, &EmptyReply {}),
        example(&RenameServer { node: NodeId::new(2), name: "rack1-a".into() }, &EmptyReply {}),
        example(&Format {}, &update),
        example(&SetPolicy { policy }, &update),
        example(&change, &changed),
        example(&ListClients { after: NodeId::new(8) }, &clients),
    ]
}

//! Tests the state machine of the cluster: applies commands and checks the resulting maps.

use super::*;
use crate::command::{ClientRegistration, GroupRevision};
use proptest::prelude::*;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::registration::{ServerRegistration, TargetClaim};
use skep_types::{Epoch, MapVersion};

/// Creates an empty cluster after its first start.
pub(crate) fn cluster() -> ClusterState {
    let mut state = ClusterState::new(ClusterId::new([7; 16]));
    assert!(state.apply(&Command::Start).unwrap().changed);
    state
}

fn claim(kind: TargetKind, uuid: u128) -> TargetClaim {
    TargetClaim { target: TargetId::default(), uuid, kind, path: format!("/data/{uuid}") }
}

fn registration(kind: TargetKind, uuid: u128, targets: &[u128]) -> ServerRegistration {
    ServerRegistration {
        node: NodeId::default(),
        uuid,
        kind: match kind {
            TargetKind::Metadata => NodeKind::Metadata,
            TargetKind::Storage => NodeKind::Storage,
        },
        name: String::new(),
        addresses: vec![format!("host:{uuid}")],
        domain: None,
        version: "0.1.0".into(),
        targets: targets.iter().map(|uuid| claim(kind, *uuid)).collect(),
    }
}

/// Returns the registration of a new server with new targets.
pub(crate) fn server(kind: TargetKind, uuid: u128, targets: &[u128]) -> Command {
    Command::RegisterServer(registration(kind, uuid, targets))
}

fn code(result: Result<Outcome>) -> ErrorCode {
    result.unwrap_err().code()
}

#[test]
fn new_servers_and_targets_get_ids_names_and_groups() {
    let mut state = cluster();
    let first = state.apply(&server(TargetKind::Storage, 1, &[11, 12])).unwrap();
    let second = state.apply(&server(TargetKind::Storage, 2, &[21])).unwrap();
    assert_eq!((first.node, second.node), (NodeId::new(1), NodeId::new(2)));
    assert_eq!(first.targets, [TargetId::new(1), TargetId::new(2)]);
    let map = state.map();
    let names: Vec<&str> = map.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["storage-1", "storage-2"]);
    for target in &map.targets {
        let group = map.group_of(target.id).unwrap();
        assert_eq!(map.primary(group.id).unwrap().id, target.id);
    }
    assert_eq!(map.groups.len(), 3);
}

#[test]
fn repeated_registration_of_a_server_changes_nothing() {
    let mut state = cluster();
    let command = server(TargetKind::Storage, 1, &[11, 12]);
    let first = state.apply(&command).unwrap();
    let before = state.clone();
    // The test assumes that the reply to the first registration was lost, so the server does not
    // have its ids yet.
    let again = state.apply(&command).unwrap();
    assert_eq!(again, Outcome { changed: false, ..first.clone() });
    // The server registers again with the ids from the reply.
    let mut known = registration(TargetKind::Storage, 1, &[11, 12]);
    known.node = first.node;
    known.targets[0].target = first.targets[0];
    assert!(!state.apply(&Command::RegisterServer(known)).unwrap().changed);
    assert_eq!(state, before);
}

#[test]
fn registration_with_a_new_address_or_target_keeps_the_ids() {
    let mut state = cluster();
    let first = state.apply(&server(TargetKind::Storage, 1, &[11])).unwrap();
    let mut moved = registration(TargetKind::Storage, 1, &[11, 12]);
    moved.addresses = vec!["elsewhere:1".into()];
    let second = state.apply(&Command::RegisterServer(moved)).unwrap();
    assert!(second.changed);
    assert_eq!((second.node, second.targets[0]), (first.node, first.targets[0]));
    assert_eq!(state.map().node(first.node).unwrap().addresses, ["elsewhere:1"]);
}

#[test]
fn unknown_ids_are_refused_and_change_nothing() {
    let mut state = cluster();
    state.apply(&server(TargetKind::Storage, 1, &[11])).unwrap();
    let before = state.clone();
    let refused = |change: &dyn Fn(&mut ServerRegistration), words: &str| {
        let mut registration = registration(TargetKind::Storage, 2, &[21]);
        change(&mut registration);
        let error = state.clone().apply(&Command::RegisterServer(registration)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotPermitted);
        assert!(error.context().contains(words), "{error}");
    };
    refused(&|r| r.node = NodeId::new(1), "'storage-1' with another uuid");
    refused(&|r| r.node = NodeId::new(9), "which this cluster has not assigned");
    refused(&|r| r.targets[0].target = TargetId::new(1), "directory /data/21 as target t1");
    refused(&|r| r.targets[0].target = TargetId::new(9), "which is not in this cluster");
    let wrong_id = |r: &mut ServerRegistration| (r.uuid, r.node) = (1, NodeId::new(5));
    refused(&wrong_id, "the uuid of its directory belongs to n1");
    let wrong_target = |r: &mut ServerRegistration| {
        (r.targets[0].uuid, r.targets[0].target) = (11, TargetId::new(5));
    };
    refused(&wrong_target, "the uuid of the directory belongs to t1");
    let wrong_kind = |r: &mut ServerRegistration| {
        (r.uuid, r.kind) = (1, NodeKind::Metadata);
        r.targets.clear();
    };
    refused(&wrong_kind, "cannot become a metadata service");
    assert_eq!(state, before);
}

#[test]
fn error_for_a_removed_server_names_the_remedy() {
    let mut state = cluster();
    let foreign = registration(TargetKind::Storage, 77, &[]);
    let node = state.apply(&Command::RegisterServer(foreign.clone())).unwrap().node;
    state.apply(&Command::RemoveServer { node }).unwrap();
    let returns = ServerRegistration { node, ..foreign };
    let refused = state.apply(&Command::RegisterServer(returns)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotPermitted);
    let words = [&format!("{node} is no longer in this cluster"), "move the directory", "--init"];
    assert!(words.iter().all(|word| refused.context().contains(*word)), "{refused}");
    // A plain `--init` of management creates another cluster.
    let management = ServerRegistration {
        kind: NodeKind::Management,
        targets: Vec::new(),
        node,
        ..registration(TargetKind::Storage, 78, &[])
    };
    let refused = state.apply(&Command::RegisterServer(management)).unwrap_err();
    assert!(refused.context().contains("--init --join"), "{refused}");
    assert!(!refused.context().contains("targets"), "{refused}");
}

#[test]
fn malformed_registrations_are_refused() {
    let mut state = cluster();
    let mut refused = |change: &dyn Fn(&mut ServerRegistration)| {
        let mut registration = registration(TargetKind::Storage, 2, &[21, 22]);
        change(&mut registration);
        let command = Command::RegisterServer(registration);
        assert_eq!(code(state.apply(&command)), ErrorCode::InvalidArgument);
    };
    refused(&|r| r.uuid = 0);
    refused(&|r| r.addresses.clear());
    refused(&|r| r.kind = NodeKind::Client);
    refused(&|r| r.kind = NodeKind::Metadata);
    refused(&|r| r.targets[1].uuid = 21);
    refused(&|r| r.targets[1].uuid = 0);
    refused(&|r| r.name = "x".repeat(MAX_TEXT_BYTES + 1));
    refused(&|r| r.domain = Some("x".repeat(65)));
    refused(&|r| r.domain = Some("rack 2".into()));
}

#[test]
fn failure_domain_stays_until_a_registration_changes_it() {
    let mut state = cluster();
    let mut register = |domain: Option<&str>| {
        let mut registration = registration(TargetKind::Storage, 1, &[11]);
        registration.domain = domain.map(String::from);
        let outcome = state.apply(&Command::RegisterServer(registration)).unwrap();
        (outcome.changed, state.map().node(outcome.node).unwrap().domain.clone())
    };
    assert_eq!(register(None), (true, String::new()));
    assert_eq!(register(Some("rack-1")), (true, "rack-1".into()));
    assert_eq!(register(None), (false, "rack-1".into()));
    assert_eq!(register(Some("rack-2")), (true, "rack-2".into()));
    assert_eq!(register(Some("")), (true, String::new()));
}

#[test]
fn server_names_are_unique_within_a_kind_of_service() {
    let mut state = cluster();
    let named = |uuid, name: &str| {
        let mut registration = registration(TargetKind::Storage, uuid, &[]);
        registration.name = name.into();
        Command::RegisterServer(registration)
    };
    state.apply(&named(1, "storage-1")).unwrap();
    assert_eq!(code(state.apply(&named(2, "storage-1"))), ErrorCode::Exists);
    let second = state.apply(&named(2, "")).unwrap();
    assert_eq!(state.map().node(second.node).unwrap().name, "storage-2");
    let metadata = state.apply(&server(TargetKind::Metadata, 3, &[])).unwrap();
    assert_eq!(state.map().node(metadata.node).unwrap().name, "metadata-1");
}

#[test]
fn client_ids_are_never_used_again() {
    let mut state = cluster();
    let client = ClientRegistration {
        host: "host".into(),
        mount_point: "/mnt".into(),
        ..Default::default()
    };
    let first = state.apply(&Command::RegisterClient(client.clone())).unwrap().node;
    let second = state.apply(&Command::RegisterClient(client.clone())).unwrap().node;
    assert_ne!(first, second);
    assert_eq!(state.map().node(second).unwrap().name, format!("host:/mnt#{}", second.raw()));
    assert!(state.apply(&Command::RemoveClient { node: first }).unwrap().changed);
    assert!(!state.apply(&Command::RemoveClient { node: first }).unwrap().changed);
    let third = state.apply(&Command::RegisterClient(client)).unwrap().node;
    assert!(third > second);
    let server = state.apply(&server(TargetKind::Storage, 1, &[])).unwrap().node;
    assert_eq!(code(state.apply(&Command::RemoveClient { node: server })), ErrorCode::NotPermitted);
}

#[test]
fn format_distributes_all_shards_evenly_and_only_once() {
    let mut state = cluster();
    assert_eq!(code(state.apply(&Command::Format)), ErrorCode::NotReady);
    state.apply(&server(TargetKind::Storage, 1, &[11])).unwrap();
    state.apply(&server(TargetKind::Metadata, 2, &[21, 22])).unwrap();
    state.apply(&server(TargetKind::Metadata, 3, &[31])).unwrap();
    assert!(state.apply(&Command::Format).unwrap().changed);
    let map = state.map();
    assert!(map.formatted);
    let mut next = 0;
    for range in &map.shards {
        assert_eq!(u32::from(range.first.raw()), next);
        let count = u32::from(range.last.raw()) + 1 - next;
        assert!(count.abs_diff(SHARD_COUNT / 3) <= 1, "{range:?}");
        assert_eq!(map.group(range.group).unwrap().kind, TargetKind::Metadata);
        next += count;
    }
    assert_eq!(next, SHARD_COUNT);
    assert!(map.shard_group(ShardId::new(u16::MAX)).is_some());
    assert_eq!(code(state.apply(&Command::Format)), ErrorCode::Exists);
}

#[test]
fn refusal_of_invalid_settings_lists_all_problems() {
    let mut state = cluster();
    let policy = Policy { lease_ms: 1_000, heartbeat_ms: 500, ..Policy::default() };
    assert!(state.apply(&Command::SetPolicy(policy.clone())).unwrap().changed);
    assert!(!state.apply(&Command::SetPolicy(policy)).unwrap().changed);
    let wrong =
        Policy { lease_ms: 1, default_chunk_bytes: 1_000, default_width: 0, ..Policy::default() };
    let error = state.apply(&Command::SetPolicy(wrong)).unwrap_err();
    assert_eq!(error.context().matches("; ").count(), 2, "{error}");
    assert_eq!(
        code(state.apply(&Command::SetFeatureLevel { level: NEWEST_FEATURE_LEVEL + 1 })),
        ErrorCode::InvalidArgument
    );
    assert_eq!(
        code(state.apply(&Command::SetFeatureLevel { level: 0 })),
        ErrorCode::InvalidArgument
    );
    assert!(!state.apply(&Command::SetFeatureLevel { level: 1 }).unwrap().changed);
}

#[test]
fn commands_and_snapshots_survive_a_round_trip() {
    let commands = [
        Command::Start,
        server(TargetKind::Metadata, 3, &[31, 32]),
        Command::RegisterClient(ClientRegistration { host: "a".into(), ..Default::default() }),
        Command::EvictClient(eviction(2)),
        Command::NoteHost { node: NodeId::new(1), host: "meta1".into() },
        Command::Format,
        Command::SetPolicy(Policy { default_width: 8, ..Policy::default() }),
        Command::SetFeatureLevel { level: 1 },
        Command::ChangeSetting { name: "lease".into(), value: 9_000 },
        Command::SetPolicy(Policy { metadata_copies: 2, ..Policy::default() }),
        server(TargetKind::Metadata, 4, &[41]),
        Command::CreateGroup { targets: vec![TargetId::new(1)] },
        Command::ChangeGroup(GroupChange {
            group: GroupId::new(1),
            epoch: Epoch::new(1),
            change: MemberChange::Add,
            target: TargetId::new(3),
        }),
        Command::ReviseGroup(GroupRevision {
            group: GroupId::new(1),
            epoch: Epoch::new(1),
            above: Epoch::new(9),
            members: vec![TargetId::new(3)],
        }),
    ];
    let mut state = ClusterState::new(ClusterId::new([7; 16]));
    for command in commands {
        assert_eq!(Command::from_bytes(&command.to_bytes()).unwrap(), command);
        state.apply(&command).unwrap();
        assert_eq!(ClusterState::from_snapshot(&state.snapshot()).unwrap(), state);
    }
    assert!(Command::from_bytes(&[99]).is_err());
}

fn any_member_change() -> impl Strategy<Value = MemberChange> {
    prop_oneof![
        3 => Just(MemberChange::Add),
        2 => Just(MemberChange::MarkInSync),
        1 => Just(MemberChange::TakeOver),
        1 => Just(MemberChange::Drop),
        1 => Just(MemberChange::HandOver),
        1 => Just(MemberChange::Remove),
    ]
}

fn eviction(client: u32) -> Eviction {
    Eviction {
        client: NodeId::new(client),
        name: String::new(),
        time: skep_types::Timestamp::default(),
        cause: skep_types::EvictionCause::Silent,
        group: GroupId::default(),
        silent_ms: 300_000,
    }
}

/// Generates commands with few different uuids, ids and names, so that they often collide.
pub(crate) fn any_command() -> impl Strategy<Value = Command> {
    let kind = prop_oneof![Just(TargetKind::Metadata), Just(TargetKind::Storage)];
    let server = (kind, 1..5_u128, prop::collection::vec(11..16_u128, 0..4), 0..4_u32, 0..3_u32);
    prop_oneof![
        6 => server.prop_map(|(kind, uuid, targets, node, target)| {
            let mut registration = registration(kind, uuid, &targets);
            registration.node = NodeId::new(node);
            if let Some(first) = registration.targets.first_mut() {
                first.target = TargetId::new(target);
            }
            Command::RegisterServer(registration)
        }),
        2 => (0..3_u8).prop_map(|name| Command::RegisterClient(ClientRegistration {
            host: name.to_string(),
            ..Default::default()
        })),
        2 => (0..12_u32).prop_map(|node| Command::RemoveClient { node: NodeId::new(node) }),
        2 => (0..12_u32).prop_map(|node| Command::EvictClient(eviction(node))),
        1 => (0..12_u32, 0..3_u8).prop_map(|(node, host)| Command::NoteHost {
            node: NodeId::new(node),
            host: host.to_string(),
        }),
        1 => Just(Command::Start),
        1 => Just(Command::Format),
        1 => (1..3_u16).prop_map(|metadata_copies| {
            Command::SetPolicy(Policy { metadata_copies, ..Policy::default() })
        }),
        1 => (8_998..9_000_u64).prop_map(|value| Command::ChangeSetting {
            name: "lease".into(),
            value,
        }),
        1 => Just(Command::ContinueAbove { version: MapVersion::default() }),
        1 => (1..5_u32, 1..4_u64, prop::collection::vec(1..9_u32, 0..6)).prop_map(
            |(group, epoch, members)| Command::ReviseGroup(GroupRevision {
                group: GroupId::new(group),
                epoch: Epoch::new(epoch),
                above: Epoch::new(epoch),
                members: members.into_iter().map(TargetId::new).collect(),
            })
        ),
        1 => (1..5_u32, 1..9_u32).prop_map(|(group, target)| Command::ReturnToGroup {
            target: TargetId::new(target),
            group: GroupId::new(group),
        }),
        1 => prop::collection::vec(1..9_u32, 0..3).prop_map(|targets| Command::CreateGroup {
            targets: targets.into_iter().map(TargetId::new).collect(),
        }),
        2 => (1..5_u32, 1..4_u64, any_member_change(), 1..9_u32).prop_map(
            |(group, epoch, change, target)| Command::ChangeGroup(GroupChange {
                group: GroupId::new(group),
                epoch: Epoch::new(epoch),
                change,
                target: TargetId::new(target),
            })
        ),
    ]
}

/// Asserts the invariants, which must hold in every state.
fn check_invariants(state: &ClusterState) {
    let map = state.map();
    let clients = map.nodes.iter().filter(|node| node.kind == NodeKind::Client);
    assert!(clients.map(|node| node.id).eq(state.clients().iter().map(|client| client.node)));
    assert!(map.nodes.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(map.targets.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(map.groups.windows(2).all(|pair| pair[0].id < pair[1].id));
    for target in &map.targets {
        assert!(map.node(target.node).is_some(), "{target:?}");
        let groups = map.groups.iter().filter(|g| g.members.iter().any(|m| m.target == target.id));
        assert!(groups.count() <= 1, "{target:?}");
        let twins = state.durable.target_uuids.iter().filter(|(id, _)| *id == target.id);
        assert_eq!(twins.count(), 1, "{target:?}");
    }
    for node in &map.nodes {
        let same = map.nodes.iter().filter(|it| it.kind == node.kind && it.name == node.name);
        assert_eq!(same.count(), 1, "{node:?}");
    }
    assert_eq!(map.formatted, !map.shards.is_empty());
}

proptest! {
    #[test]
    fn decoding_never_panics_and_accepts_only_canonical_bytes(bytes: Vec<u8>) {
        if let Ok(command) = Command::from_bytes(&bytes) {
            prop_assert_eq!(command.to_bytes(), &bytes[..]);
        }
        if let Ok(state) = ClusterState::from_snapshot(&bytes) {
            prop_assert_eq!(state.snapshot(), bytes);
        }
    }

    #[test]
    fn each_command_keeps_all_invariants(commands in prop::collection::vec(any_command(), 1..60)) {
        let mut state = ClusterState::new(ClusterId::new([7; 16]));
        let mut identities = std::collections::BTreeMap::new();
        for command in commands {
            let before = state.clone();
            match state.apply(&command) {
                Ok(outcome) => {
                    prop_assert_eq!(outcome.changed, state != before);
                    if let Command::RegisterServer(server) = &command {
                        // An id belongs to one uuid for ever, and a uuid belongs to one id.
                        let known = *identities.entry(server.uuid).or_insert(outcome.node);
                        prop_assert_eq!(known, outcome.node);
                        prop_assert!(!state.apply(&command).unwrap().changed);
                    }
                }
                Err(_) => prop_assert_eq!(&state, &before),
            }
            check_invariants(&state);
        }
    }
}

/// Management must refuse a registration before the map becomes too long for a message. Otherwise,
/// management would abort at the first request for the map, and again after each restart.
#[test]
fn registrations_that_make_the_map_too_long_are_refused() {
    let mut state = cluster();
    let large = |number: u128| {
        let uuids: Vec<u128> = (1..=256).map(|target| number << 32 | target).collect();
        let mut server = registration(TargetKind::Storage, number, &uuids);
        server.targets.iter_mut().for_each(|claim| claim.path = "x".repeat(1024));
        Command::RegisterServer(server)
    };
    let refused = (1..200).find_map(|number| state.apply(&large(number)).err()).unwrap();
    assert_eq!(refused.code(), ErrorCode::LimitReached, "{refused}");
    let bytes = state.map().to_bytes().len();
    assert!((10 << 20..16 << 20).contains(&bytes), "{bytes} bytes");
    // The estimate of the map's length is too low by at most 4 KiB.
    assert!(bytes <= crate::limits::MAX_MAP_BYTES + 4096, "{bytes} bytes");
    // A node that is already registered may register again, although the map is too long for new
    // nodes.
    state.apply(&large(1)).unwrap();
}

//! The levels and words of the lines, for a cluster of two metadata servers and a storage server.

use super::*;
use skep_types::{
    ClusterId, Epoch, Group, GroupId, GroupMember, MemberState, NodeId, Target, TargetKind,
};

const METADATA: [NodeId; 2] = [NodeId::new(2), NodeId::new(3)];
const STORAGE: NodeId = NodeId::new(4);

fn node(kind: NodeKind, id: NodeId, name: &str) -> Node {
    Node {
        id,
        kind,
        name: name.into(),
        addresses: vec![format!("10.0.0.{}:7400", id.raw())],
        domain: String::new(),
        reachability: Reachability::Online,
        version: "1".into(),
    }
}

fn target(id: u32, kind: TargetKind, node: NodeId) -> Target {
    let target = Target::new(TargetId::new(id), kind, node, format!("/disk{id}"));
    Target { reachability: Reachability::Online, ..target }
}

/// The metadata targets 1 and 2 are group 5, and the storage targets 7 and 8 are groups with one
/// member each.
fn cluster() -> ClusterMap {
    let mut map = ClusterMap::empty(ClusterId::default());
    map.nodes = vec![
        node(NodeKind::Management, NodeId::new(1), "management-1"),
        node(NodeKind::Metadata, METADATA[0], "metadata-1"),
        node(NodeKind::Metadata, METADATA[1], "metadata-2"),
        node(NodeKind::Storage, STORAGE, "storage-1"),
    ];
    map.targets = vec![
        target(1, TargetKind::Metadata, METADATA[0]),
        target(2, TargetKind::Metadata, METADATA[1]),
        target(7, TargetKind::Storage, STORAGE),
        target(8, TargetKind::Storage, STORAGE),
    ];
    let mut pair = Group::of_one(GroupId::new(5), TargetKind::Metadata, TargetId::new(1));
    pair.members.push(GroupMember { target: TargetId::new(2), state: MemberState::Serving });
    let single =
        |id, target| Group::of_one(GroupId::new(id), TargetKind::Storage, TargetId::new(target));
    map.groups = vec![pair, single(6, 7), single(7, 8)];
    map
}

fn set(map: &mut ClusterMap, id: NodeId, reachability: Reachability) {
    for node in map.nodes.iter_mut().filter(|node| node.id == id) {
        node.reachability = reachability;
    }
    for target in map.targets.iter_mut().filter(|target| target.node == id) {
        target.reachability = reachability;
    }
}

/// Returns the only line about a server whose reachability changes from `from` to `to`.
fn line(id: NodeId, from: Reachability, to: Reachability) -> Line {
    let (mut before, mut now) = (cluster(), cluster());
    set(&mut before, id, from);
    set(&mut now, id, to);
    let mut lines = reachability_lines(&before, &now, |_| None);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

#[test]
fn absent_target_is_logged_as_an_error_if_operations_wait() {
    use Reachability::{Offline, Online, ProbablyOffline};
    let Line(level, text) = line(STORAGE, ProbablyOffline, Offline);
    assert_eq!(level, Level::Error);
    let expected = "storage-1 (n4) at 10.0.0.4:7400 is offline, since this server sends no \
                    heartbeats; operations on files of this service wait until the service is \
                    back; other files are not affected";
    assert_eq!(text, expected);
    let Line(level, text) = line(METADATA[0], ProbablyOffline, Offline);
    assert_eq!(level, Level::Warn);
    let effect = "; operations on files of this service wait for a few seconds, until other \
                  members of its groups take over";
    assert!(text.ends_with(effect), "{text}");
    let Line(level, text) = line(NodeId::new(1), ProbablyOffline, Offline);
    assert_eq!(level, Level::Warn);
    assert!(text.ends_with("nodes cannot join, and the cluster map does not change"), "{text}");
    let Line(level, text) = line(STORAGE, Online, ProbablyOffline);
    assert_eq!(level, Level::Warn);
    assert!(text.contains(" has sent no heartbeat for 5.0 s; "), "{text}");
    assert_eq!(line(STORAGE, Offline, Online).0, Level::Info);
}

#[test]
fn returning_server_is_logged_with_the_length_of_its_outage() {
    use Reachability::{Offline, Online, ProbablyOffline};
    let text = |from, outage| {
        let (mut before, now) = (cluster(), cluster());
        set(&mut before, STORAGE, from);
        let mut lines = reachability_lines(&before, &now, |_| outage);
        lines.pop().map(|Line(_, text)| text)
    };
    let outage = |may_be_longer| Some(Outage { lasted_ms: 20_340, may_be_longer });
    let again = |after| Some(format!("storage-1 (n4) at 10.0.0.4:7400 is online again, {after}"));
    assert_eq!(text(ProbablyOffline, outage(false)), again("after 20.3 s"));
    assert_eq!(text(Offline, outage(true)), again("after at least 20.3 s"));
    let seen_end = Some(Outage { lasted_ms: 400, may_be_longer: true });
    let unknown = "storage-1 (n4) at 10.0.0.4:7400 is online again".to_owned();
    assert_eq!(text(Offline, seen_end), Some(unknown), "a new leader does not know the length");
    assert_eq!(text(ProbablyOffline, outage(true)), None, "only management was away");
    assert_eq!(text(Online, outage(false)), None);
}

#[test]
fn shutdown_of_a_server_is_not_logged_as_an_error() {
    use Reachability::{Offline, Online};
    let Line(level, text) = line(STORAGE, Online, Offline);
    assert_eq!(level, Level::Warn);
    assert!(
        text.contains(" was stopped; operations on files of this service wait until"),
        "{text}"
    );
    assert_eq!(line(METADATA[1], Online, Offline).0, Level::Info);
    assert!(!text.contains("closed to new files"), "{text}");
}

#[test]
fn line_about_a_stop_names_targets_closed_to_new_files() {
    let mut before = cluster();
    let own = before.targets.iter_mut().filter(|target| target.node == STORAGE);
    own.for_each(|target| target.health.condition = Condition::Closed);
    let mut now = before.clone();
    set(&mut now, STORAGE, Reachability::Offline);
    let lines = reachability_lines(&before, &now, |_| None);
    let expected = "; all its targets are closed to new files: if no file is left on them, no \
                    operation waits";
    assert!(lines[0].1.ends_with(expected), "{lines:?}");
}

#[test]
fn outage_of_both_group_members_is_logged_with_its_effect() {
    let mut before = cluster();
    set(&mut before, METADATA[0], Reachability::Offline);
    let mut now = before.clone();
    set(&mut now, METADATA[1], Reachability::ProbablyOffline);
    let lines = reachability_lines(&before, &now, |_| None);
    let effect = "operations on files of t2 wait, since no group member with complete data is \
                  reachable: start the service of one of t1, t2";
    assert!(lines[0].1.ends_with(effect), "{lines:?}");
    // If both servers stop at the same moment, each line names both targets.
    let before = cluster();
    let mut now = before.clone();
    METADATA.iter().for_each(|id| set(&mut now, *id, Reachability::ProbablyOffline));
    let lines = reachability_lines(&before, &now, |_| None);
    assert!(lines.len() == 2 && lines.iter().all(|it| it.0 == Level::Error), "{lines:?}");
    assert!(
        lines.iter().all(|it| it.1.contains("start the service of one of t1, t2")),
        "{lines:?}"
    );
}

#[test]
fn group_change_lines_name_target_and_group_as_commands_do() {
    use MemberChange::{Add, Drop, HandOver, MarkInSync, Remove, TakeOver};
    let map = cluster();
    for (change, level) in [
        (Add, Level::Info),
        (MarkInSync, Level::Info),
        (TakeOver, Level::Warn),
        (Drop, Level::Warn),
        (HandOver, Level::Info),
        (Remove, Level::Info),
    ] {
        let made = GroupChange {
            group: GroupId::new(5),
            epoch: Epoch::new(9),
            change,
            target: TargetId::new(2),
        };
        let line = change_line(&map, &made, Asker::Member, Duration::ZERO);
        assert_eq!(line.0, level, "{line:?}");
        assert!(line.1.contains("target t2 (metadata-2)"), "{line:?}");
        assert!(line.1.contains("metadata group g5"), "{line:?}");
        assert!(!line.1.contains(&format!("{change:?}")) && !line.1.contains("e9"), "{line:?}");
        let asked = change_line(&map, &made, Asker::Administrator, Duration::ZERO);
        assert!(change != Drop || asked.0 == Level::Info, "{asked:?}");
        assert!(change != Drop || !asked.1.contains("does not answer"), "{asked:?}");
    }
}

#[test]
fn only_an_unexpected_target_failure_is_logged_as_a_warning() {
    let map = cluster();
    let health = TargetHealth::new(Condition::Down, "no disk");
    let line = condition_line(&map, TargetId::new(7), &health);
    let expected = "target t7 (storage-1) in /disk7 is not served: no disk; operations on its \
                    files wait";
    assert_eq!(line, Line(Level::Error, expected.to_owned()));
    let hung = TargetHealth::new(Condition::Hung, "its device hangs");
    assert_eq!(condition_line(&map, TargetId::new(7), &hung).0, Level::Error);
    // The line is a warning if another member of the group serves the requests, or if the service
    // is stopping.
    let Line(level, text) = condition_line(&map, TargetId::new(2), &health);
    assert_eq!(level, Level::Warn);
    assert!(text.ends_with("another member of its group serves them"), "{text}");
    let unreported = TargetHealth::new(Condition::Down, KnownReason::Unreported.text());
    let Line(level, text) = condition_line(&map, TargetId::new(7), &unreported);
    assert!(level == Level::Warn && text.contains("as when its service stops"), "{text}");
    assert!(!text.contains("check that the settings"), "{text}");
    // The other member of the group serves the files of target 2.
    assert_eq!(condition_line(&map, TargetId::new(2), &unreported).0, Level::Info);
    let healthy = TargetHealth::default();
    assert_eq!(condition_line(&map, TargetId::new(7), &healthy).0, Level::Info);
    // No warning is needed for a change of the role of a target, or for a target that is marked as
    // lost.
    let reopens = TargetHealth::new(Condition::Down, KnownReason::Reopens.text());
    assert_eq!(condition_line(&map, TargetId::new(7), &reopens).0, Level::Info);
    // An administrator closes a target before the removal of the target, so the line is no warning.
    let is_meant = |target: &&mut skep_types::Target| target.id == TargetId::new(7);
    let mut closed = map.clone();
    closed.targets.iter_mut().find(is_meant).unwrap().health.condition = Condition::Closed;
    let Line(level, text) = condition_line(&closed, TargetId::new(7), &unreported);
    assert!(level == Level::Info && text.contains("as during its removal"), "{text}");
    assert_eq!(condition_line(&closed, TargetId::new(7), &health).0, Level::Error);
    let mut lost = map;
    lost.targets.iter_mut().find(is_meant).unwrap().consistency = Consistency::Bad;
    assert_eq!(condition_line(&lost, TargetId::new(7), &health).0, Level::Info);
    let refuses = TargetHealth::new(Condition::ReadOnly, "the target was marked as lost");
    assert_eq!(condition_line(&lost, TargetId::new(7), &refuses).0, Level::Info);
}

#[test]
fn loss_of_a_target_is_logged_with_the_way_to_list_its_files() {
    let Line(level, text) = lost_line(&cluster(), TargetId::new(7));
    assert_eq!(level, Level::Error);
    assert!(text.starts_with("target t7 (storage-1) in /disk7 is now marked as lost"), "{text}");
    assert!(text.contains("`skep target files --paths 7` lists the files"), "{text}");
}

#[test]
fn target_is_logged_when_it_fills_up_and_has_space_again() {
    let mut map = cluster();
    let id = TargetId::new(7);
    let with = |free_bytes| Capacity { total_bytes: 1 << 30, free_bytes, ..Capacity::default() };
    assert_eq!(space_line(&map, id, &with(1 << 29)), None, "the first report");
    let Line(level, text) = space_line(&map, id, &with(1 << 20)).expect("a full target");
    assert_eq!(level, Level::Error);
    assert!(text.starts_with("target t7 (storage-1) in /disk7 is full: 1 MiB are free"), "{text}");
    let is_meant = |target: &&mut Target| target.id == id;
    map.targets.iter_mut().find(is_meant).unwrap().capacity = with(1 << 20);
    assert_eq!(space_line(&map, id, &with(2 << 20)), None, "it is still full");
    // A target whose disk does not answer reports zeros.
    assert_eq!(space_line(&map, id, &Capacity::default()), None);
    let Line(level, text) = space_line(&map, id, &with(333 << 20)).expect("it has space again");
    assert_eq!(level, Level::Info);
    assert_eq!(text, "target t7 (storage-1) has space again: 333 MiB are free");
}

/// An administrator must act, so the line names the directory, the reason, the effect and the way
/// out. The words `refuses writes` appear once in the line.
#[test]
fn a_target_that_refuses_writes_is_logged_as_an_error() {
    let reason = "a write failed at 2026-11-29T19:59:49Z: read-only file system";
    let health = TargetHealth::new(Condition::ReadOnly, reason);
    let Line(level, text) = condition_line(&cluster(), TargetId::new(7), &health);
    assert_eq!(level, Level::Error);
    let start = format!("target t7 (storage-1) in /disk7 refuses writes: {reason}; new files ");
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("fail with EIO; repair the disk"), "{text}");
    assert_eq!(text.matches("refuses writes").count(), 1, "{text}");
}

#[test]
fn line_about_an_eviction_names_its_consequences() {
    let eviction = Eviction {
        client: NodeId::new(10),
        name: "nc-host5:/mnt/skep".into(),
        time: skep_types::Timestamp::default(),
        cause: skep_types::EvictionCause::LeaseExpired,
        group: GroupId::new(1),
        silent_ms: 5_300,
    };
    let Line(level, text) = eviction_line(&eviction, 5_000);
    assert_eq!(level, Level::Warn);
    for words in ["n10 (nc-host5:/mnt/skep)", "(lease: 5.0 s)", "locks and opens", "get EIO"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn line_about_a_dropped_member_names_reason_and_copies_left() {
    let map = cluster();
    let change = MemberChange::Drop;
    let (group, epoch, target) = (GroupId::new(5), Epoch::new(9), TargetId::new(2));
    let made = GroupChange { group, epoch, change, target };
    let text =
        |silent_ms| change_line(&map, &made, Asker::Member, Duration::from_millis(silent_ms)).1;
    assert!(text(0).contains("whose service is shutting down"), "{}", text(0));
    let log = "(the log of the primary, target t1 (metadata-1), has the reason)";
    assert!(text(0).contains(log), "{}", text(0));
    let dead = text(7_500);
    assert!(dead.contains("has sent no heartbeat for 7.5 s"), "{dead}");
    let effect = "the group has one copy left, and operations on its files wait if target t1 \
                  (metadata-1) fails too";
    assert!(dead.contains(effect), "{dead}");
}

#[test]
fn lines_about_a_restored_group_name_group_members_and_remedy() {
    let map = cluster();
    let group = map.group(GroupId::new(5)).expect("the metadata group");
    let (known, missing) = (TargetId::new(2), TargetId::new(9));
    let record = GroupRecord { epoch: Epoch::new(9), members: vec![known, missing] };
    let line = revision_line(&map, group, &record, known);
    assert_eq!(line.0, Level::Warn);
    for words in ["metadata group g5", "t1 (metadata-1)", "the members t2 (metadata-2), t9;"] {
        assert!(line.1.contains(words), "{words}: {line:?}");
    }
    let waits = waiting_group_line(&map, group, &BTreeSet::from([missing]));
    assert_eq!(waits.0, Level::Error);
    for words in ["metadata group g5", "targets t9 may", "start the services", "backups.md"] {
        assert!(waits.1.contains(words), "{words}: {waits:?}");
    }
    let empty = waiting_group_line(&map, group, &BTreeSet::new());
    assert!(empty.1.contains("no member has a complete copy"), "{empty:?}");
}

#[test]
fn line_about_missing_records_explains_a_restore() {
    let change = GroupChange {
        group: GroupId::new(5),
        epoch: Epoch::new(9),
        change: MemberChange::TakeOver,
        target: TargetId::new(2),
    };
    let Line(level, text) = loss_line(&cluster(), &change);
    assert_eq!(level, Level::Warn);
    assert!(text.starts_with("each member of group g5 reports that it may lack"), "{text}");
    assert!(text.contains("After a restore of management this is the expected"), "{text}");
    assert!(text.ends_with("becomes the primary"), "{text}");
}

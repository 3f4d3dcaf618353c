//! Tests of directories that were restored from a backup.

use super::*;
use skep_cluster::groups::is_undecided;
use skep_store::restored::{RESTORED_MARK, unmark};
use skep_types::map::{Condition, Consistency};
use skep_types::{ClusterMap, Group, GroupId, TargetId};
use skep_wire::management::{Heartbeat, RegisterReply, RemoveTarget};
use std::path::{Path, PathBuf};

/// The newest ids and the newest map version that a cluster assigned after a backup was made.
struct Newest {
    client: NodeId,
    server: NodeId,
    version: MapVersion,
}

/// Makes a backup of management's directory, lets the cluster assign more ids and versions, stops
/// management, and restores the directory from the backup.
async fn put_back(settings: &ManagementSettings, token: &JoinToken) -> Newest {
    let running = RunningManagement::start(settings).await.unwrap();
    let (_server, registered) =
        Membership::join(token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
    let copy = back_up(settings);
    let client = join_client(token).await.node();
    let version = running.authority.map().version;
    drop(running);
    put_in_place(&copy, settings);
    Newest { client, server: registered.node, version }
}

/// Makes a backup of management's directory, and returns the path of the backup.
fn back_up(settings: &ManagementSettings) -> PathBuf {
    let path = &settings.node.directory;
    let copy = path.with_extension("copy");
    copy_directory(path, &copy).unwrap();
    copy
}

/// Replaces management's directory by the backup `copy`.
fn put_in_place(copy: &Path, settings: &ManagementSettings) {
    let path = &settings.node.directory;
    std::fs::remove_dir_all(path).unwrap();
    std::fs::rename(copy, path).unwrap();
}

/// Stops management, and starts it again in a directory that was restored from the backup `copy`.
async fn restart_from(
    copy: &Path,
    settings: &ManagementSettings,
    running: RunningManagement,
) -> RunningManagement {
    drop(running);
    put_in_place(copy, settings);
    RunningManagement::start(settings).await.unwrap()
}

/// docs/semantics.md 1.8.
#[test]
fn restored_management_reuses_no_id_or_map_version() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let newest = put_back(&settings, &token).await;
        let running = RunningManagement::start(&settings).await.unwrap();
        assert!(running.authority.map().version > newest.version);
        assert!(
            running.authority.map().has_removed(newest.client),
            "the client must register again"
        );
        assert!(join_client(&token).await.node() > newest.client);
        // At the next start, the ids must continue without another jump.
        let before = running.authority.map().newest_node;
        drop(running);
        let running = RunningManagement::start(&settings).await.unwrap();
        assert_eq!(running.authority.map().newest_node, before);
    });
}

/// docs/semantics.md 1.8, for a backup that was made by other means than `skep cluster backup`.
#[test]
fn management_skips_ids_after_a_heartbeat_with_a_newer_id() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let newest = put_back(&settings, &token).await;
        unmark(&settings.node.directory, RESTORED_MARK).unwrap();
        let _running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Storage);
        let heartbeat = |known| Heartbeat {
            node: newest.server,
            known,
            newest_node: newest.client,
            targets: Vec::new(),
            waits: Vec::new(),
        };
        // The restart has already raised the map version above the version that the node has.
        let ask = async |known| {
            let reply = admin.call_once(&heartbeat(known), Duration::from_secs(10)).await.unwrap();
            reply.map.expect("management has a newer map")
        };
        let map = ask(newest.version).await;
        assert!(map.has_removed(newest.client));
        assert!(join_client(&token).await.node() > newest.client);
        let known = MapVersion::new(map.version.raw() + (3 << 40));
        assert!(ask(known).await.version > known);
    });
}

/// A heartbeat of a faulty node must not use up all map versions. After such a heartbeat,
/// management could not restart.
#[test]
fn heartbeat_with_an_implausible_version_or_id_is_refused() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let (_server, registered) =
            Membership::join(&token, server(NodeKind::Storage, 10), PATIENCE).await.unwrap();
        let before = running.authority.map().version;
        let admin = Management::new(&token, NodeKind::Storage);
        // Management continues 4,096 starts above the reported version, so only this number of
        // starts would be left.
        let left_starts = 4_096 + 2;
        let known = MapVersion::new(u64::MAX - (left_starts << 40));
        let wild = [
            (known, NodeId::default(), "management accepts at most"),
            (before, NodeId::new(u32::MAX - 1), "management accepts ids up to"),
        ];
        for (known, newest_node, limit) in wild {
            let heartbeat = Heartbeat {
                node: registered.node,
                known,
                newest_node,
                targets: Vec::new(),
                waits: Vec::new(),
            };
            let refused = admin.call_once(&heartbeat, Duration::from_secs(10)).await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::LimitReached, "{refused}");
            assert!(refused.to_string().contains(limit), "{refused}");
        }
        assert_eq!(running.authority.map().version, before);
        drop(running);
        let running = RunningManagement::start(&settings).await.unwrap();
        assert!(running.authority.map().version < known);
    });
}

/// Returns the registration of a server and its target under the ids in `registered`.
fn again(mut request: RegisterServer, registered: &RegisterReply) -> RegisterServer {
    let target = registered.targets[0];
    request.server.node = registered.node;
    request.server.targets[0].target = target;
    let group = registered.map.group_of(target).map(|group| group.id);
    request.groups = vec![group.unwrap_or_default()];
    request
}

#[test]
fn server_added_after_the_backup_returns_to_its_group() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let copy = back_up(&settings);
        let new = server(NodeKind::Storage, 10);
        let (_server, before) = Membership::join(&token, new.clone(), PATIENCE).await.unwrap();
        let _running = restart_from(&copy, &settings, running).await;
        let request = again(new, &before);
        let (_server, after) = Membership::join(&token, request, PATIENCE).await.unwrap();
        assert_eq!((after.node, &after.targets), (before.node, &before.targets));
        let group = |reply: &RegisterReply| reply.map.group_of(reply.targets[0]).cloned();
        assert!(group(&before).is_some());
        assert_eq!(group(&after), group(&before), "the bytes of its files are in this group");
        let other = again(server(NodeKind::Storage, 30), &before);
        let refused = Membership::join(&token, other, PATIENCE).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotPermitted, "another directory has its ids");
    });
}

/// The target was marked as lost after the backup. After the restore, management must not use the
/// target, even if its disk works again.
#[test]
fn lost_target_is_marked_again_after_a_restore() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let join = async |kind, uuid| Membership::join(&token, server(kind, uuid), PATIENCE).await;
        let (owner, registered) = join(NodeKind::Storage, 10).await.unwrap();
        let (other, _) = join(NodeKind::Metadata, 30).await.unwrap();
        let target = registered.targets[0];
        let copy = back_up(&settings);
        // The heartbeats of the server do not contain the target, so the target is down.
        let _keeping = [&owner, &other]
            .map(|member| skep_env::spawn(Rc::clone(member).keep(Vec::new, |_| {})));
        let is_down = |authority: &Authority| {
            authority.map().target(target).unwrap().health.condition == Condition::Down
        };
        until("the target is down", || is_down(&running.authority)).await;
        let admin = Management::new(&token, NodeKind::Storage);
        let request = RemoveTarget { target, is_dry_run: false, is_lost: true };
        admin.call(&request, PATIENCE).await.unwrap();
        let is_lost = |map: &ClusterMap| {
            map.target(target).is_some_and(|it| it.consistency == Consistency::Bad)
        };
        until("a server has received the mark", || is_lost(&other.map_cell().load())).await;
        let running = restart_from(&copy, &settings, running).await;
        until("the target is lost again", || is_lost(&running.authority.map())).await;
    });
}

/// Sends the report of a member whose last record of the group has the given epoch and members, and
/// whose log ends at the given LSN.
async fn report(
    admin: &Management,
    group: &Group,
    target: TargetId,
    (epoch, members, last): (u64, &[TargetId], u64),
) -> Result<()> {
    let epoch = Epoch::new(epoch);
    let request = AskTakeOver {
        group: group.id,
        epoch: group.epoch,
        target,
        lacks_records: true,
        last_epoch: epoch,
        last: Lsn::new(last),
        record: GroupRecord { epoch, members: members.to_vec() },
    };
    admin.call_once(&request, Duration::from_secs(5)).await.map(drop)
}

/// The backup is older than the addition of a second member, which served last.
#[test]
fn restored_group_continues_with_the_member_added_later() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Metadata);
        let [one, two] = two_metadata_targets(&token, &admin).await;
        let id = admin.call(&CreateGroup { targets: vec![one] }, PATIENCE).await.unwrap().group;
        let copy = back_up(&settings);
        let running = restart_from(&copy, &settings, running).await;
        let admin = Management::new(&token, NodeKind::Metadata);
        let group = || running.authority.map().group(id).unwrap().clone();
        assert_eq!((group().epoch.raw(), group().members.len()), (1, 1), "as in the backup");

        // The first member has recorded a later state. The map has neither the epoch nor the
        // members of this state.
        report(&admin, &group(), one, (2, &[one, two], 90)).await.unwrap();
        assert!(is_undecided(group().epoch) && group().members.len() == 2, "{:?}", group());
        let alone = AskTakeOver {
            group: id,
            epoch: group().epoch,
            target: two,
            lacks_records: false,
            last_epoch: Epoch::default(),
            last: Lsn::default(),
            record: GroupRecord::default(),
        };
        let early = admin.call_once(&alone, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(early.code(), ErrorCode::StaleMap, "no member leads without a comparison");
        report(&admin, &group(), one, (2, &[one, two], 90)).await.unwrap();
        assert!(is_undecided(group().epoch), "the second member may have newer changes");
        report(&admin, &group(), two, (4, &[two], 50)).await.unwrap();
        let after = group();
        assert_eq!((after.primary, after.primary_since), (two, after.epoch));
        assert!(!is_undecided(after.epoch), "{after:?}");
    });
}

/// The first member fails after its report, in which it does not name the member that served last.
#[test]
fn late_report_adds_the_last_serving_member_to_its_group() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        let admin = Management::new(&token, NodeKind::Metadata);
        let [one, two] = two_metadata_targets(&token, &admin).await;
        let id = admin.call(&CreateGroup { targets: vec![one] }, PATIENCE).await.unwrap().group;
        let group = || running.authority.map().group(id).unwrap().clone();
        // As after a restore, the state of management is older than the records of the members.
        report(&admin, &group(), one, (2, &[one], 50)).await.unwrap();
        assert!(is_undecided(group().epoch) && group().members.len() == 1, "{:?}", group());
        let unrecorded = report(&admin, &group(), two, (0, &[], 50)).await.unwrap_err();
        assert_eq!(unrecorded.code(), ErrorCode::StaleMap, "the target was never in the group");
        report(&admin, &group(), two, (4, &[two], 50)).await.unwrap();
        assert!(is_undecided(group().epoch) && group().members.len() == 2, "{:?}", group());
        report(&admin, &group(), two, (4, &[two], 50)).await.unwrap();
        assert_eq!((group().primary, is_undecided(group().epoch)), (two, false));
    });
}

/// Without a recorded state, the only member of a group has all changes of the group.
#[test]
fn restored_group_of_one_member_keeps_its_epoch() {
    let (_directory, settings, token) = cluster();
    block_on(async move {
        let running = RunningManagement::start(&settings).await.unwrap();
        Membership::join(&token, server(NodeKind::Metadata, 10), PATIENCE).await.unwrap();
        let copy = back_up(&settings);
        let running = restart_from(&copy, &settings, running).await;
        let group = running.authority.map().group(GroupId::new(1)).unwrap().clone();
        assert_eq!((group.epoch.raw(), group.primary_since.raw()), (1, 1));
    });
}

//! Tests of the replay of changes that a power loss has reverted.

use super::*;
use skep_wire::limits::REPLAY_SLOT;

/// Returns the request that replays the creation of an inode.
fn create_again<R: Request>(change: u64, request: &R, inode: InodeId) -> md::Replay {
    md::Replay { inode, created: true, ..replay_of(change, request) }
}

fn lease() -> Duration {
    Duration::from_millis(u64::from(map().policy.lease_ms))
}

impl Story {
    /// Lets a little more than the time of a lease pass, without a pause of the target. The two
    /// sessions of the story stay valid.
    fn pass_lease(&mut self) {
        for _ in 0..9 {
            self.now += lease() / 8;
            for session in [1, 2] {
                self.target.sessions.renew(SessionId::new(session), self.now);
            }
            self.happens(Event::Tick);
        }
    }

    fn end_replay(&mut self, session: u64) {
        self.send(9, session, (0, 0), &md::EndReplay {});
        let at = self.replies.iter().position(|(on, _)| *on == 9).expect("an answer");
        self.replies.remove(at).1.unwrap();
    }

    fn lookup(&mut self, directory: InodeId, name: &str) -> Result<md::EntryReply> {
        let name = name.as_bytes().into();
        self.ask(1, 1, (0, 0), &md::Lookup { directory, name })
    }
}

/// The scenario of hole H20 in `docs/tests/holes.md`. The lost link is replayed before the unlink
/// runs, so the file keeps one name.
#[test]
fn lost_link_is_replayed_before_any_new_change() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let durable = story.log.len();
    let entry = story.ask(1, 1, (2, 1), &link(file, "b")).unwrap().entry;
    story.lose_power_and_await_replay(durable);
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() };
    assert_eq!(story.ask(1, 1, (3, 1), &unlink).unwrap_err().code(), ErrorCode::Busy);
    assert_eq!(story.lookup(InodeId::ROOT, "b").unwrap_err().code(), ErrorCode::Busy);
    let replay = md::Replay { inode: entry.inode, ..replay_of(2, &link(file, "b")) };
    story.send(1, 1, (REPLAY_SLOT, 1), &replay);
    assert!(story.replies.is_empty(), "the other session may have an earlier change");
    story.end_replay(2);
    let replayed = story.replies.iter().any(|(on, result)| *on == 1 && result.is_ok());
    assert!(replayed, "it is the turn of the link");
    assert_eq!(story.ask(1, 1, (3, 1), &unlink).unwrap_err().code(), ErrorCode::Busy);
    story.end_replay(1);
    story.ask(1, 1, (3, 1), &unlink).unwrap();
    assert_eq!(story.lookup(InodeId::ROOT, "b").unwrap().inode, file);
}

#[test]
fn replayed_file_has_the_original_id_and_pattern() {
    let mut story = Story::begin();
    let durable = story.log.len();
    let request = create_in(InodeId::ROOT, "x");
    let first = story.ask(1, 1, (0, 1), &request).unwrap();
    story.lose_power_and_await_replay(durable);
    story.end_replay(2);
    let inode = first.attributes.inode;
    let pattern = first.pattern.clone();
    let replay = md::Replay { pattern, ..create_again(1, &request, inode) };
    story.ask(1, 1, (REPLAY_SLOT, 1), &replay).unwrap();
    story.ask(2, 1, (REPLAY_SLOT, 1), &replay).expect("a retry gets the stored reply");
    let twice = story.ask(1, 1, (REPLAY_SLOT, 2), &create_again(2, &request, inode));
    assert_eq!(twice.unwrap_err().code(), ErrorCode::Exists);
    let other = create_again(3, &create_in(InodeId::ROOT, "y"), inode);
    let taken = story.ask(1, 1, (REPLAY_SLOT, 3), &other).unwrap_err();
    assert_eq!(taken.code(), ErrorCode::Stale, "another file has this id");
    story.end_replay(1);
    let found = story.ask(1, 1, (0, 0), &md::GetEntryInfo { inode }).unwrap();
    assert_eq!(found.pattern, first.pattern);
    assert_eq!(found.open_sessions, 1, "the open is restored too");
    assert!(found.attributes.change_counter > first.attributes.change_counter);
    assert_ne!(story.create_as("z", 1, (0, 2)), inode);
}

/// One client creates a directory, and another client creates a file in it.
#[test]
fn changes_of_two_clients_are_replayed_in_original_order() {
    let mut story = Story::begin();
    let durable = story.log.len();
    let new = md::NewInode { permissions: 0o700, umask: 0, uid: 0, gid: 0 };
    let directory = InodeId::ROOT;
    let make = md::MakeDirectory { directory, name: b"d"[..].into(), new };
    let directory = story.ask(1, 1, (0, 1), &make).unwrap().entry.inode;
    let file = create_in(directory, "f");
    let inode = story.ask(1, 2, (0, 1), &file).unwrap().attributes.inode;
    story.lose_power_and_await_replay(durable);
    story.send(2, 2, (REPLAY_SLOT, 1), &create_again(2, &file, inode));
    assert!(story.replies.is_empty());
    story.ask(1, 1, (REPLAY_SLOT, 1), &create_again(1, &make, directory)).unwrap();
    assert!(story.replies.is_empty(), "the first client may have another change");
    story.end_replay(1);
    let replayed = story.replies.iter().any(|(on, result)| *on == 2 && result.is_ok());
    assert!(replayed, "it is the turn of the second client");
    story.end_replay(2);
    assert_eq!(story.lookup(directory, "f").unwrap().inode, inode);
}

/// Hole H243 in `docs/tests/holes.md`. For some time after a power loss, the cluster map shows this
/// target as offline, and another metadata group as fitter for new directories.
#[test]
fn replayed_directory_keeps_its_group_and_inode() {
    let mut story = Story::begin();
    let durable = story.log.len();
    let new = md::NewInode { permissions: 0o700, umask: 0, uid: 0, gid: 0 };
    let make = md::MakeDirectory { directory: InodeId::ROOT, name: b"d"[..].into(), new };
    let directory = story.ask(1, 1, (0, 1), &make).unwrap().entry.inode;
    story.lose_power_and_await_replay(durable);
    let mut map = map();
    let (other, shard) = (GroupId::new(3), ShardId::new(u16::MAX));
    map.targets.push(Target { id: TargetId::new(3), ..map.targets[0].clone() });
    map.groups.push(Group::of_one(other, TargetKind::Metadata, TargetId::new(3)));
    map.shards[0].last = ShardId::new(u16::MAX - 1);
    map.shards.push(ShardRange { first: shard, last: shard, group: other });
    map.targets[0].reachability = Reachability::Offline;
    map.version = MapVersion::new(2);
    story.happens(Event::Map(map.into()));
    story.end_replay(2);
    story.ask(1, 1, (REPLAY_SLOT, 1), &create_again(1, &make, directory)).unwrap();
    story.end_replay(1);
    assert_eq!(story.lookup(InodeId::ROOT, "d").unwrap().inode, directory);
}

#[test]
fn replay_with_a_different_outcome_is_refused() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let durable = story.log.len();
    story.lose_power_and_await_replay(durable);
    story.end_replay(2);
    let open = md::Create { exclusive: false, ..create_in(InodeId::ROOT, "a") };
    let refused = story.ask(1, 1, (REPLAY_SLOT, 1), &create_again(2, &open, file)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Stale, "the first request had created the file");
    let refused = story.ask(1, 1, (REPLAY_SLOT, 2), &replay_of(3, &truncate(file))).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unsupported, "a truncation would remove later writes");
    story.end_replay(1);
    let opens = story.ask(1, 1, (0, 0), &md::GetEntryInfo { inode: file }).unwrap().open_sessions;
    assert_eq!(opens, 1);
}

/// Like hole H20, but the replay of the link fails. Therefore the target must refuse the replay of
/// the unlink, which would remove the last name.
#[test]
fn no_unlink_is_replayed_after_a_failed_replay() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let durable = story.log.len();
    story.lose_power_and_await_replay(durable);
    story.end_replay(2);
    let refused = story.ask(1, 1, (REPLAY_SLOT, 1), &replay_of(2, &link(file, "a"))).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Exists);
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() };
    let refused = story.ask(1, 1, (REPLAY_SLOT, 2), &replay_of(3, &unlink)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Stale);
    let directory = InodeId::ROOT;
    let new = md::NewInode { permissions: 0o700, umask: 0, uid: 0, gid: 0 };
    let make = md::MakeDirectory { directory, name: b"d"[..].into(), new };
    let made = create_again(4, &make, InodeId::from_parts(directory.shard(), 1_000));
    story.ask(1, 1, (REPLAY_SLOT, 3), &made).expect("this change removes no name");
    story.end_replay(1);
    assert_eq!(story.lookup(InodeId::ROOT, "a").unwrap().inode, file);
}

/// Hole H48 in `docs/tests/holes.md`. Like `no_unlink_is_replayed_after_a_failed_replay`, but the
/// session with the link ends before its turn.
#[test]
fn no_unlink_is_replayed_if_a_session_ends_before_its_replay() {
    let mut story = Story::begin();
    let file = story.create(2, (0, 1));
    let durable = story.log.len();
    story.lose_power_and_await_replay(durable);
    let replay = md::Replay { inode: file, ..replay_of(2, &link(file, "b")) };
    story.send(1, 1, (REPLAY_SLOT, 1), &replay);
    story.send(3, 1, (0, 0), &md::CloseSession {});
    assert!(story.replies.iter().any(|(on, result)| *on == 1 && result.is_err()));
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() };
    let refused = story.ask(4, 2, (REPLAY_SLOT, 1), &replay_of(3, &unlink)).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Stale, "the name may be the last one of the file");
    story.end_replay(2);
    assert_eq!(story.lookup(InodeId::ROOT, "a").unwrap().inode, file);
}

/// A client uses a sequence number for each lost change, also for a change that it skips without a
/// request.
#[test]
fn replay_slot_accepts_gaps_between_its_sequences() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let durable = story.log.len();
    story.ask(1, 1, (0, 2), &link(file, "b")).unwrap();
    story.ask(1, 1, (1, 1), &link(file, "c")).unwrap();
    story.lose_power_and_await_replay(durable);
    story.end_replay(2);
    let replay = |change, name| md::Replay { inode: file, ..replay_of(change, &link(file, name)) };
    story.ask(1, 1, (REPLAY_SLOT, 2), &replay(2, "b")).unwrap();
    story.ask(1, 1, (REPLAY_SLOT, 5), &replay(3, "c")).unwrap();
    let late = story.ask(1, 1, (REPLAY_SLOT, 4), &replay(3, "d")).unwrap_err();
    assert_eq!(late.code(), ErrorCode::Stale, "a late request with a skipped sequence never runs");
    story.end_replay(1);
    assert_eq!(story.lookup(InodeId::ROOT, "c").unwrap().inode, file);
    assert_eq!(story.lookup(InodeId::ROOT, "d").unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn replay_ends_after_a_lease_without_progress() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let durable = story.log.len();
    story.lose_power_and_await_replay(durable);
    story.send(1, 1, (REPLAY_SLOT, 1), &replay_of(2, &link(file, "b")));
    assert!(story.replies.is_empty(), "the client of session 2 is dead");
    story.pass_lease();
    let (on, result) = story.replies.pop().expect("the target no longer waits for session 2");
    assert_eq!(on, 1);
    assert_eq!(result.unwrap_err().code(), ErrorCode::Stale, "the link has no inode zero");
    story.end_replay(1);
    let late = story.ask(1, 2, (REPLAY_SLOT, 1), &replay_of(3, &link(file, "c"))).unwrap_err();
    assert_eq!(late.code(), ErrorCode::Stale);
    story.ask(1, 2, (0, 1), &link(file, "b")).unwrap();
}

/// Hole H46 in `docs/tests/holes.md`.
#[test]
fn replay_waits_for_clients_after_a_pause_of_the_target() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    let durable = story.log.len();
    story.lose_power_and_await_replay(durable);
    story.send(1, 1, (REPLAY_SLOT, 1), &replay_of(2, &link(file, "b")));
    story.now += lease() * 2;
    story.happens(Event::Tick);
    assert!(story.replies.is_empty(), "the target has read no request of the other client");
    story.pass_lease();
    assert_eq!(story.replies.len(), 1, "the target no longer waits for the other client");
}

/// Hole H46 in `docs/tests/holes.md`. The device needs longer than a lease for the first sync after
/// the power loss, and clients can compare their changes only after this sync.
#[test]
fn replay_waits_for_clients_until_the_start_is_durable() {
    let mut story = Story::begin();
    let durable = story.log.len();
    story.create(1, (0, 1));
    story.log.truncate(durable);
    story.kill();
    story.target.await_replay();
    let mut held = Vec::new();
    for _ in 0..9 {
        story.now += lease() / 8;
        held.extend(story.run(vec![Event::Tick]));
    }
    assert_eq!(story.target.shared.starts.current(), None, "no client can begin its replay");
    assert!(story.target.is_replaying());
    story.happen_together(held);
    assert!(story.target.is_replaying());
    story.pass_lease();
    assert!(!story.target.is_replaying());
}

#[test]
fn killed_target_and_restored_backup_replay_nothing() {
    let mut story = Story::begin();
    let file = story.create(1, (0, 1));
    story.restart();
    let refused = story.ask(1, 1, (REPLAY_SLOT, 1), &replay_of(2, &link(file, "b"))).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Stale);
    story.kill();
    story.target.await_replay();
    assert!(story.target.is_replaying());
    story.target.continue_above_copy();
    assert!(!story.target.is_replaying());
}

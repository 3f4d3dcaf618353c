//! Tests of several members in one thread, whose network connections the tests interrupt, and the
//! storage tests of the Raft library.

use super::*;
use crate::limits::{ENTRIES_KEPT, ENTRIES_PER_SNAPSHOT, MAX_COMMAND_BYTES, MAX_MESSAGE_BYTES};
use crate::log_file::LogFile;
use crate::log_store::LogStore;
use crate::raft_types::{StorageError, Types};
use crate::snapshot_end::SnapshotEnd;
use crate::state_store::StateStore;
use skep_types::{ClusterId, Error, ErrorCode, Result};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

const CLUSTER: ClusterId = ClusterId::new([9; 16]);

/// A state machine whose state is the bytes of all commands. The outcome of a command is the length
/// of this state.
#[derive(Default)]
struct Commands(Vec<u8>);

impl StateMachine for Commands {
    fn apply(&mut self, _: LogPosition, command: &[u8]) -> Result<Vec<u8>> {
        self.0.extend(command);
        Ok(self.0.len().to_string().into_bytes())
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.0 = state.to_vec();
        Ok(())
    }
}

/// Creates empty stores for the storage tests of the Raft library.
struct Stores;

impl openraft::testing::StoreBuilder<Types, LogStore, StateStore<Commands>, tempfile::TempDir>
    for Stores
{
    async fn build(
        &self,
    ) -> std::result::Result<(tempfile::TempDir, LogStore, StateStore<Commands>), StorageError>
    {
        let directory = tempfile::tempdir().unwrap();
        LogFile::create(directory.path(), CLUSTER, 1).unwrap();
        let log = LogFile::open(directory.path(), CLUSTER, 1).unwrap();
        let state = StateStore::open(directory.path(), CLUSTER, Commands::default()).unwrap();
        // The tests of the Raft library remove entries whose effects no snapshot contains. So the
        // log must not wait for a snapshot.
        let end = SnapshotEnd::default();
        end.advance(u64::MAX);
        Ok((directory, LogStore::new(log, end), state))
    }
}

#[test]
fn stores_pass_the_storage_tests_of_the_raft_library() {
    openraft::testing::Suite::test_all(Stores).unwrap();
}

/// The running members, and the ids of the disconnected members.
#[derive(Default)]
struct Network {
    members: RefCell<BTreeMap<u64, Rc<Member<Commands>>>>,
    cut_off: RefCell<BTreeSet<u64>>,
    calls: Cell<u64>,
}

/// The transport of one member: its requests go through the [`Network`] to the other members.
struct Line {
    network: Rc<Network>,
    from: u64,
}

impl Transport for Line {
    async fn call(&self, to: u64, _: &[String], request: Vec<u8>, _: Duration) -> Result<Vec<u8>> {
        assert!(request.len() <= MAX_MESSAGE_BYTES, "a message of {} bytes", request.len());
        let is_cut = |member| self.network.cut_off.borrow().contains(member);
        let lost = || Error::new(ErrorCode::Disconnected, format!("member {to} is disconnected"));
        let member = self.network.members.borrow().get(&to).cloned();
        let Some(member) = member.filter(|_| !is_cut(&to) && !is_cut(&self.from)) else {
            return Err(lost());
        };
        self.network.calls.set(self.network.calls.get() + 1);
        let reply = member.handle(&request).await;
        match is_cut(&to) || is_cut(&self.from) {
            true => Err(lost()),
            false => Ok(reply),
        }
    }
}

/// Members 1 to 3 with their directories.
struct Group {
    directories: Vec<tempfile::TempDir>,
    network: Rc<Network>,
}

impl Group {
    /// Starts a log with member 1 only.
    async fn of_one() -> Self {
        let directories = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let group = Self { directories, network: Rc::default() };
        let machine = (0, &Commands::default());
        Member::found(&group.settings(1), vec!["one".into()], machine).unwrap();
        [2, 3].iter().for_each(|id| Member::<Commands>::create(&group.settings(*id)).unwrap());
        group.start(1).await;
        group.leader(|_| true).await;
        group
    }

    /// Starts a log with three members.
    async fn of_three() -> Self {
        let group = Self::of_one().await;
        for id in [2, 3] {
            group.start(id).await;
            group.member(1).add_member(id, vec![id.to_string()]).await.unwrap();
        }
        assert_eq!(group.member(1).voters(), [1, 2, 3]);
        group
    }

    fn settings(&self, id: u64) -> MemberSettings {
        let directory = self.directories[id as usize - 1].path().to_owned();
        MemberSettings { directory, cluster: CLUSTER, id }
    }

    async fn open(&self, id: u64) -> Result<Member<Commands>> {
        let line = Line { network: Rc::clone(&self.network), from: id };
        Member::open(&self.settings(id), Commands::default(), line).await
    }

    async fn start(&self, id: u64) {
        let member = self.open(id).await.unwrap();
        self.network.members.borrow_mut().insert(id, Rc::new(member));
    }

    /// Ends a member without a message to the other members.
    async fn kill(&self, id: u64) {
        let member = self.network.members.borrow_mut().remove(&id).unwrap();
        member.end().await;
    }

    fn member(&self, id: u64) -> Rc<Member<Commands>> {
        Rc::clone(&self.network.members.borrow()[&id])
    }

    /// Waits for a leader for which `is_wanted` holds and which a majority confirms. Returns the
    /// leader's id.
    async fn leader(&self, is_wanted: impl Fn(u64) -> bool) -> u64 {
        let deadline = skep_env::now() + Duration::from_secs(20);
        loop {
            let ids: Vec<u64> = self.network.members.borrow().keys().copied().collect();
            for id in ids.into_iter().filter(|id| is_wanted(*id)) {
                let member = self.member(id);
                if member.leader() == Some(id) && member.confirm().await.is_ok() {
                    return id;
                }
            }
            assert!(skep_env::now() < deadline, "a leader is elected");
            skep_env::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until all members have applied exactly `commands`.
    async fn all_have(&self, commands: &[u8]) {
        let members: Vec<_> = self.network.members.borrow().values().cloned().collect();
        for member in members {
            until("all commands are applied", || member.with_state(|it| it.0 == commands)).await;
        }
    }
}

async fn until(condition: &str, holds: impl Fn() -> bool) {
    let deadline = skep_env::now() + Duration::from_secs(20);
    while !holds() {
        assert!(skep_env::now() < deadline, "{condition}");
        skep_env::sleep(Duration::from_millis(5)).await;
    }
}

fn run(test: impl Future<Output = ()> + 'static) {
    skep_env::block_on(test).unwrap();
}

#[test]
fn single_member_keeps_its_commands_across_restarts() {
    run(async {
        let group = Group::of_one().await;
        for (number, command) in (1..).zip([b'a', b'b', b'c']) {
            let outcome = group.member(1).propose(vec![command]).await.unwrap();
            assert_eq!(outcome, number.to_string().into_bytes());
        }
        group.kill(1).await;
        group.start(1).await;
        group.leader(|_| true).await;
        assert_eq!(group.member(1).propose(vec![b'd']).await.unwrap(), b"4");
        group.all_have(b"abcd").await;
        let long = group.member(1).propose(vec![0; (1 << 20) + 1]).await.unwrap_err();
        assert!(
            matches!(long, ProposeError::Refused(error) if error.code() == ErrorCode::TooLarge)
        );
        assert_eq!(group.network.calls.get(), 0, "one member sends nothing");
    });
}

#[test]
fn new_leader_is_elected_in_3_s_and_has_all_commands() {
    run(async {
        let group = Group::of_three().await;
        assert_eq!(group.member(1).propose(vec![b'a']).await.unwrap(), b"1");
        let follower = group.member(2).propose(vec![b'x']).await.unwrap_err();
        let ProposeError::NotLeader { leader, addresses } = follower else {
            panic!("a follower does not propose: {follower:?}")
        };
        assert_eq!((leader, addresses), (Some(1), vec!["one".to_owned()]));
        let killed_at = skep_env::now();
        group.kill(1).await;
        let leader = group.leader(|_| true).await;
        let pause = skep_env::now() - killed_at;
        assert!(pause < Duration::from_secs(3), "{pause:?}");
        assert_eq!(group.member(leader).propose(vec![b'b']).await.unwrap(), b"2");
        // The previous leader returns as a follower, and receives the missing commands.
        group.start(1).await;
        group.all_have(b"ab").await;
        group.kill(leader).await;
        let leader = group.leader(|_| true).await;
        assert_eq!(group.member(leader).propose(vec![b'c']).await.unwrap(), b"3");
        group.all_have(b"abc").await;
    });
}

#[test]
fn isolated_leader_confirms_nothing_and_loses_its_proposal() {
    run(async {
        let group = Group::of_three().await;
        let former = group.member(1);
        group.network.cut_off.borrow_mut().insert(1);
        let proposing = {
            let former = Rc::clone(&former);
            skep_env::spawn(async move { former.propose(vec![b'x']).await })
        };
        let leader = group.leader(|id| id != 1).await;
        assert!(former.confirm().await.is_err());
        assert_eq!(group.member(leader).propose(vec![b'a']).await.unwrap(), b"1");
        assert!(former.with_state(|it| it.0.is_empty()));
        group.network.cut_off.borrow_mut().clear();
        let lost = skep_env::timeout(Duration::from_secs(20), proposing).await;
        assert!(matches!(lost, Some(Err(_))), "the sender gets an error: {lost:?}");
        group.all_have(b"a").await;
    });
}

#[test]
fn command_is_acknowledged_after_two_of_three_members_have_it() {
    run(async {
        let group = Group::of_three().await;
        group.kill(3).await;
        assert_eq!(group.member(1).propose(vec![b'a']).await.unwrap(), b"1");
        group.network.cut_off.borrow_mut().insert(2);
        let alone = group.member(1);
        let proposed = skep_env::timeout(Duration::from_secs(2), alone.propose(vec![b'b'])).await;
        assert!(!matches!(proposed, Some(Ok(_))), "one of three members acknowledges nothing");
        group.network.cut_off.borrow_mut().clear();
        group.leader(|_| true).await;
        assert!(alone.with_state(|it| it.0.starts_with(b"a")));
    });
}

#[test]
fn member_that_missed_many_entries_receives_a_snapshot() {
    run(async {
        let group = Group::of_three().await;
        group.kill(3).await;
        let leader = group.member(1);
        let mut expected = 0;
        let far = (ENTRIES_PER_SNAPSHOT * 2 + ENTRIES_KEPT) as usize;
        while expected < far {
            let batch = (0..128).map(|_| {
                let leader = Rc::clone(&leader);
                skep_env::spawn(async move { leader.propose(vec![b'a']).await.map(drop) })
            });
            for proposing in batch.collect::<Vec<_>>() {
                proposing.await.unwrap();
                expected += 1;
            }
        }
        group.start(3).await;
        group.all_have(&vec![b'a'; expected]).await;
        let snapshot = group.directories[2].path().join("raft-snapshot");
        assert!(snapshot.exists(), "the leader no longer has the first log entries");
        // At the next start, the snapshot and the entries after it give the same state.
        group.kill(3).await;
        group.start(3).await;
        group.all_have(&vec![b'a'; expected]).await;
        // On a busy host, the other voter may be the leader now.
        let leader = group.leader(|id| id != 3).await;
        group.member(leader).remove_member(3).await.unwrap();
        until("the voters are known", || group.member(2).voters() == [1, 2]).await;
    });
}

#[test]
fn returning_member_receives_long_entries_in_several_messages() {
    run(async {
        let group = Group::of_three().await;
        group.kill(3).await;
        let mut expected = Vec::new();
        for byte in 0..6 {
            let command = vec![byte; MAX_COMMAND_BYTES];
            group.member(1).propose(command.clone()).await.unwrap();
            expected.extend(command);
        }
        group.start(3).await;
        group.all_have(&expected).await;
    });
}

#[test]
fn member_refuses_a_directory_with_a_missing_file() {
    run(async {
        let group = Group::of_one().await;
        let again = Member::<Commands>::create(&group.settings(1)).unwrap_err();
        assert_eq!(again.code(), ErrorCode::Configuration);
        let leader = group.member(1);
        let rounds = (ENTRIES_PER_SNAPSHOT * 2) as usize;
        for _ in 0..rounds / 128 {
            let batch = (0..128).map(|_| {
                let leader = Rc::clone(&leader);
                skep_env::spawn(async move { leader.propose(vec![b'a']).await.map(drop) })
            });
            for proposing in batch.collect::<Vec<_>>() {
                proposing.await.unwrap();
            }
        }
        drop(leader);
        let (log, snapshot) = ("raft-log", "raft-snapshot");
        let path = |name| group.directories[0].path().join(name);
        until("the log has removed entries", || {
            // Opening a log writes to its file, so the test opens a copy.
            let copy = tempfile::tempdir().unwrap();
            std::fs::copy(path(log), copy.path().join(log)).unwrap();
            LogFile::open(copy.path(), CLUSTER, 1).is_ok_and(|log| log.removed().is_some())
        })
        .await;
        group.kill(1).await;
        for name in [log, snapshot] {
            let bytes = std::fs::read(path(name)).unwrap();
            std::fs::remove_file(path(name)).unwrap();
            let error = group.open(1).await.err().unwrap();
            assert_eq!(error.code(), ErrorCode::Corrupt);
            assert!(error.context().contains(log), "{error}");
            assert!(error.context().contains("add it with a new id"), "{error}");
            std::fs::write(path(name), bytes).unwrap();
        }
        group.start(1).await;
        group.leader(|_| true).await;
        group.all_have(&vec![b'a'; rounds]).await;
    });
}

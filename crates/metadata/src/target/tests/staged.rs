//! Tests of staged transactions: a change of two groups whose logs are synced at the same time. In
//! the first tests, this target coordinates the change. In the last tests, this target is the
//! participant.

use super::*;
use crate::limits::{ASK_AFTER, RESOLVABLE_AFTER};
use skep_types::{Attributes, STAGING_FEATURE_LEVEL};
use skep_wire::management::EmptyReply;

const OTHER: GroupId = GroupId::new(3);
/// A file of the other metadata group.
const REMOTE: InodeId = InodeId::new(0x9000_0000_0000_0042);

/// Returns a map in which another metadata group serves the upper half of the shards.
fn map_of_two_groups(feature_level: u32) -> ClusterMap {
    let mut map = map();
    map.groups.push(Group::of_one(OTHER, TargetKind::Metadata, TargetId::new(3)));
    map.shards[0].last = ShardId::new(0x7FFF);
    let (first, last) = (ShardId::new(0x8000), ShardId::new(u16::MAX));
    map.shards.push(ShardRange { first, last, group: OTHER });
    map.version = MapVersion::new(2);
    map.feature_level = feature_level;
    map
}

fn begin() -> Story {
    let mut story = Story::begin();
    story.happens(Event::Map(map_of_two_groups(STAGING_FEATURE_LEVEL).into()));
    story
}

fn since() -> Timestamp {
    Timestamp { seconds: 7, nanoseconds: 9 }
}

/// Returns the reply of the other group that has prepared a link to [`REMOTE`].
fn prepared_link() -> md::BeginPrepareReply {
    let file = Attributes::new(REMOTE, FileKind::Regular, 0o600, Timestamp::default());
    md::BeginPrepareReply { busy: false, attributes: vec![file], since: since() }
}

fn confirmed(is_prepared: bool) -> md::ConfirmPreparedReply {
    md::ConfirmPreparedReply { is_prepared }
}

fn lookup(story: &mut Story) -> Result<md::EntryReply> {
    let name = b"a".as_slice().into();
    story.ask(9, 2, (0, 0), &md::Lookup { directory: InodeId::ROOT, name })
}

/// Links [`REMOTE`] as "a" in the root directory, up to the reply of `BeginPrepare`.
fn stage_link(story: &mut Story) {
    story.send(1, 1, (0, 1), &link(REMOTE, "a"));
    story.answer::<md::BeginPrepare>(&prepared_link());
    assert!(story.replies.is_empty(), "the participant may still lose its prepared transaction");
}

fn unlink() -> md::Unlink {
    md::Unlink { directory: InodeId::ROOT, name: b"a".as_slice().into() }
}

/// Removes the name "a" of [`REMOTE`] on a connection of a session, up to the reply of
/// `BeginPrepare`.
fn stage_unlink(story: &mut Story, (connection, session): (u64, u64), request: (u32, u64)) {
    story.send(connection, session, request, &unlink());
    let removal = md::BeginPrepareReply { attributes: Vec::new(), ..prepared_link() };
    story.answer::<md::BeginPrepare>(&removal);
}

/// Completes a staged transaction after the confirmation of the participant.
fn complete(story: &mut Story) {
    story.answer::<md::ConfirmPrepared>(&confirmed(true));
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
    story.answer::<md::ApplyPrepared>(&EmptyReply {});
    story.answer::<md::Decide>(&EmptyReply {});
    assert!(story.target.is_idle() && story.replies.is_empty());
}

#[test]
fn staged_change_is_acknowledged_when_both_logs_are_synced() {
    let mut story = begin();
    story.send(1, 1, (0, 1), &link(REMOTE, "a"));
    let (call, request) = story.calls.remove(0);
    assert_eq!((request.group, request.message), (OTHER, md::BeginPrepare::ID));
    let result = Ok(prepared_link().to_bytes());
    let synced = story.run(vec![Event::Answer { call, result }]);
    assert!(matches!(synced[..], [Event::Synced { .. }]), "a sync begins: {synced:?}");
    let (call, request) = story.calls.remove(0);
    assert_eq!(request.message, md::ConfirmPrepared::ID);
    let asked = md::ConfirmPrepared::from_bytes(&request.body).unwrap();
    assert_eq!(asked.since, since());
    let result = Ok(confirmed(true).to_bytes());
    let next = story.run(vec![Event::Answer { call, result }]);
    assert!(
        next.is_empty() && story.replies.is_empty(),
        "the log of this target is not synced yet"
    );
    let next = story.run(synced);
    let (connection, reply) = story.replies.pop().expect("both logs are synced");
    let linked = md::NewEntryReply::from_bytes(&reply.unwrap()).unwrap();
    assert_eq!((connection, linked.entry.inode), (1, REMOTE));
    assert_eq!(story.calls.len(), 1, "the decision is not durable yet");
    story.answer::<md::ApplyPrepared>(&EmptyReply {});
    story.happen_together(next);
    story.answer::<md::Decide>(&EmptyReply {});
    assert!(story.target.is_idle());
    assert_eq!(lookup(&mut story).unwrap().inode, REMOTE);
}

#[test]
fn name_of_a_staged_change_is_locked_until_its_end() {
    let mut story = begin();
    stage_link(&mut story);
    let name = b"a".as_slice().into();
    story.send(5, 2, (0, 0), &md::Lookup { directory: InodeId::ROOT, name });
    story.send(6, 2, (0, 1), &unlink());
    assert!(story.replies.is_empty(), "both requests wait for the name");
    let (directory, max_bytes) = (InodeId::ROOT, 1000);
    let list = md::ReadDirectory { directory, cursor: 0, max_bytes, with_attributes: false };
    assert_eq!(story.ask(7, 2, (0, 0), &list).unwrap().entries.len(), 1);
    story.answer::<md::ConfirmPrepared>(&confirmed(true));
    let mut connections: Vec<_> = story.replies.drain(..).map(|(on, _)| on).collect();
    connections.sort_unstable();
    assert_eq!(connections, [1, 5], "the unlink asks the other group now");
    assert!(story.calls.iter().any(|(_, it)| it.message == md::BeginPrepare::ID));
}

#[test]
fn staged_change_is_undone_if_the_participant_has_lost_it() {
    let mut story = begin();
    stage_link(&mut story);
    story.answer::<md::ConfirmPrepared>(&confirmed(false));
    let (_, refused) = story.replies.pop().expect("a refusal");
    assert_eq!(refused.unwrap_err().code(), ErrorCode::Busy);
    assert_eq!(lookup(&mut story).unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(story.size(InodeId::ROOT), 0);
    assert!(story.target.is_idle() && story.calls.is_empty());
    // The client repeats the request, which runs again.
    stage_link(&mut story);
    complete(&mut story);
    assert_eq!((story.size(InodeId::ROOT), lookup(&mut story).unwrap().inode), (1, REMOTE));
    // The removal of the name is undone in the same way, also after a restart.
    stage_unlink(&mut story, (1, 1), (0, 2));
    assert_eq!(story.size(InodeId::ROOT), 0);
    story.restart();
    story.happens(Event::Map(map_of_two_groups(STAGING_FEATURE_LEVEL).into()));
    story.answer::<md::ConfirmPrepared>(&confirmed(false));
    assert_eq!((story.size(InodeId::ROOT), lookup(&mut story).unwrap().inode), (1, REMOTE));
}

/// If the request ran again earlier, a power loss could remove the second execution and the undo.
/// The slot would then show the acknowledged change as executed, and its client would not replay
/// it.
#[test]
fn undone_request_runs_again_only_after_a_sync_of_the_undo() {
    let mut story = begin();
    stage_link(&mut story);
    let (call, _) = story.calls.remove(0);
    let result = Ok(confirmed(false).to_bytes());
    let synced = story.run(vec![Event::Answer { call, result }]);
    assert!(matches!(synced[..], [Event::Synced { .. }]), "a sync begins: {synced:?}");
    let next = story.run(vec![arrival(2, 1, (0, 1), &link(REMOTE, "a"))]);
    assert!(next.is_empty() && story.replies.is_empty() && story.calls.is_empty());
    story.happen_together(synced);
    let refused = |(_, reply): (ConnectionId, Result<Vec<u8>>)| reply.unwrap_err().code();
    let refusals: Vec<_> = story.replies.drain(..).map(refused).collect();
    assert_eq!(refusals, [ErrorCode::Busy, ErrorCode::Busy]);
    stage_link(&mut story);
    complete(&mut story);
}

/// The record of the undone request has the sequence number of the request. If a power loss removed
/// only the second execution, the client would take its acknowledged change for stored, and would
/// not replay it.
#[test]
fn repeat_of_an_undone_request_is_synced_before_its_reply() {
    let mut story = begin();
    stage_link(&mut story);
    complete(&mut story);
    stage_unlink(&mut story, (1, 1), (0, 2));
    story.answer::<md::ConfirmPrepared>(&confirmed(false));
    let (_, refused) = story.replies.pop().expect("a refusal");
    assert_eq!(refused.unwrap_err().code(), ErrorCode::Busy);
    // Another client replaces the name by a file of this group, so the second execution spans no
    // other group.
    stage_unlink(&mut story, (2, 2), (0, 1));
    complete(&mut story);
    story.create_as("a", 2, (0, 2));
    let synced = story.run(vec![arrival(1, 1, (0, 2), &unlink())]);
    assert!(story.replies.is_empty() && story.calls.is_empty(), "the unlink is not synced yet");
    story.happen_together(synced);
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
}

#[test]
fn restarted_coordinator_asks_its_participant_before_it_commits() {
    let mut story = begin();
    stage_link(&mut story);
    let question = story.calls[0].1.body.clone();
    story.restart();
    story.happens(Event::Map(map_of_two_groups(STAGING_FEATURE_LEVEL).into()));
    assert_eq!((story.calls.len(), &story.calls[0].1.body), (1, &question));
    let asked = md::ConfirmPrepared::from_bytes(&question).unwrap();
    let transaction = asked.transaction;
    let reply = story.ask(3, 0, (0, 0), &md::AskDecision { transaction }).unwrap();
    assert_eq!(reply.decision, md::Decision::Pending);
    story.send(2, 1, (0, 1), &link(REMOTE, "a"));
    assert!(story.replies.is_empty(), "the repeated request waits for the outcome");
    story.send(2, 1, (0, 0), &md::CloseSession {});
    story.replies.clear();
    let (slot, sequence) = (0, 1);
    let outcome = md::AskOutcome { session: SessionId::new(1), slot, sequence };
    let refused = story.ask(4, 2, (0, 0), &outcome).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Busy, "{refused}");
    // A refusal of the participant does not decide the transaction.
    let (call, _) = story.calls.remove(0);
    let result = Err(ErrorCode::Unsupported.into());
    story.happens(Event::Answer { call, result });
    story.now += Duration::from_secs(2);
    story.happens(Event::Tick);
    story.answer::<md::ConfirmPrepared>(&confirmed(true));
    let (connection, reply) = story.replies.pop().expect("the outcome is certain");
    assert!(connection == 2 && reply.is_ok());
    let outcome = story.ask(4, 2, (0, 0), &outcome).unwrap().outcome;
    assert!(matches!(outcome, md::Outcome::Executed { .. }), "{outcome:?}");
    story.answer::<md::ApplyPrepared>(&EmptyReply {});
    story.answer::<md::Decide>(&EmptyReply {});
    let reply = story.ask(3, 0, (0, 0), &md::AskDecision { transaction }).unwrap();
    assert_eq!(reply.decision, md::Decision::Aborted, "the transaction is forgotten");
}

/// Returns the transactions that this target coordinates and that wait for another group.
fn coordinated(story: &mut Story) -> Vec<md::CoordinatedEntry> {
    let list = story.ask(9, 0, (0, 0), &md::ListCoordinated { after: 0 }).unwrap();
    assert_eq!(list.next, None);
    list.transactions
}

#[test]
fn coordinator_lists_staged_and_unconfirmed_transactions() {
    let mut story = begin();
    stage_link(&mut story);
    story.now += Duration::from_secs(61);
    let listed = coordinated(&mut story);
    let [staged] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((&staged.participants[..], &staged.name[..]), (&[OTHER][..], b"a".as_slice()));
    assert!(staged.directory == Some(InodeId::ROOT) && staged.waits_ms >= 61_000, "{listed:?}");
    story.answer::<md::ConfirmPrepared>(&confirmed(true));
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
    let listed = coordinated(&mut story);
    let [committed] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!(committed.transaction, staged.transaction);
    assert_eq!((&committed.participants[..], committed.directory), (&[OTHER][..], None));
    // A refusal of the participant does not shorten the time in the list.
    story.answer::<md::ApplyPrepared>(&EmptyReply {});
    let (call, _) = story.calls.remove(0);
    story.happens(Event::Answer { call, result: Err(ErrorCode::Unsupported.into()) });
    story.now += Duration::from_secs(2);
    story.happens(Event::Tick);
    assert!(coordinated(&mut story)[0].waits_ms >= 2_000, "{:?}", coordinated(&mut story));
    story.answer::<md::Decide>(&EmptyReply {});
    assert!(coordinated(&mut story).is_empty());
}

#[test]
fn transactions_are_staged_only_from_their_feature_level_on() {
    let mut story = Story::begin();
    story.happens(Event::Map(map_of_two_groups(STAGING_FEATURE_LEVEL - 1).into()));
    story.send(1, 1, (0, 1), &link(REMOTE, "a"));
    assert_eq!(story.calls[0].1.message, md::Prepare::ID);
}

// ---- the participant

fn id(number: u64) -> md::TransactionId {
    md::TransactionId { coordinator: OTHER, number }
}

fn begin_prepare(number: u64, step: md::Step) -> md::BeginPrepare {
    md::BeginPrepare { transaction: id(number), steps: vec![step] }
}

/// Prepares transaction 7, and checks that the reply does not wait for the sync that begins.
/// Returns the time in the reply, and the event that ends the sync.
fn prepare_without_sync(story: &mut Story) -> (Timestamp, Vec<Event>) {
    let begin = begin_prepare(7, md::Step::LockRename);
    let synced = story.run(vec![arrival(1, 0, (0, 0), &begin)]);
    assert!(matches!(synced[..], [Event::Synced { .. }]), "a sync begins: {synced:?}");
    let (_, reply) = story.replies.pop().expect("the reply waits for no sync");
    let reply = md::BeginPrepareReply::from_bytes(&reply.unwrap()).unwrap();
    assert!(!reply.busy);
    (reply.since, synced)
}

#[test]
fn prepared_transaction_is_confirmed_only_after_its_sync() {
    let mut story = Story::begin();
    let (since, synced) = prepare_without_sync(&mut story);
    let confirm = md::ConfirmPrepared { transaction: id(7), since };
    let next = story.run(vec![arrival(1, 0, (0, 0), &confirm)]);
    assert!(next.is_empty() && story.replies.is_empty(), "the record is not synced yet");
    story.happen_together(synced);
    let (_, reply) = story.replies.pop().expect("the record is synced");
    assert_eq!(md::ConfirmPreparedReply::from_bytes(&reply.unwrap()), Ok(confirmed(true)));
}

/// A busy participant appends further records during the sync that covers the prepared transaction.
/// If the confirmation waited for these records, the change would take two syncs of latency.
#[test]
fn confirmation_waits_for_no_later_record() {
    let mut story = Story::begin();
    let (since, synced) = prepare_without_sync(&mut story);
    story.run(vec![arrival(2, 1, (0, 1), &create_in(InodeId::ROOT, "b"))]);
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
    let confirm = md::ConfirmPrepared { transaction: id(7), since };
    story.run(vec![arrival(1, 0, (0, 0), &confirm)]);
    assert!(story.replies.is_empty(), "the prepared transaction is not synced yet");
    story.run(synced);
    let (_, reply) = story.replies.pop().expect("the prepared transaction is synced");
    assert_eq!(md::ConfirmPreparedReply::from_bytes(&reply.unwrap()), Ok(confirmed(true)));
}

#[test]
fn participant_that_denies_a_transaction_never_prepares_it() {
    let mut story = Story::begin();
    let confirm = |number| md::ConfirmPrepared { transaction: id(number), since: since() };
    assert_eq!(story.ask(1, 0, (0, 0), &confirm(7)), Ok(confirmed(false)));
    let late = story.ask(1, 0, (0, 0), &begin_prepare(7, md::Step::LockRename)).unwrap_err();
    assert_eq!(late.code(), ErrorCode::Stale, "{late}");
    story.restart();
    let late = story.ask(1, 0, (0, 0), &begin_prepare(7, md::Step::LockRename)).unwrap_err();
    assert_eq!(late.code(), ErrorCode::Stale, "{late}");
    // The coordinator has staged an earlier prepared transaction, which a power loss has removed. A
    // duplicate of the request was executed before the `ConfirmPrepared` request arrives.
    let duplicate = begin_prepare(8, md::Step::LockRename);
    assert!(!story.ask(1, 0, (0, 0), &duplicate).unwrap().busy);
    assert!(story.ask(1, 0, (0, 0), &begin_prepare(9, md::Step::LockRename)).unwrap().busy);
    assert_eq!(story.ask(1, 0, (0, 0), &confirm(8)), Ok(confirmed(false)));
    assert!(!story.ask(1, 0, (0, 0), &begin_prepare(9, md::Step::LockRename)).unwrap().busy);
}

/// When a coordinator is back, it asks for its staged transaction. Without a confirmation, the
/// coordinator would undo its own part of an acknowledged change.
#[test]
fn transaction_that_an_administrator_commits_is_confirmed() {
    let mut story = begin();
    let begin = begin_prepare(7, md::Step::LockRename);
    let since = story.ask(1, 0, (0, 0), &begin).unwrap().since;
    story.now += ASK_AFTER;
    story.happens(Event::Tick);
    story.now += RESOLVABLE_AFTER;
    let commit = md::ResolveTransaction { transaction: id(7), commit: true };
    assert_eq!(story.ask(1, 0, (0, 0), &commit), Ok(EmptyReply {}));
    let next = begin_prepare(8, md::Step::LockRename);
    assert!(!story.ask(1, 0, (0, 0), &next).unwrap().busy, "the lock is free");
    let confirm = md::ConfirmPrepared { transaction: id(7), since };
    assert_eq!(story.ask(1, 0, (0, 0), &confirm), Ok(confirmed(true)));
    // The administrator repeats the commit, for example because the reply was lost. Meanwhile, a
    // restore of management has lowered the feature level.
    let older = map_of_two_groups(STAGING_FEATURE_LEVEL - 1);
    story.happens(Event::Map(ClusterMap { version: MapVersion::new(3), ..older }.into()));
    assert_eq!(story.ask(1, 0, (0, 0), &commit), Ok(EmptyReply {}));
    assert_eq!(story.ask(1, 0, (0, 0), &confirm), Ok(confirmed(true)));
    let decide = md::Decide { transaction: id(7), commit: true };
    assert_eq!(story.ask(1, 0, (0, 0), &decide), Ok(EmptyReply {}));
    let all = md::ListTransactions { after: md::TransactionId::default() };
    let listed = story.ask(1, 0, (0, 0), &all).unwrap().transactions;
    assert!(listed.iter().all(|it| it.transaction == id(8)), "{listed:?}");
}

#[test]
fn participant_stores_an_applied_transaction_until_its_decision() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let begin = begin_prepare(7, md::Step::DropLink { inode });
    let since = story.ask(1, 0, (0, 0), &begin).unwrap().since;
    let stat = md::GetAttributes { inode };
    story.send(5, 2, (0, 0), &stat);
    assert!(story.replies.is_empty(), "the inode is locked");
    for _ in 0..2 {
        story.send(1, 0, (0, 0), &md::ApplyPrepared { transaction: id(7) });
    }
    assert_eq!(story.replies.drain(..).count(), 3);
    assert_eq!(story.ask(5, 2, (0, 0), &stat).unwrap().attributes.links, 0);
    story.restart();
    let confirm = md::ConfirmPrepared { transaction: id(7), since };
    assert_eq!(story.ask(1, 0, (0, 0), &confirm), Ok(confirmed(true)));
    let all = md::ListTransactions { after: md::TransactionId::default() };
    let listed = story.ask(1, 0, (0, 0), &all).unwrap().transactions;
    assert_eq!((listed.len(), listed[0].steps), (1, 0));
    story.now += ASK_AFTER;
    story.happens(Event::Tick);
    story.now += RESOLVABLE_AFTER;
    let abort = md::ResolveTransaction { transaction: id(7), commit: false };
    let refused = story.ask(1, 0, (0, 0), &abort).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidArgument, "{refused}");
    story.ask(1, 0, (0, 0), &md::Decide { transaction: id(7), commit: true }).unwrap();
    assert!(story.ask(1, 0, (0, 0), &all).unwrap().transactions.is_empty());
    assert_eq!(story.ask(5, 2, (0, 0), &stat).unwrap().attributes.links, 0);
}

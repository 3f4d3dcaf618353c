//! Tests of prepared transactions of other groups: a coordinator that does not reply, a decision
//! that the target cannot carry out, and a decision by an administrator.

use super::*;
use crate::limits::{ASK_AFTER, MAX_PREPARED, RESOLVABLE_AFTER};
use skep_wire::management::EmptyReply;

fn id(number: u64) -> md::TransactionId {
    md::TransactionId { coordinator: GroupId::new(3), number }
}

fn resolve(number: u64) -> md::ResolveTransaction {
    md::ResolveTransaction { transaction: id(number), commit: false }
}

fn questions(story: &Story) -> usize {
    story.calls.iter().filter(|it| it.1.message == md::AskDecision::ID).count()
}

fn list(story: &mut Story) -> Vec<md::TransactionEntry> {
    let all = md::ListTransactions { after: md::TransactionId::default() };
    story.ask(1, 0, (0, 0), &all).unwrap().transactions
}

#[test]
fn call_to_another_group_has_the_trace_id_of_its_request() {
    let mut story = Story::begin();
    story.add_group();
    let earlier = story.calls.len();
    let rename = md::Rename {
        from_directory: InodeId::new(0x9000_0000_0000_0042),
        from_name: b"old".as_slice().into(),
        to_directory: InodeId::ROOT,
        to_name: b"new".as_slice().into(),
        no_replace: false,
        whiteout: None,
    };
    let Event::Request { connection, header, body } = arrival(1, 1, (0, 1), &rename) else {
        panic!("`arrival` returns a request")
    };
    let header = Header { trace: 0x77, ..header };
    story.happens(Event::Request { connection, header, body });
    let (_, request) = story.calls.get(earlier).expect("the old directory is at the other target");
    assert_eq!((request.group, request.trace), (GroupId::new(3), 0x77));
}

/// Regression test: the target sent another request to the coordinator each second, while all
/// earlier requests still waited for a reply.
#[test]
fn unreachable_coordinator_gets_only_one_request() {
    let mut story = Story::begin();
    let prepare = md::Prepare { transaction: id(7), steps: vec![md::Step::LockRename] };
    story.ask(1, 0, (0, 0), &prepare).unwrap();
    for _ in 0..20 {
        story.now += ASK_AFTER;
        story.happens(Event::Tick);
    }
    assert_eq!(questions(&story), 1);
    // After a reply without a decision, the target pauses before it asks again.
    story.answer::<md::AskDecision>(&md::DecisionReply { decision: md::Decision::Pending });
    story.happens(Event::Tick);
    assert_eq!(questions(&story), 0);
    story.now += ASK_AFTER;
    story.happens(Event::Tick);
    assert_eq!(questions(&story), 1);
}

#[test]
fn administrator_can_decide_for_a_silent_coordinator() {
    let mut story = Story::begin();
    let prepare =
        |number| md::Prepare { transaction: id(number), steps: vec![md::Step::LockRename] };
    story.ask(1, 0, (0, 0), &prepare(7)).unwrap();
    let error = story.ask(1, 0, (0, 0), &resolve(8)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    let error = story.ask(1, 0, (0, 0), &resolve(7)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InUse, "{error}");
    story.now += ASK_AFTER;
    story.happens(Event::Tick);
    story.now += RESOLVABLE_AFTER;
    let listed = list(&mut story);
    assert_eq!((listed.len(), listed[0].transaction), (1, id(7)));
    assert!(listed[0].silent_ms >= 10_000, "{listed:?}");
    assert!(story.ask(1, 0, (0, 0), &prepare(9)).unwrap().busy, "the lock is held");
    story.ask(1, 0, (0, 0), &resolve(7)).unwrap();
    assert!(list(&mut story).is_empty());
    assert!(!story.ask(1, 0, (0, 0), &prepare(9)).unwrap().busy, "the lock is free");
    // The coordinator works again. The target accepts its decision, so that the coordinator can end
    // the transaction.
    story.ask(1, 0, (0, 0), &md::Decide { transaction: id(7), commit: true }).unwrap();
    story.restart();
    assert_eq!(list(&mut story).len(), 1);
}

/// Regression test: when the target could not carry out a decision, its process ended, and the next
/// processes also ended soon after their start.
#[test]
fn failed_commit_of_a_transaction_blocks_no_other_work() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    // Each step would succeed without the other step.
    let step = md::Step::DropLink { inode };
    let prepare = md::Prepare { transaction: id(7), steps: vec![step.clone(), step] };
    story.ask(1, 0, (0, 0), &prepare).unwrap();
    let decide = md::Decide { transaction: id(7), commit: true };
    for _ in 0..2 {
        let error = story.ask(1, 0, (0, 0), &decide).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Stale, "{error}");
        story.restart();
    }
    // The coordinator repeats the decision in its reply to a request of the target.
    story.calls.retain(|it| it.1.message == md::AskDecision::ID);
    story.answer::<md::AskDecision>(&md::DecisionReply { decision: md::Decision::Committed });
    assert_eq!(story.target.stuck_transactions(), 1);
    let listed = list(&mut story);
    assert!(listed[0].problem.contains("was removed"), "{listed:?}");
    // The target still serves requests for other files.
    let open = md::OpenSession { client: NodeId::new(9), slots: 4 };
    story.ask(1, 5, (0, 0), &open).unwrap();
    story.create_as("b", 5, (0, 1));
    assert_eq!(story.ask(1, 0, (0, 0), &resolve(7)), Ok(EmptyReply {}));
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() };
    story.ask(1, 5, (0, 2), &unlink).unwrap();
}

#[test]
fn number_of_prepared_transactions_is_limited() {
    let mut story = Story::begin();
    // Transactions without steps keep this test short.
    let prepare = |number| {
        let prepare = md::Prepare { transaction: id(number), steps: Vec::new() };
        arrival(1, 0, (0, 0), &prepare)
    };
    let numbers: Vec<u64> = (1..=MAX_PREPARED as u64).collect();
    for some in numbers.chunks(256) {
        story.happen_together(some.iter().copied().map(prepare).collect());
    }
    assert!(story.replies.drain(..).all(|(_, result)| result.is_ok()));
    let more = md::Prepare { transaction: id(1 << 40), steps: Vec::new() };
    let error = story.ask(1, 0, (0, 0), &more).unwrap_err();
    assert_eq!(error.code(), ErrorCode::LimitReached, "{error}");
}

#[test]
fn reply_to_a_decision_waits_for_the_periodic_sync() {
    let mut story = Story::begin();
    let prepare = md::Prepare { transaction: id(7), steps: vec![md::Step::LockRename] };
    let next = story.run(vec![arrival(1, 0, (0, 0), &prepare)]);
    assert!(matches!(next[..], [Event::Synced { .. }]), "a coordinator waits for this reply");
    story.happen_together(next);
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
    let decide = md::Decide { transaction: id(7), commit: true };
    let next = story.run(vec![arrival(1, 0, (0, 0), &decide)]);
    assert!(matches!(next[..], [Event::Tick]), "no sync begins: {next:?}");
    assert!(story.replies.is_empty());
    story.happen_together(next);
    assert!(story.replies.pop().is_some_and(|(_, reply)| reply.is_ok()));
}

//! Tests of requests that arrive twice, late, or after a newer request.

use super::*;

/// Regression test: the target did not remember which requests it had refused. A copy of a refused
/// unlink arrived late, on a connection that its client no longer used. The target ran this copy,
/// which removed a name that another client had created meanwhile.
#[test]
fn a_late_copy_of_a_refused_request_does_not_run() {
    let mut story = Story::begin();
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a"[..].into() };
    for on in [1, 2] {
        let refused = story.ask(on, 1, (0, 1), &unlink).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotFound);
        if on == 1 {
            story.create(2, (0, 1));
        }
    }
    let lookup = md::Lookup { directory: InodeId::ROOT, name: b"a"[..].into() };
    story.ask(1, 1, (0, 0), &lookup).expect("the name is still there");
}

/// Regression test: the target stored the refusal of a lookup with a sequence number, also for a
/// slot that the session does not have. A change with this number then got the refusal.
#[test]
fn refused_lookup_uses_no_slot() {
    let mut story = Story::begin();
    let lookup = md::Lookup { directory: InodeId::ROOT, name: b"a"[..].into() };
    for at in [(0, 1), (999, 1)] {
        assert_eq!(story.ask(1, 1, at, &lookup).unwrap_err().code(), ErrorCode::NotFound);
    }
    story.create(1, (0, 1));
}

/// Regression test: when a copy of a waiting request arrived on a connection that its client no
/// longer used, the target replied only on that connection.
#[test]
fn each_copy_of_a_request_gets_a_reply_on_its_connection() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    for on in [5, 6] {
        story.send(on, 1, (0, 2), &truncate(inode));
    }
    assert!(story.replies.is_empty());
    story.answer::<st::TruncateChunk>(&truncated(1));
    let mut connections: Vec<_> = story.replies.iter().map(|(on, _)| *on).collect();
    connections.sort_unstable();
    assert_eq!(connections, [5, 6]);
}

/// Hole H47 in `docs/tests/holes.md`. After a durable reply, the client no longer keeps the changes
/// that it had made before it sent the request.
#[test]
fn repeated_durable_request_waits_for_all_earlier_changes() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let set = |mode| md::SetAttributes { size: None, permissions: Some(mode), ..truncate(inode) };
    story.ask(1, 1, (0, 2), &set(0o640)).unwrap();
    let mut next = story.run(vec![arrival(1, 1, (1, 1), &set(0o600))]);
    assert_eq!(story.replies.len(), 1, "this change is acknowledged before it is synced");
    let mut repeated = arrival(2, 1, (0, 2), &set(0o640));
    if let Event::Request { header, .. } = &mut repeated {
        header.flags |= skep_wire::frame::FLAG_DURABLE;
    }
    next.extend(story.run(vec![repeated]));
    assert_eq!(story.replies.len(), 1, "the change before the repetition is not synced");
    story.happen_together(next);
    assert_eq!(story.replies.len(), 2);
}

/// Regression test: a request that waited for another group ran after a newer request of its slot.
/// The target then replaced the stored reply to the newer request.
#[test]
fn waiting_request_is_dropped_if_a_newer_one_uses_its_slot() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 2), &super::report(inode, written_up_to(10))).unwrap();
    story.send(9, 1, (1, 1), &truncate(inode));
    story.send(1, 1, (0, 3), &truncate(inode));
    assert!(story.replies.is_empty(), "the second truncation waits for the first");
    let newer = md::SetAttributes { size: None, permissions: Some(0o644), ..truncate(inode) };
    story.send(1, 1, (0, 4), &newer);
    let (_, older) = story.replies.pop().expect("an answer");
    assert_eq!(older.unwrap_err().code(), ErrorCode::Stale);
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.replies.len(), 2);
    assert!(story.replies.drain(..).all(|(_, result)| result.is_ok()));
    assert!(story.calls.is_empty(), "the dropped request truncates nothing");
    assert!(story.ask(1, 1, (0, 4), &newer).is_ok(), "the newer reply is stored");
}

/// Regression test: after a power loss, the next change of a file got the same version as the lost
/// change. So a client that had read the lost change kept its cached pages after the next change.
#[test]
fn file_version_of_a_lost_change_is_not_reused() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let kept = story.log.len();
    let version = |story: &mut Story| {
        story.ask(1, 1, (0, 0), &md::GetAttributes { inode }).unwrap().attributes.change_counter
    };
    let report = super::report(inode, written_up_to(100));
    story.ask(1, 1, (0, 2), &report).unwrap();
    let lost = version(&mut story);
    story.log.truncate(kept);
    story.restart();
    let after = version(&mut story);
    assert!(after > lost, "clients take the reply for the newest state: {after} after {lost}");
    let report = super::report(inode, written_up_to(50));
    let next = story.ask(1, 1, (0, 2), &report).unwrap().attributes;
    assert!(next.change_counter > after && next.size == 50);
}

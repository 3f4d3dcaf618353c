//! Tests of requests that the target must refuse because they have another epoch, because the
//! target's own term as primary has ended, or because the term of the sender has ended.

use super::*;

/// Returns the arrival of a new map. `own` describes the target's group, and `of_sender` the group
/// of another target that sends requests. Each pair has the epoch of the group, and the epoch in
/// which the term of its primary began.
fn map_of(own: (u64, u64), of_sender: (u64, u64)) -> Event {
    let mut map = map();
    map.version = MapVersion::new(2);
    for (group, (epoch, since)) in map.groups.iter_mut().zip([own, of_sender]) {
        (group.epoch, group.primary_since) = (Epoch::new(epoch), Epoch::new(since));
    }
    Event::Map(Arc::new(map))
}

/// Sends a request with `epoch` as the epoch of the target's group. Returns the code of the
/// refusal.
fn refusal<R: Request>(story: &mut Story, session: u64, epoch: u64, request: &R) -> ErrorCode {
    let mut event = arrival(7, session, (0, 1), request);
    if let Event::Request { header, .. } = &mut event {
        header.epoch = Epoch::new(epoch);
    }
    story.happens(event);
    let (_, result) = story.replies.pop().expect("an answer");
    result.map(|_| ()).expect_err("the request is refused").code()
}

/// Regression test: the target accepted each newer epoch, and checked the session first. When a
/// target that was not the primary replied `StaleSession`, the client abandoned its session and its
/// locks.
#[test]
fn request_of_another_epoch_is_refused_before_the_session_check() {
    let mut story = Story::begin();
    story.happens(map_of((4, 1), (1, 1)));
    let unknown_session = 77;
    let request = truncate(InodeId::ROOT);
    for epoch in [0, 3, 5] {
        let code = refusal(&mut story, unknown_session, epoch, &request);
        assert_eq!(code, ErrorCode::StaleMap, "epoch {epoch}");
    }
    assert_eq!(refusal(&mut story, unknown_session, 4, &request), ErrorCode::StaleSession);
}

#[test]
fn target_refuses_all_requests_after_the_end_of_its_term() {
    let mut story = Story::begin();
    assert!(story.target.is_primary());
    // A new epoch alone does not end the term. An epoch also begins when the primary drops a
    // member.
    story.happens(map_of((2, 1), (1, 1)));
    assert!(story.target.is_primary());
    story.happens(map_of((3, 3), (1, 1)));
    assert!(!story.target.is_primary());
    let unknown_session = 77;
    for session in [1, unknown_session] {
        for epoch in [2, 3] {
            let code = refusal(&mut story, session, epoch, &truncate(InodeId::ROOT));
            assert_eq!(code, ErrorCode::StaleMap);
        }
    }
}

#[test]
fn decision_of_a_deposed_coordinator_is_refused() {
    let mut story = Story::begin();
    let transaction = md::TransactionId { coordinator: GroupId::new(2), number: 5 };
    let decide = md::Decide { transaction, commit: false };
    story.ask(7, 0, (0, 0), &decide).unwrap();
    story.happens(map_of((1, 1), (2, 2)));
    assert_eq!(refusal(&mut story, 0, 1, &decide), ErrorCode::Deposed);
}

//! Tests of the calls of background jobs to other groups: their retries after refusals, and the
//! collection of removals.

use super::*;
use crate::limits::{REMOVAL_DELAY, RETRY_PAUSE};

/// Creates a file, writes to it, and removes it. `sequence` is the last sequence number that the
/// session has used.
fn write_and_remove(story: &mut Story, name: &str, sequence: u64) {
    let inode = story.create_as(name, 1, (0, sequence + 1));
    let close = close_with(inode, written_up_to(10));
    story.ask(1, 1, (0, sequence + 2), &close).unwrap();
    let unlink = md::Unlink { directory: InodeId::ROOT, name: name.as_bytes().into() };
    story.ask(1, 1, (0, sequence + 3), &unlink).unwrap();
}

/// Refuses the oldest call of the target, which must be an `R`.
fn refuse<R: Request>(story: &mut Story, error: Error) {
    let (call, request) = story.calls.remove(0);
    assert_eq!(request.message, R::ID);
    story.happens(Event::Answer { call, result: Err(error) });
}

/// Refuses the oldest call of the target, and checks that the target repeats the call exactly once,
/// after a pause.
fn is_tried_again_after_a_pause<R: Request>(story: &mut Story) {
    refuse::<R>(story, Error::new(ErrorCode::DeviceFailed, "a broken disk"));
    for _ in 0..10 {
        story.happens(Event::Tick);
    }
    assert!(story.calls.is_empty(), "the target sends nothing during the pause");
    story.now += RETRY_PAUSE;
    story.happens(Event::Tick);
    assert_eq!(story.calls.iter().filter(|it| it.1.message == R::ID).count(), 1);
}

/// Regression test: the target repeated a refused removal without a pause, as fast as the replies
/// arrived.
#[test]
fn a_refused_removal_is_tried_again_after_a_pause() {
    let mut story = Story::begin();
    write_and_remove(&mut story, "a", 0);
    for _ in 0..2 {
        is_tried_again_after_a_pause::<st::RemoveChunks>(&mut story);
    }
    story.answer::<st::RemoveChunks>(&skep_wire::management::EmptyReply {});
    story.happens(Event::Tick);
    assert!(story.target.table.scan(&Key::removals(), &[], 1).unwrap().is_empty());
}

fn lost() -> Error {
    Error::new(ErrorCode::TargetLost, "given up")
}

/// The metadata target must not keep removals for a lost storage target, which never replies again.
#[test]
fn pending_removals_at_a_lost_target_are_discarded() {
    let mut story = Story::begin();
    write_and_remove(&mut story, "a", 0);
    refuse::<st::RemoveChunks>(&mut story, lost());
    story.happens(Event::Tick);
    assert!(story.target.table.scan(&Key::removals(), &[], 1).unwrap().is_empty());
    assert!(story.calls.is_empty());
}

#[test]
fn size_recovery_completes_even_if_a_target_is_lost() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    refuse::<st::StatChunk>(&mut story, lost());
    story.happens(Event::Tick);
    assert_eq!(story.size(inode), 0);
    assert!(story.target.table.scan(&Key::size_recoveries(), &[], 1).unwrap().is_empty());
}

/// Regression test: the target repeated a failed size recovery only when the background jobs had
/// other work to do.
#[test]
fn a_failed_size_recovery_is_tried_again() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    is_tried_again_after_a_pause::<st::StatChunk>(&mut story);
    story.answer::<st::StatChunk>(&stat(50));
    assert_eq!(story.size(inode), 50);
}

/// Regression test: the target repeated without a pause a commit that a participant had refused.
#[test]
fn a_refused_commit_is_sent_again_after_a_pause() {
    let mut story = Story::begin();
    story.target.send_decision(GroupId::new(3), 77, true, None);
    story.happens(Event::Tick);
    is_tried_again_after_a_pause::<md::Decide>(&mut story);
}

/// Returns the number of chunk files in each removal request that the target has sent.
fn sent_removals(story: &Story) -> Vec<usize> {
    let sent = story.calls.iter().filter(|(_, call)| call.message == st::RemoveChunks::ID);
    sent.map(|(_, call)| st::RemoveChunks::from_bytes(&call.body).unwrap().keys.len()).collect()
}

#[test]
fn removals_within_a_short_time_share_one_request() {
    let mut story = Story::begin_with(Limits::default());
    write_and_remove(&mut story, "a", 0);
    write_and_remove(&mut story, "b", 3);
    assert_eq!(sent_removals(&story), []);
    story.now += REMOVAL_DELAY;
    story.happens(Event::Tick);
    assert_eq!(sent_removals(&story), [2]);
    // The next removal request also waits for further removals. Without this wait, the target would
    // send one request for each removed file.
    write_and_remove(&mut story, "c", 6);
    story.answer::<st::RemoveChunks>(&skep_wire::management::EmptyReply {});
    story.happens(Event::Tick);
    assert_eq!(sent_removals(&story), []);
    story.now += REMOVAL_DELAY;
    story.happens(Event::Tick);
    assert_eq!(sent_removals(&story), [1]);
}

#[test]
fn full_removal_request_is_sent_immediately() {
    let removals = RemovalLimits { per_message: 2, ..RemovalLimits::default() };
    let mut story = Story::begin_with(Limits { removals, ..Limits::default() });
    write_and_remove(&mut story, "a", 0);
    assert_eq!(sent_removals(&story), []);
    write_and_remove(&mut story, "b", 3);
    assert_eq!(sent_removals(&story), [2]);
}

#[test]
fn removals_at_a_target_with_little_space_do_not_wait() {
    let mut story = Story::begin_with(Limits::default());
    let mut newer = map();
    newer.targets[1].capacity_pool = CapacityPool::Low;
    newer.version = MapVersion::new(2);
    story.happens(Event::Map(newer.into()));
    write_and_remove(&mut story, "a", 0);
    assert_eq!(sent_removals(&story), [1]);
}

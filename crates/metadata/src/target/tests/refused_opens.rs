//! Tests of opens with a truncation that storage refuses: the target removes the open, and marks
//! the request in its slot as undone.

use super::truncations::{open_sessions, refuse_call, written};
use super::*;
use crate::limits::RETRY_PAUSE;

/// Closes the only open of the file, and sends an open with `O_TRUNC` as request 4 of the slot.
fn open_truncating(story: &mut Story, inode: InodeId) -> md::Open {
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 3), &close).unwrap();
    let open = md::Open { truncate: true, ..open_of(inode, md::OpenMode::Write) };
    story.send(1, 1, (0, 4), &open);
    open
}

/// Replies to all truncations of chunk files, and checks that the last request has opened the file.
fn check_opens(story: &mut Story, inode: InodeId) {
    story.answer::<st::TruncateChunk>(&truncated(1));
    while !story.calls.is_empty() {
        story.answer::<st::TruncateChunk>(&truncated(1));
    }
    assert!(story.replies.pop().expect("an answer").1.is_ok());
    assert_eq!(open_sessions(story, inode), 1);
}

/// Regression test: the target replied with an error, but counted the open. The client did not
/// close the file, so the target counted this open until the end of the session.
#[test]
fn open_with_a_refused_truncation_is_not_counted() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    // The numbers of later changes are higher than the sequences of their requests (hole H54).
    for sequence in 1..=9 {
        story.ask(2, 1, (1, sequence), &link(inode, &format!("other-{sequence}"))).unwrap();
    }
    let open = open_truncating(&mut story, inode);
    story.send(3, 1, (0, 4), &open);
    refuse_call(&mut story);
    story.send(4, 1, (0, 4), &open);
    let codes: Vec<_> = story.replies.drain(..).map(|(_, it)| it.unwrap_err().code()).collect();
    assert_eq!(codes, [ErrorCode::Io; 3], "the request and both retries get an error");
    assert_eq!(open_sessions(&mut story, inode), 0);
    // Storage works again, and the next open replaces the refused truncation.
    story.send(1, 1, (0, 5), &open);
    story.wait(RETRY_PAUSE);
    check_opens(&mut story, inode);
}

/// The target refuses the open, and is killed before the client receives the reply.
#[test]
fn retry_of_an_open_with_a_refused_truncation_succeeds() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    let open = open_truncating(&mut story, inode);
    refuse_call(&mut story);
    story.restart();
    story.send(2, 1, (0, 4), &open);
    check_opens(&mut story, inode);
}

/// Hole H92 in `docs/tests/holes.md`. The client compares the slots after the open was logged, and
/// again after the target has removed the open. If the slot had a lower sequence after the refusal,
/// the client would assume that the directory of the target was restored from an old backup.
#[test]
fn slot_of_a_refused_open_keeps_its_sequence() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    let open = open_truncating(&mut story, inode);
    let newest = |story: &mut Story| {
        let slots = story.ask(1, 1, (0, 0), &md::CompareSlots {}).unwrap().slots;
        slots.iter().find(|it| it.slot == 0).map(|it| it.sequence)
    };
    story.restart();
    assert_eq!(newest(&mut story), Some(4));
    story.send(2, 1, (0, 4), &open);
    refuse_call(&mut story);
    assert!(story.replies.pop().expect("an answer").1.is_err());
    story.restart();
    assert_eq!(newest(&mut story), Some(4));
    story.end_session(1);
    let asked = md::AskOutcome { session: SessionId::new(1), slot: 0, sequence: 4 };
    let outcome = story.ask(9, 0, (0, 0), &asked).unwrap().outcome;
    assert_eq!(outcome, md::Outcome::NotExecuted);
}

#[test]
fn unlinked_file_is_disposed_of_if_its_last_open_is_refused() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    open_truncating(&mut story, inode);
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a".as_slice().into() };
    story.ask(2, 2, (0, 1), &unlink).unwrap();
    refuse_call(&mut story);
    let entry = story.ask(1, 2, (0, 0), &md::GetEntryInfo { inode });
    assert_eq!(entry.unwrap_err().code(), ErrorCode::Stale);
}

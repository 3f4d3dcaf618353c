//! Truncations that are on their way while something happens to their client or their file.

use super::*;
use skep_wire::management::EmptyReply;

/// A file of session 1 that is open for writing, and that says it has 10 bytes.
fn written(story: &mut Story) -> InodeId {
    let inode = story.create(1, (0, 1));
    let written =
        md::WrittenExtent { end: 10, truncate_generation: 0, may_leave_holes: false, reach: 0 };
    story.ask(1, 1, (0, 2), &md::ReportWritten { inode, written }).unwrap();
    inode
}

/// A truncation was given up with its client, while the request to cut was repeated to a storage
/// target that was away: it came late, into what others had written since.
#[test]
fn a_truncation_is_brought_to_its_end_when_its_client_has_gone() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    story.send(1, 1, (0, 0), &md::CloseSession {});
    assert_eq!(story.calls.len(), 1, "the size is not asked for while the chunk file is being cut");
    assert_eq!(story.size(inode), 10);
    story.answer::<st::TruncateChunk>(&EmptyReply {});
    assert_eq!(story.size(inode), 0);
    story.answer::<st::StatChunk>(&stat(0));
    assert_eq!(story.size(inode), 0);
    assert!(story.calls.is_empty());
}

/// Which chunk files have to be cut was looked at again when an answer came. A writer had closed
/// the file meanwhile, so there were fewer: those asked for at first were no longer waited for.
#[test]
fn a_truncation_size_is_decided_once() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.send(1, 2, (0, 1), &truncate(inode));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    assert!(story.replies.is_empty());
    story.answer::<st::TruncateChunk>(&EmptyReply {});
    let attributes = md::AttributesReply::from_bytes(story.replies[0].1.as_ref().unwrap());
    assert_eq!(attributes.unwrap().attributes.truncate_generation, 1);
}

#[test]
fn truncations_of_one_file_come_one_after_the_other() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    let to_five = md::SetAttributes { size: Some(5), ..truncate(inode) };
    story.send(1, 2, (0, 1), &to_five);
    assert_eq!(story.calls.len(), 1);
    story.answer::<st::TruncateChunk>(&EmptyReply {});
    assert_eq!(story.replies.len(), 1);
    // The file is open for writing: the second one can't know how far its chunk files reach.
    story.answer::<st::TruncateChunk>(&EmptyReply {});
    assert_eq!(story.replies.len(), 2);
    assert_eq!(story.size(inode), 5);
}

#[test]
fn a_refused_truncation_is_answered_and_the_next_can_begin() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    for (sequence, is_refused) in [(3, true), (4, false)] {
        story.send(1, 1, (0, sequence), &truncate(inode));
        let (call, _) = story.calls.remove(0);
        let refusal = Error::new(ErrorCode::DeviceFailed, "no disk");
        let result = if is_refused { Err(refusal) } else { Ok(EmptyReply {}.to_bytes()) };
        story.happens(Event::Answer { call, result });
        let (_, result) = story.replies.remove(0);
        assert_eq!(result.map_err(|error| error.code()).err(), is_refused.then_some(ErrorCode::Io));
        assert_eq!(story.size(inode), if is_refused { 10 } else { 0 });
    }
}

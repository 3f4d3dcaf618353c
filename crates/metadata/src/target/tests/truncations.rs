//! Truncations in progress while their client dies or their file changes.

use super::*;
use skep_wire::management::EmptyReply;

/// Creates a file with a size of 10 bytes that session 1 has open for writing.
fn written(story: &mut Story) -> InodeId {
    let inode = story.create(1, (0, 1));
    let written =
        md::WrittenExtent { end: 10, truncate_generation: 0, may_leave_holes: false, reach: 0 };
    story.ask(1, 1, (0, 2), &md::ReportWritten { inode, written }).unwrap();
    inode
}

/// Before the fix, the target abandoned a truncation when its client died, but the service still
/// repeated the call to a storage target that was unreachable. The call arrived late, and truncated
/// bytes that other clients had written since.
#[test]
fn a_truncation_is_finished_after_its_client_died() {
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

/// Before the fix, the target determined again, when a reply arrived, which chunk files to
/// truncate. A writer had closed the file meanwhile, so there were fewer of them, and the target no
/// longer waited for the replies about the others.
#[test]
fn the_size_of_a_truncation_is_decided_once() {
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
fn truncations_of_one_file_run_one_after_the_other() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    let to_five = md::SetAttributes { size: Some(5), ..truncate(inode) };
    story.send(1, 2, (0, 1), &to_five);
    assert_eq!(story.calls.len(), 1);
    story.answer::<st::TruncateChunk>(&EmptyReply {});
    assert_eq!(story.replies.len(), 1);
    // The file is open for writing, so the second truncation must assume that any chunk file may
    // exist.
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

/// Before the fix, a report during a truncation raised the size, and the truncation then reset it,
/// although the reported bytes had reached storage after the chunk file was truncated.
#[test]
fn reports_and_confirmations_wait_for_a_truncation() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    let written =
        md::WrittenExtent { end: 5, truncate_generation: 0, may_leave_holes: false, reach: 0 };
    story.send(1, 2, (0, 1), &md::ReportWritten { inode, written });
    story.send(1, 2, (0, 0), &md::AwaitTruncation { inode });
    assert!(story.replies.is_empty());
    story.answer::<st::TruncateChunk>(&EmptyReply {});
    assert_eq!(story.replies.len(), 3);
    for (_, reply) in &story.replies {
        let reply = md::AttributesReply::from_bytes(reply.as_ref().unwrap()).unwrap();
        let attributes = (reply.attributes.size, reply.attributes.truncate_generation);
        assert_eq!(attributes, (0, 1), "the client sees that it must write again");
    }
}

#[test]
fn a_trim_truncates_chunk_files_to_the_present_size() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 2, (0, 1), &md::TrimFile { inode });
    let request = st::TruncateChunk::from_bytes(&story.calls[0].1.body).unwrap();
    assert_eq!(request.size, 10);
    story.answer::<st::TruncateChunk>(&EmptyReply {});
    let reply = md::AttributesReply::from_bytes(story.replies[0].1.as_ref().unwrap()).unwrap();
    assert_eq!((reply.attributes.size, reply.attributes.truncate_generation), (10, 1));
}

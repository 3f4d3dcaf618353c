//! Tests of `RemoveInline`: when the target removes the inline bytes of a file that has grown
//! beyond them, and which pattern the file has then.

use super::*;
use skep_types::{ChunkFileKey, StripePattern};

/// Creates a file of 5,000 bytes that session 1 has open for writing. The inline bytes of the file
/// are `0123456789`.
fn grown(story: &mut Story) -> InodeId {
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"0123456789"));
    let written = md::WrittenExtent { may_leave_holes: true, ..written_up_to(5000) };
    story.ask(1, 1, (0, 2), &report(inode, written)).unwrap();
    inode
}

fn removal(inode: InodeId) -> il::RemoveInline {
    il::RemoveInline {
        inode,
        generation: 1,
        truncate_generation: 0,
        checksum: crc32c(b"0123456789"),
        written: Vec::new(),
    }
}

impl Story {
    fn current_pattern(&mut self, inode: InodeId) -> StripePattern {
        let request = md::GetEntryInfo { inode };
        self.ask(1, 2, (0, 0), &request).unwrap().pattern.unwrap()
    }

    fn is_removed(&mut self, sequence: u64, request: &il::RemoveInline) -> bool {
        self.ask(1, 1, (1, sequence), request).unwrap().is_removed
    }
}

#[test]
fn inline_component_is_removed_together_with_its_bytes() {
    let mut story = Story::begin();
    let inode = grown(&mut story);
    let before = story.current_pattern(inode);
    assert!(story.is_removed(1, &removal(inode)));
    story.restart();
    let after = story.current_pattern(inode);
    assert_eq!(Some(&after), skep_cluster::striping::without_inline(&before).as_ref());
    assert_eq!((after.inline_bytes(), story.stored(inode)), (0, vec![]));
    assert_eq!(story.size(inode), 5000);
    assert_eq!(story.read(inode, 0, 10).unwrap_err().code(), ErrorCode::Stale);
    assert_eq!(story.refused(1, &write(inode, 0, b"x")), ErrorCode::Stale);
    let open = open_of(inode, md::OpenMode::Read);
    let opened = story.ask_sharing(2, (0, 1), &open, (1, inode));
    assert_eq!(opened.pattern, Some(after));
    assert!(opened.synced.contains(0), "the chunk file is on the device of its target");
    assert!(story.is_removed(2, &removal(inode)), "another request finds no inline bytes");
}

#[test]
fn inline_bytes_stay_unless_storage_has_all_of_them() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"0123456789"));
    assert!(!story.is_removed(1, &removal(inode)), "the file is not larger than its inline bytes");
    let written = md::WrittenExtent { may_leave_holes: true, ..written_up_to(5000) };
    story.ask(1, 1, (0, 2), &report(inode, written)).unwrap();
    let stale = il::RemoveInline { generation: 2, ..removal(inode) };
    assert_eq!(story.ask(1, 1, (1, 2), &stale).unwrap_err().code(), ErrorCode::Stale);
    let older = il::RemoveInline { checksum: crc32c(b"01234567"), ..removal(inode) };
    assert!(!story.is_removed(3, &older), "the client has copied other bytes");
    story.truncate_to(inode, 3, 4500);
    assert!(!story.is_removed(4, &removal(inode)), "the file was truncated after the copy");
    let current = il::RemoveInline { truncate_generation: 1, ..removal(inode) };
    assert!(!story.is_removed(5, &current), "storage has not synced the truncation");
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"0123456789");
}

#[test]
fn inline_bytes_stay_while_another_client_may_use_them() {
    let mut story = Story::begin();
    let inode = grown(&mut story);
    let open = open_of(inode, md::OpenMode::Write);
    story.ask_sharing(2, (0, 1), &open, (1, inode));
    assert!(!story.is_removed(1, &removal(inode)), "another client has the file open");
    story.ask(1, 2, (0, 0), &md::CloseSession {}).unwrap();
    assert!(!story.is_removed(2, &removal(inode)), "the size is not recovered yet");
    story.answer::<st::StatChunk>(&stat(0));
    story.happens(Event::Tick);
    assert!(story.is_removed(3, &removal(inode)));
}

#[test]
fn client_that_opened_for_reading_cannot_remove_inline_bytes() {
    let mut story = Story::begin();
    let inode = grown(&mut story);
    story.ask(1, 1, (0, 3), &open_of(inode, md::OpenMode::Read)).unwrap();
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 4), &close).unwrap();
    assert!(!story.is_removed(1, &removal(inode)));
}

/// A program may write before the client sends its first bytes.
#[test]
fn empty_inline_component_is_removed_if_no_other_client_uses_it() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let empty = il::RemoveInline { checksum: crc32c(b""), ..removal(inode) };
    story.written(1, &write(inode, 0, b"\0"));
    assert!(!story.is_removed(1, &empty), "the file has a byte");
    story.truncate_to(inode, 2, 0);
    let empty = il::RemoveInline { truncate_generation: 1, ..empty };
    assert!(!story.is_removed(2, &empty), "storage has not synced the truncation");
    let other = story.create_inline("b", (0, 3));
    let in_progress = il::WriteInline { extends: false, ..write(other, 0, b"x") };
    story.written(2, &in_progress);
    let empty = il::RemoveInline { checksum: crc32c(b""), ..removal(other) };
    assert!(!story.is_removed(3, &empty), "a write is in progress");
    story.written(3, &il::WriteInline { extends: false, ..write(other, 0, b"\0") });
    assert!(story.is_removed(4, &empty));
    assert_eq!(story.current_pattern(other).inline_bytes(), 0);
    let open = open_of(other, md::OpenMode::Read);
    let opened = story.ask_sharing(2, (0, 1), &open, (1, other));
    assert!(opened.synced.is_empty(), "storage has no chunk file yet");
}

/// After the reply, the client writes the first bytes to storage only.
#[test]
fn durable_removal_of_inline_bytes_is_synced_before_the_reply() {
    let mut story = Story::begin();
    let inode = grown(&mut story);
    story.now += Duration::from_millis(11);
    let durable = || {
        let mut event = arrival(1, 1, (1, 1), &removal(inode));
        if let Event::Request { header, .. } = &mut event {
            header.flags |= skep_wire::frame::FLAG_DURABLE;
        }
        event
    };
    let mut next = story.run(vec![durable()]);
    // The client sends the request again before the target has synced the record of the request.
    next.extend(story.run(vec![durable()]));
    assert!(story.replies.is_empty());
    story.happen_together(next);
    assert_eq!(story.replies.len(), 2);
}

#[test]
fn reply_to_an_inline_removal_reports_lost_inline_writes() {
    let mut story = Story::begin();
    let inode = grown(&mut story);
    let log_bytes = story.log.len();
    let mark = story.written(2, &write(inode, 0, b"abc")).mark;
    let late = il::RemoveInline { written: vec![mark], ..removal(inode) };
    story.lose_power(log_bytes);
    let reply = story.ask(1, 1, (1, 1), &late).unwrap();
    assert!(reply.is_removed && reply.is_lost);
}

#[test]
fn truncation_after_an_inline_removal_truncates_at_storage() {
    let mut story = Story::begin();
    let inode = grown(&mut story);
    assert!(story.is_removed(1, &removal(inode)));
    story.send(1, 1, (0, 3), &md::SetAttributes { size: Some(100), ..truncate(inode) });
    let (_, call) = story.calls.first().expect("the target truncates the chunk file");
    let truncation = st::TruncateChunk::from_bytes(&call.body).unwrap();
    let key = ChunkFileKey { inode, generation: 1, component: 1, index: 0 };
    assert_eq!((truncation.key, truncation.size), (key, 100));
}

/// Without this wait, a power loss could revert the move and the open. The client that opened the
/// file would then write its first bytes to storage, while readers look for inline bytes.
#[test]
fn open_waits_until_a_move_of_inline_bytes_is_safe() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let empty = il::RemoveInline { checksum: crc32c(b""), ..removal(inode) };
    let open = open_of(inode, md::OpenMode::Write);
    story.now += Duration::from_millis(11);
    let next = story.run(vec![arrival(1, 1, (1, 1), &empty), arrival(1, 1, (0, 2), &open)]);
    let (_, removed) = story.replies.pop().expect("the reply to the removal");
    assert!(il::RemoveInlineReply::from_bytes(&removed.unwrap()).unwrap().is_removed);
    assert!(story.replies.is_empty(), "a power loss may still revert the removal");
    story.happen_together(next);
    let (_, opened) = story.replies.pop().expect("the reply to the open");
    let opened = md::OpenReply::from_bytes(&opened.unwrap()).unwrap();
    assert!(opened.pattern.unwrap().has_moved_inline());
}

/// If a refused move delayed an open until the next sync, a client with one refused move after the
/// other could delay the open forever.
#[test]
fn refused_move_of_inline_bytes_delays_no_open() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let refused = il::RemoveInline { checksum: crc32c(b"other bytes"), ..removal(inode) };
    let open = open_of(inode, md::OpenMode::Write);
    story.now += Duration::from_millis(11);
    let next = story.run(vec![arrival(1, 1, (1, 1), &refused), arrival(1, 1, (0, 2), &open)]);
    assert_eq!(story.replies.len(), 2, "neither reply waits for a sync");
    story.happen_together(next);
    assert!(!story.current_pattern(inode).has_moved_inline());
}

/// A power loss reverts the first request. The pattern does not show this loss, because a second
/// request has removed the component again.
#[test]
fn mark_of_an_inline_end_shows_that_the_end_is_lost() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let log_bytes = story.log.len();
    let empty = il::RemoveInline { checksum: crc32c(b""), ..removal(inode) };
    let first = story.ask(1, 1, (1, 1), &empty).unwrap();
    assert!(first.is_removed && !story.is_lost(inode, &[first.mark]));
    let again = story.ask(1, 1, (1, 1), &empty).unwrap();
    assert_eq!(again.mark, first.mark, "the reply to a retry has the same mark");
    story.lose_power(log_bytes);
    let second = story.ask(1, 1, (1, 1), &empty).unwrap();
    assert!(second.is_removed && story.current_pattern(inode).has_moved_inline());
    assert!(story.is_lost(inode, &[first.mark]));
    assert!(!story.is_lost(inode, &[second.mark]));
}

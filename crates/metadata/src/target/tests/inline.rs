//! Tests of inline bytes: overwrites, truncations, removals, and the detection of lost inline
//! bytes.

mod ends;
mod lost_truncations;
mod moves;
mod parts;

use super::*;
use skep_format::metadata::{InlineRecord, InodeRecord, decode_value, inline_of};
use skep_types::codec::crc32c;
use skep_types::{ComponentRequest, PatternOrigin, PatternRequest};
use skep_wire::inline as il;
use skep_wire::inline::InlineMark;
use skep_wire::limits::REPLAY_SLOT;

const INLINE: u64 = 4096;

/// Returns a pattern with the first 4 KiB inline, and the other bytes on one storage target.
fn pattern() -> PatternRequest {
    let rest = ComponentRequest { width: Some(1), ..ComponentRequest::default() };
    let (origin, components) = (PatternOrigin::Asked, vec![rest]);
    PatternRequest { origin, inline_bytes: Some(INLINE), components }
}

/// Returns an inline write to a file that was never truncated.
fn write(inode: InodeId, offset: u64, bytes: &[u8]) -> il::WriteInline {
    let checksum = crc32c(bytes);
    il::WriteInline {
        inode,
        generation: 1,
        offset,
        bytes: bytes.into(),
        checksum,
        extends: true,
        truncate_generation: 0,
        appends: false,
    }
}

impl Story {
    /// Creates a file with inline bytes, and opens it for writing in session 1.
    fn inline_file(&mut self) -> InodeId {
        self.create_inline("a", (0, 1))
    }

    fn create_inline(&mut self, name: &str, at: (u32, u64)) -> InodeId {
        let create = md::Create { pattern: Some(pattern()), ..create_in(InodeId::ROOT, name) };
        self.ask(1, 1, at, &create).unwrap().attributes.inode
    }

    /// Sends an inline write in slot 2, which must succeed. Replaces the truncate generation in
    /// `request` by the one that the file has now.
    fn written(&mut self, sequence: u64, request: &il::WriteInline) -> il::WriteInlineReply {
        let key = Key::Inode(request.inode).to_bytes();
        let value = self.target.table.get(&key).unwrap().expect("the file exists");
        let file: InodeRecord = decode_value(&key, &value).unwrap();
        let truncate_generation = file.attributes.truncate_generation;
        let request = il::WriteInline { truncate_generation, ..request.clone() };
        self.ask(1, 1, (2, sequence), &request).unwrap()
    }

    fn read(&mut self, inode: InodeId, offset: u64, length: u32) -> Result<Vec<u8>> {
        let request = il::ReadInline { inode, generation: 1, offset, length };
        let read = self.ask(1, 2, (0, 0), &request)?;
        assert_eq!(read.checksum, crc32c(&read.bytes));
        Ok(read.bytes.0)
    }

    /// Returns the numbers of the stored parts.
    fn stored(&self, inode: InodeId) -> Vec<u16> {
        let parts = self.target.table.scan(&Key::inline_parts_of(inode), &[], usize::MAX).unwrap();
        parts.iter().map(|(key, _)| inline_of(key).unwrap().1).collect()
    }

    fn is_lost(&mut self, inode: InodeId, written: &[InlineMark]) -> bool {
        let request = il::SyncInline { inode, written: written.to_vec() };
        self.ask(1, 2, (0, 0), &request).unwrap().is_lost
    }

    /// Sends an inline write in slot 3, which must fail.
    fn refused(&mut self, sequence: u64, request: &il::WriteInline) -> ErrorCode {
        self.ask(1, 1, (3, sequence), request).unwrap_err().code()
    }

    /// Simulates a power loss that leaves only the first `log_bytes` bytes of the log.
    fn lose_power(&mut self, log_bytes: usize) {
        self.log.truncate(log_bytes);
        self.restart();
    }
}

#[test]
fn overlapping_inline_writes_update_bytes_size_and_times() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), []);
    story.wall.seconds = 50;
    let first = story.written(1, &write(inode, 0, b"hello world")).attributes;
    assert_eq!((first.size, first.modified.seconds, first.is_sparse), (11, 50, false));
    story.written(2, &write(inode, 6, b"there, you"));
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"hello there, you");
    assert_eq!(story.read(inode, 6, 5).unwrap(), b"there");
    assert_eq!(story.read(inode, 16, 4080).unwrap(), []);
    let behind = story.written(3, &write(inode, 100, b"x")).attributes;
    assert_eq!((behind.size, behind.is_sparse), (101, true));
    assert_eq!(story.read(inode, 14, 87).unwrap(), [b"ou", &[0; 84][..], b"x"].concat());
    // Zeros take no space, but the file size includes them.
    let zeros = story.written(4, &write(inode, 0, &[0; 4096])).attributes;
    assert_eq!((zeros.size, story.stored(inode)), (4096, vec![]));
    story.restart();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), []);
}

/// Clients use these bytes while the file has the version in the reply.
#[test]
fn open_returns_the_bytes_of_a_small_file() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"hello\0\0"));
    let part = il::WriteInline { extends: false, ..write(inode, 7, b"in progress") };
    story.written(2, &part);
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    let open = md::Open {
        inode,
        open: md::OpenMode::Read,
        truncate: false,
        must_have_name: true,
        inline_limit: 7,
    };
    let opened = story.ask(1, 1, (0, 3), &open).unwrap();
    let bytes = skep_types::codec::Bytes::from(&b"hello"[..]);
    let expected = il::InlineContents { checksum: crc32c(&bytes), bytes };
    assert_eq!((opened.inline, opened.attributes.size), (Some(expected), 7));
    // The target stores the reply without these bytes, so the reply to a retry has none.
    assert_eq!(story.ask(1, 1, (0, 3), &open).unwrap().inline, None);
    let smaller = md::Open { inline_limit: 6, ..open.clone() };
    assert_eq!(story.ask(1, 1, (0, 4), &smaller).unwrap().inline, None);
    story.written(3, &write(inode, 4095, b"x"));
    let large = md::Open { inline_limit: 8192, ..open.clone() };
    let opened = story.ask(1, 1, (0, 5), &large).unwrap();
    assert_eq!(opened.inline.map(|it| it.bytes.len()), Some(4096));
    let truncating = md::Open { truncate: true, ..large };
    assert_eq!(story.ask(1, 1, (0, 6), &truncating).unwrap().inline, None);
}

/// A client that calls `fsync` gets the attributes without another request.
#[test]
fn reply_to_sync_has_the_attributes_of_the_file() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let mark = story.written(1, &write(inode, 0, b"abcdef")).mark;
    let request = il::SyncInline { inode, written: vec![mark] };
    let synced = story.ask(1, 2, (0, 0), &request).unwrap();
    assert_eq!(synced.attributes.map(|it| it.size), Some(6));
    let gone = il::SyncInline { inode: InodeId::from_parts(inode.shard(), 1 << 40), ..request };
    assert_eq!(story.ask(1, 2, (0, 0), &gone).unwrap().attributes, None);
}

/// The client reports the new file size later, after it has written the rest of the bytes to
/// storage.
#[test]
fn inline_part_of_a_larger_write_changes_no_attributes() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let before = story.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes;
    let part = il::WriteInline { extends: false, ..write(inode, 4090, b"abcdef") };
    story.wall.seconds = 50;
    assert_eq!(story.written(1, &part).attributes, before);
    assert_eq!(story.size(inode), 0);
    assert_eq!(story.read(inode, 4090, 6).unwrap(), b"abcdef");
}

#[test]
fn truncated_inline_bytes_do_not_reappear() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"0123456789"));
    for (sequence, size) in [(2, 4), (3, 4096), (4, 20_000)] {
        story.send(1, 1, (0, sequence), &md::SetAttributes { size: Some(size), ..truncate(inode) });
        story.answer::<st::TruncateChunk>(&truncated(1));
        assert_eq!(story.size(inode), size);
        assert_eq!(story.read(inode, 0, 4096).unwrap(), b"0123");
    }
    story.send(1, 1, (0, 5), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.stored(inode), []);
    // No writer has the file open, and no bytes are in chunk files, so the target does not call
    // storage.
    story.written(2, &write(inode, 0, b"again"));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 6), &close).unwrap();
    let high_water = md::SetAttributes { size: Some(3), ..truncate(inode) };
    story.ask(1, 1, (0, 7), &high_water).unwrap();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"aga");
    assert!(story.calls.is_empty());
}

#[test]
fn removal_of_an_inline_file_needs_no_chunk_removal() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"bytes"));
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a".as_slice().into() };
    story.ask(1, 1, (0, 2), &unlink).unwrap();
    assert_eq!(story.read(inode, 0, 9).unwrap(), b"bytes", "the removed file is still open");
    // No writer has reported a size beyond the inline bytes, so the file has no chunk file to
    // remove.
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 3), &close).unwrap();
    assert_eq!(story.stored(inode), []);
    assert_eq!(story.read(inode, 0, 9).unwrap_err().code(), ErrorCode::Stale);
    assert!(story.calls.is_empty(), "no chunk file was ever written");
    assert_eq!(story.refused(1, &write(inode, 0, b"late")), ErrorCode::Stale);
}

/// The target removes the parts of a file without a search for them.
#[test]
fn removed_file_leaves_no_inline_bytes_beyond_its_size() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let part = il::WriteInline { extends: false, ..write(inode, 3000, b"of a failed write") };
    story.written(1, &part);
    story.written(2, &write(inode, 10, b"bytes"));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    assert_eq!((story.size(inode), story.stored(inode)), (15, vec![0, 2]));
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a".as_slice().into() };
    story.ask(1, 1, (0, 3), &unlink).unwrap();
    assert_eq!(story.stored(inode), []);
}

#[test]
fn invalid_inline_requests_are_refused_with_an_error_code() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let good = write(inode, 0, b"bytes");
    let plain = story.create_as("b", 1, (0, 2));
    for (sequence, wrong, code) in [
        (1, il::WriteInline { checksum: 1, ..good.clone() }, ErrorCode::Protocol),
        (2, il::WriteInline { generation: 2, ..good.clone() }, ErrorCode::Stale),
        (3, write(inode, 4092, b"bytes"), ErrorCode::InvalidArgument),
        (4, write(inode, u64::MAX, b"bytes"), ErrorCode::InvalidArgument),
        (5, write(inode, 0, b""), ErrorCode::InvalidArgument),
        (6, write(plain, 0, b"bytes"), ErrorCode::InvalidArgument),
        (7, write(InodeId::ROOT, 0, b"bytes"), ErrorCode::InvalidArgument),
        (8, write(InodeId::new(999), 0, b"bytes"), ErrorCode::Stale),
    ] {
        assert_eq!(story.refused(sequence, &wrong), code, "{wrong:?}");
    }
    let code = |result: Result<Vec<u8>>| result.unwrap_err().code();
    assert_eq!(code(story.read(inode, 1, 4096)), ErrorCode::InvalidArgument);
    assert_eq!(code(story.read(inode, u64::MAX, 1)), ErrorCode::InvalidArgument);
    assert_eq!(code(story.read(plain, 0, 1)), ErrorCode::InvalidArgument);
    let written = vec![InlineMark { start: 1, record: Lsn::new(1) }; 65];
    let many = story.ask(1, 2, (0, 0), &il::SyncInline { inode, written }).unwrap_err();
    assert_eq!(many.code(), ErrorCode::InvalidArgument);
    assert_eq!((story.size(inode), story.stored(inode)), (0, vec![]));
}

#[test]
fn full_target_accepts_inline_writes_that_need_no_space() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"0123456789"));
    story.happens(Event::FreeSpace { shortage: Some("free space".to_owned()) });
    assert_eq!(story.refused(1, &write(inode, 5, b"56789+")), ErrorCode::NoSpace);
    assert_eq!(story.size(inode), 10, "the refused write changed nothing");
    story.written(2, &write(inode, 5, b"abcde"));
    story.written(3, &write(inode, 0, b"\0\0\0\0"));
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"\0\0\0\x004abcde");
    story.written(4, &write(inode, 10, &[0; 10]));
    assert_eq!(story.size(inode), 20, "zeros need no space");
}

/// The reply has the number of the log record with the write, even if a batch has several records.
#[test]
fn write_reply_has_the_number_of_the_log_record() {
    let limits = Limits { record_bytes: 1024, ..Limits::default() };
    let mut story = Story::begin_with(limits);
    let inode = story.inline_file();
    let of = |slot: u32, byte: u8| arrival(1, 1, (slot, 1), &write(inode, 0, &[byte; 600]));
    story.happen_together(vec![of(2, 7), of(3, 8), of(1, 9)]);
    let replies: Vec<_> = std::mem::take(&mut story.replies);
    assert_eq!(replies.len(), 3);
    let records = skep_format::log::scan(LOG, Lsn::new(1), &story.log).unwrap().records;
    let mut marks = Vec::new();
    for (reply, byte) in replies.into_iter().zip([7, 8, 9]) {
        let written = il::WriteInlineReply::from_bytes(&reply.1.unwrap()).unwrap();
        let record = records.iter().find(|it| it.lsn == written.mark.record).unwrap();
        let holds = |bytes: &[u8]| record.payload.windows(600).any(|it| it == bytes);
        assert!(holds(&[byte; 600]), "record {} holds {byte}", written.mark.record);
        marks.push(written.mark);
    }
    assert!(marks[0].record < marks[2].record);
    story.restart();
    let again = story.ask(1, 1, (2, 1), &write(inode, 0, &[7; 600])).unwrap();
    assert_eq!(again.mark, marks[0]);
    assert_eq!(story.read(inode, 0, 600).unwrap(), [9; 600], "the retry wrote nothing");
}

#[test]
fn target_detects_inline_bytes_lost_in_a_power_loss() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let first = story.written(1, &write(inode, 0, b"first")).mark;
    assert!(!story.is_lost(inode, &[first]));
    let log_bytes = story.log.len();
    let second = story.written(2, &write(inode, 5, b"second")).mark;
    assert_eq!(first.start, second.start);
    story.lose_power(log_bytes);
    assert_eq!(story.size(inode), 5);
    assert!(!story.is_lost(inode, &[first]));
    assert!(story.is_lost(inode, &[second]) && story.is_lost(inode, &[first, second]));
    let third = story.written(3, &write(inode, 5, b"third")).mark;
    assert!(third.start > second.start && !story.is_lost(inode, &[first, third]));
    story.restart();
    assert!(!story.is_lost(inode, &[first, third]), "a kill loses nothing");
    // The target must still report the second write as lost after later records.
    for sequence in 10..20 {
        story.written(sequence, &write(inode, 0, b"more"));
    }
    story.restart();
    assert!(story.is_lost(inode, &[second]) && !story.is_lost(inode, &[first, third]));
    for _ in 0..70 {
        story.restart();
    }
    assert!(
        story.is_lost(inode, &[first]),
        "the target no longer remembers the start of this write"
    );
    let starts = story.target.table.scan(&Key::starts(), &[], usize::MAX).unwrap();
    assert_eq!(starts.len(), skep_wire::limits::MAX_STARTS);
}

/// docs/semantics.md 2.7 and 2.9: another client has truncated the file, or moved its end, since
/// the client read its size.
#[test]
fn inline_write_by_an_outdated_file_end_is_refused() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let of = |truncate_generation, offset, appends| il::WriteInline {
        truncate_generation,
        appends,
        ..write(inode, offset, b"abcd")
    };
    story.written(1, &of(0, 0, true));
    assert_eq!(story.refused(1, &of(0, 2, true)), ErrorCode::EndMoved);
    story.written(2, &of(0, 2, false));
    story.written(3, &of(0, 6, true));
    story.send(1, 1, (0, 2), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    for (sequence, appends) in [(2, false), (3, true)] {
        assert_eq!(story.refused(sequence, &of(0, 10, appends)), ErrorCode::EndMoved);
    }
    assert_eq!((story.size(inode), story.stored(inode)), (0, vec![]));
    let request = il::ReadInline { inode, generation: 1, offset: 0, length: 4 };
    assert_eq!(story.ask(1, 2, (0, 0), &request).unwrap().truncate_generation, 1);
    story.written(4, &of(1, 0, true));
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"abcd");
}

/// The target must not reply to a write before the log record with the number of the current start
/// is synced. With an earlier reply, a power loss could remove both the write and that record, and
/// the next start would get the same number.
#[test]
fn inline_writes_wait_until_the_start_number_is_synced() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.kill();
    story.now += Duration::from_millis(11);
    let next = story.run(vec![arrival(1, 1, (2, 1), &write(inode, 0, b"early"))]);
    assert!(story.replies.is_empty());
    story.happen_together(next);
    assert_eq!(story.replies.len(), 1);
    assert_eq!(story.read(inode, 0, 9).unwrap(), b"early");
}

#[test]
fn file_size_includes_inline_bytes_of_a_dead_writer() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let part = il::WriteInline { extends: false, ..write(inode, 4000, &[7; 96]) };
    story.written(1, &part);
    story.send(1, 1, (0, 0), &md::CloseSession {});
    story.answer::<st::StatChunk>(&stat(0));
    assert_eq!(story.size(inode), 4096);
    assert_eq!(story.refused(1, &part), ErrorCode::StaleSession);
}

#[test]
fn damaged_inline_bytes_are_neither_read_nor_overwritten() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    story.written(1, &write(inode, 0, b"0123456789"));
    let damaged = InlineRecord { checksum: 1, bytes: b"0123456789".as_slice().into() };
    story.target.table.write(Key::Inline(inode, 0).to_bytes(), Some(damaged.to_bytes()));
    let error = story.read(inode, 0, 4).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Corrupt);
    assert!(error.context().contains(&inode.to_string()), "{error}");
    assert_eq!(story.refused(1, &write(inode, 0, b"x")), ErrorCode::Corrupt);
    let to_four = md::SetAttributes { size: Some(4), ..truncate(inode) };
    assert_eq!(story.ask(1, 1, (0, 2), &to_four).unwrap_err().code(), ErrorCode::Corrupt);
    assert!(story.calls.is_empty(), "nothing was truncated");
    // A truncation to zero removes the damaged bytes, so the file can be used again.
    story.send(1, 1, (0, 3), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    story.written(2, &write(inode, 0, b"new"));
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"new");
}

#[test]
fn inline_writes_need_a_session_and_remove_file_capabilities() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let unknown = story.ask(1, 77, (0, 1), &write(inode, 0, b"x")).unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::StaleSession);
    let name = b"security.capability".as_slice().into();
    let (value, mode) = (b"all".as_slice().into(), md::XattrMode::Any);
    let set = md::SetXattr { inode, name, value, mode, clear_set_group_id: false };
    story.ask(1, 1, (0, 2), &set).unwrap();
    let attributes = story.written(1, &write(inode, 0, b"x")).attributes;
    assert!(!attributes.has_capability);
}

/// After a power loss, a client repeats a lost write with `Replay`. The client's next sync checks
/// the mark in the reply to `Replay`.
#[test]
fn mark_of_a_repeated_inline_write_shows_its_loss() {
    let mut story = Story::begin();
    let inode = story.inline_file();
    let durable = story.log.len();
    let request = write(inode, 0, b"abc");
    let lost = story.written(1, &request).mark;
    story.lose_power_and_await_replay(durable);
    story.ask(1, 2, (0, 0), &md::EndReplay {}).unwrap();
    let before = story.log.len();
    let replay = md::Replay { start: lost.start, ..replay_of(2, &request) };
    let mark_in = |reply: md::ReplayReply| {
        il::WriteInlineReply::from_bytes(&reply.reply.0).expect("a reply to a write").mark
    };
    let repeated = mark_in(story.ask(1, 1, (REPLAY_SLOT, 1), &replay).unwrap());
    assert_eq!(mark_in(story.ask(1, 1, (REPLAY_SLOT, 1), &replay).unwrap()), repeated);
    story.ask(1, 1, (0, 0), &md::EndReplay {}).unwrap();
    assert_eq!(story.read(inode, 0, 4096).unwrap(), b"abc");
    assert!(story.is_lost(inode, &[lost]) && !story.is_lost(inode, &[repeated]));
    story.lose_power(before);
    assert!(story.is_lost(inode, &[repeated]));
}

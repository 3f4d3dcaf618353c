//! Tests of truncations: their order, restarts and retries during a truncation, refusals, and the
//! repetition of truncations that are not durable at storage.

use super::*;
use crate::limits::{RETRY_PAUSE, SETTLE_AFTER};

/// Creates a file with a size of 10 bytes that session 1 has open for writing.
pub(super) fn written(story: &mut Story) -> InodeId {
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 2), &report(inode, written_up_to(10))).unwrap();
    inode
}

/// Replies to the oldest call as a storage target with a failed disk does.
pub(super) fn refuse_call(story: &mut Story) {
    let (call, _) = story.calls.remove(0);
    let refusal = Error::new(ErrorCode::DeviceFailed, "no disk");
    story.happens(Event::Answer { call, result: Err(refusal) });
}

/// Returns the number of sessions that have a file open.
pub(super) fn open_sessions(story: &mut Story, inode: InodeId) -> u32 {
    story.ask(1, 2, (0, 0), &md::GetEntryInfo { inode }).unwrap().open_sessions
}

fn synced(incarnation: u64) -> st::SyncChunkReply {
    st::SyncChunkReply { incarnation: HostIncarnation::new(incarnation), exists: true }
}

impl Story {
    /// Removes the only reply, which must answer a `SetAttributes`, and returns its content.
    fn set(&mut self) -> Result<md::SetAttributesReply> {
        assert_eq!(self.replies.len(), 1, "{:?}", self.replies);
        let (_, result) = self.replies.remove(0);
        result.map(|body| md::SetAttributesReply::from_bytes(&body).unwrap())
    }

    /// Returns the generation and the size in the oldest call, which must be a truncation.
    fn truncation(&self) -> (u64, u64) {
        let (_, call) = self.calls.first().expect("a call");
        assert_eq!(call.message, st::TruncateChunk::ID);
        let truncation = st::TruncateChunk::from_bytes(&call.body).unwrap();
        (truncation.generation, truncation.size)
    }

    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        self.happens(Event::Tick);
    }
}

/// Regression test: storage truncated the chunk files before the target logged the new size. After
/// a power loss, the file had its old size again, but zeros instead of its bytes.
#[test]
fn chunk_files_are_truncated_after_the_sync_of_the_size() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    let (now, wall) = (story.now, story.wall);
    let arrival = arrival(1, 1, (0, 3), &truncate(inode));
    let actions = story.target.handle(vec![arrival], now, wall).unwrap();
    assert!(!actions.iter().any(|it| matches!(it, Action::Call { .. } | Action::Reply { .. })));
    let synced = actions.iter().find_map(|action| match action {
        Action::Sync { lsn } => Some(*lsn),
        _ => None,
    });
    let synced = Event::Synced { lsn: synced.expect("a sync begins immediately") };
    let actions = story.target.handle(vec![synced], now, wall).unwrap();
    assert!(actions.iter().any(|it| matches!(it, Action::Call { .. })));
    assert!(!actions.iter().any(|it| matches!(it, Action::Reply { .. })));
}

/// Regression test: the target kept a truncation in memory only. After the client and the target
/// had been killed, the file had its old size, but not its bytes.
#[test]
fn restarted_target_repeats_an_unfinished_truncation() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    assert_eq!(story.truncation(), (1, 0));
    story.restart();
    assert_eq!(story.truncation(), (1, 0), "the repeated request has the same generation");
    story.send(1, 2, (0, 0), &md::GetAttributes { inode });
    assert!(story.replies.is_empty(), "a writer must not learn the new generation yet");
    story.answer::<st::TruncateChunk>(&truncated(1));
    let (_, result) = story.replies.pop().expect("an answer");
    let reply = md::AttributesReply::from_bytes(&result.unwrap()).unwrap();
    assert_eq!((reply.attributes.size, reply.attributes.truncate_generation), (0, 1));
    // The client sends its request again. The target does not truncate the file a second time.
    story.send(1, 1, (0, 3), &truncate(inode));
    let reply = story.set().unwrap();
    assert_eq!((reply.attributes.truncate_generation, reply.truncated.len()), (1, 1));
    story.restart();
    story.send(1, 1, (0, 3), &truncate(inode));
    assert_eq!(story.set().unwrap(), reply, "the incarnations are in the store");
    assert!(story.calls.is_empty());
}

/// One retry arrives while storage truncates the chunk files, and another one after a restart of
/// the target.
#[test]
fn a_retried_truncation_waits_for_the_chunk_files() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    story.send(2, 1, (0, 3), &truncate(inode));
    assert!(story.replies.is_empty());
    story.restart();
    story.send(3, 1, (0, 3), &truncate(inode));
    assert!(story.replies.is_empty());
    assert_eq!(story.calls.len(), 1);
    story.answer::<st::TruncateChunk>(&truncated(7));
    assert_eq!(story.set().unwrap().truncated[0].incarnation, HostIncarnation::new(7));
}

/// Regression test: for a slow truncation, the target did not report for which storage group it
/// waits.
#[test]
fn wait_for_a_truncation_is_reported_with_its_storage_group() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    assert_eq!(story.target.shared.truncations.awaited(inode), None);
    let (call, request) = story.calls.remove(0);
    let storage = request.group;
    let result = Ok(truncated(7).to_bytes());
    story.run(vec![Event::Answer { call, result }]);
    assert_eq!(story.target.shared.truncations.awaited(inode), Some(storage));
    // The batch that marks the truncation as applied also releases the reply.
    let waits = story.target.waits();
    let reasons: Vec<_> = waits.iter().map(|it| (it.tag, it.reason)).collect();
    assert!(reasons.iter().any(|it| it.1 == WaitReason::Storage(storage)), "{reasons:?}");
}

#[test]
fn a_truncation_is_finished_after_its_client_died() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    story.send(1, 1, (0, 0), &md::CloseSession {});
    assert_eq!(
        story.calls.len(),
        1,
        "the target does not ask for the size while storage truncates"
    );
    story.answer::<st::TruncateChunk>(&truncated(1));
    // The target first makes storage sync the truncation, and then asks storage for the size.
    story.answer::<st::SyncChunk>(&synced(1));
    story.answer::<st::StatChunk>(&stat(0));
    story.replies.clear();
    assert_eq!(story.size(inode), 0);
    assert!(story.calls.is_empty());
}

/// Regression test: at each reply, the target computed the list of truncated chunk files again.
/// After the writer had closed the file, the list had fewer chunk files, so the target did not wait
/// for the replies about all chunk files.
#[test]
fn truncation_raises_the_generation_once_if_a_close_overlaps() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.send(2, 2, (0, 1), &truncate(inode));
    story.learns_that_it_shares(1, inode);
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.send(1, 1, (0, 2), &close);
    assert!(story.replies.is_empty(), "the reply would contain the new generation");
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.replies.len(), 2);
    story.replies.retain(|(connection, _)| *connection == 2);
    assert_eq!(story.set().unwrap().attributes.truncate_generation, 1);
}

#[test]
fn truncations_of_one_file_run_one_after_the_other() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    let to_five = md::SetAttributes { size: Some(5), ..truncate(inode) };
    story.send(1, 2, (0, 1), &to_five);
    assert_eq!(story.calls.len(), 1);
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.replies.len(), 1);
    story.learns_that_it_shares(1, inode);
    // The file is open for writing, so the target must assume that each chunk file exists.
    assert_eq!(story.truncation(), (2, 5));
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.replies.len(), 2);
    assert_eq!(story.size(inode), 5);
}

/// If storage refuses a truncation, the client gets an error. Nevertheless, the target keeps the
/// new size, and repeats the truncation.
#[test]
fn target_retries_a_truncation_that_storage_refused() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    story.send(5, 1, (0, 0), &md::GetAttributes { inode });
    let (call, _) = story.calls.remove(0);
    let refusal = Error::new(ErrorCode::DeviceFailed, "no disk");
    story.happens(Event::Answer { call, result: Err(refusal) });
    let codes: Vec<_> = story.replies.drain(..).map(|(_, it)| it.unwrap_err().code()).collect();
    assert_eq!(codes, [ErrorCode::Io, ErrorCode::Io]);
    let open = open_of(inode, md::OpenMode::Read);
    assert_eq!(story.ask(1, 1, (0, 4), &open).unwrap_err().code(), ErrorCode::Io);
    story.send(2, 1, (0, 3), &truncate(inode));
    let (_, repeated) = story.replies.pop().expect("an answer");
    assert_eq!(repeated.unwrap_err().code(), ErrorCode::Io);
    story.wait(RETRY_PAUSE);
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.size(inode), 0);
}

/// Regression test: lookups of the file failed too, so commands could not show its path.
#[test]
fn lookups_succeed_while_storage_refuses_a_truncation() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    let lookup = md::Lookup { directory: InodeId::ROOT, name: b"a".as_slice().into() };
    story.send(5, 2, (0, 0), &lookup);
    assert!(story.replies.is_empty(), "the lookup waits for the first attempt");
    refuse_call(&mut story);
    let found = story.replies.drain(..).find(|(connection, _)| *connection == 5).unwrap().1;
    assert_eq!(md::EntryReply::from_bytes(&found.unwrap()).unwrap().inode, inode);
    assert_eq!(open_sessions(&mut story, inode), 1, "only the writer has the file open");
    assert!(story.ask(1, 1, (0, 0), &lookup).is_err(), "this session may write to the file");
}

#[test]
fn a_new_truncation_replaces_a_refused_one() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    let (call, _) = story.calls.remove(0);
    story.happens(Event::Answer { call, result: Err(ErrorCode::Corrupt.into()) });
    assert!(story.set().is_err());
    // The next truncation sets the size to 7. Nevertheless, storage must remove all old bytes,
    // because the refused truncation had set the size to zero.
    let to_seven = md::SetAttributes { size: Some(7), ..truncate(inode) };
    story.send(1, 1, (0, 4), &to_seven);
    story.wait(RETRY_PAUSE);
    assert_eq!(story.truncation(), (2, 0));
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.set().unwrap().attributes.size, 7);
}

#[test]
fn a_file_without_chunk_files_is_truncated_immediately() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    let open = md::Open { truncate: true, ..open_of(inode, md::OpenMode::Write) };
    let opened = story.ask(1, 1, (0, 3), &open).unwrap();
    assert_eq!((opened.attributes.truncate_generation, opened.truncated.len()), (1, 0));
    assert!(story.calls.is_empty());
}

/// Hole H90 in `docs/tests/holes.md`. docs/semantics.md 2.7: a power loss reverts a truncation
/// without chunk files, and its client reports a write after the next truncation.
#[test]
fn report_under_a_lost_truncation_does_not_extend_the_file() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 2), &close).unwrap();
    let durable = story.log.len();
    let open = md::Open { truncate: true, ..open_of(inode, md::OpenMode::Write) };
    let lost = story.ask(1, 1, (0, 3), &open).unwrap().attributes.truncate_generation;
    story.log.truncate(durable);
    story.restart();
    story.ask(1, 1, (0, 3), &open_of(inode, md::OpenMode::Write)).unwrap();
    story.send(1, 1, (0, 4), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert!(story.set().unwrap().attributes.truncate_generation > lost);
    let written = md::WrittenExtent { truncate_generation: lost, ..written_up_to(10) };
    story.ask(1, 1, (0, 5), &report(inode, written)).unwrap();
    assert_eq!(story.size(inode), 0, "storage has removed the reported bytes");
}

#[test]
fn removal_of_a_file_ends_its_pending_truncation() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 3), &close).unwrap();
    story.send(1, 1, (0, 4), &truncate(inode));
    let unlink = md::Unlink { directory: InodeId::ROOT, name: b"a".as_slice().into() };
    story.send(2, 2, (0, 1), &unlink);
    assert_eq!(story.replies.len(), 2, "both requests get a reply");
    assert!(story.replies.drain(..).all(|(_, result)| result.is_ok()));
    story.answer::<st::TruncateChunk>(&truncated(1));
    story.restart();
    assert!(story.calls.iter().all(|(_, call)| call.message == st::RemoveChunks::ID));
}

/// Regression test: the target did not detect that a power loss of a storage host had reverted a
/// truncation. When the file grew again, programs read the old bytes.
#[test]
fn truncation_that_a_storage_power_loss_reverted_is_repeated() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 3), &close).unwrap();
    story.send(1, 1, (0, 4), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    story.set().unwrap();
    assert!(story.calls.is_empty());
    story.wait(SETTLE_AFTER);
    story.answer::<st::SyncChunk>(&synced(2));
    assert_eq!(story.truncation(), (2, 0));
    story.answer::<st::TruncateChunk>(&truncated(2));
    story.wait(SETTLE_AFTER);
    story.answer::<st::SyncChunk>(&synced(2));
    story.wait(SETTLE_AFTER);
    assert!(story.calls.is_empty());
    assert_eq!(story.target.shared.truncations.len(), 0);
}

/// Regression test: a new stripe pattern did not remove the work item of an earlier truncation.
/// After a power loss of a storage host, the target repeated this truncation with an empty list of
/// chunk files, and waited for a reply forever. Later, it removed the work item, but not the chunk
/// files. Bytes that the power loss had brought back then took up space until the file was removed.
#[test]
fn setting_a_stripe_pattern_ends_a_pending_truncation() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    // The client may have written bytes that it has not reported, so the target also truncates the
    // chunk files at storage.
    story.send(1, 1, (0, 3), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    let chunk_files: Vec<_> = story.set().unwrap().truncated.iter().map(|it| it.key).collect();
    let close = md::Close { inode, open: md::OpenMode::Write, written: None };
    story.ask(1, 1, (0, 4), &close).unwrap();
    let component = skep_types::ComponentRequest { width: Some(1), ..Default::default() };
    let origin = skep_types::PatternOrigin::Asked;
    let pattern =
        skep_types::PatternRequest { origin, inline_bytes: None, components: vec![component] };
    let pattern = Some(pattern);
    story.ask(1, 1, (0, 5), &md::SetPattern { inode, pattern, uid: 0 }).unwrap();
    assert_eq!(story.target.shared.truncations.len(), 0);
    story.happens(Event::Tick);
    let [(_, removal)] = story.calls.as_slice() else { panic!("{:?}", story.calls) };
    let removed = st::RemoveChunks::from_bytes(&removal.body).unwrap().keys;
    assert_eq!(removed, chunk_files, "storage removes the chunk files of the old pattern");
    story.answer::<st::RemoveChunks>(&skep_wire::management::EmptyReply {});
    story.wait(SETTLE_AFTER);
    assert!(story.calls.is_empty());
    let open = md::Open { must_have_name: true, ..open_of(inode, md::OpenMode::Write) };
    story.ask(1, 1, (0, 6), &open).unwrap();
}

/// Regression test: the target computed the size of a dead writer's file from chunk files after a
/// power loss had reverted their truncation. So the file had its old size and its old bytes again.
#[test]
fn size_recovery_ignores_bytes_beyond_a_truncation() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 1, (0, 3), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    story.end_session(1);
    story.answer::<st::SyncChunk>(&synced(2));
    assert_eq!(story.truncation(), (2, 0));
    story.answer::<st::TruncateChunk>(&truncated(2));
    story.answer::<st::SyncChunk>(&synced(2));
    story.answer::<st::StatChunk>(&stat(0));
    assert_eq!(story.size(inode), 0);
    assert!(story.calls.is_empty());
}

/// Creates a file with two chunk files, and truncates it. The writer of the file dies, and a second
/// writer has opened the file before the target settles the truncation. The host of the first chunk
/// file has lost the truncation. The caller replies with the size of the second chunk file.
fn half_of_a_truncation_is_lost(story: &mut Story) -> InodeId {
    // The target would merge two components with the same chunk size into one.
    let component = |start, chunk_bytes| skep_types::ComponentRequest {
        start,
        chunk_bytes: Some(chunk_bytes),
        width: Some(1),
        ..Default::default()
    };
    let origin = skep_types::PatternOrigin::Asked;
    let components = vec![component(0, 1 << 19), component(1 << 20, 1 << 20)];
    let pattern = skep_types::PatternRequest { origin, inline_bytes: None, components };
    let create = md::Create { pattern: Some(pattern), ..create_in(InodeId::ROOT, "a") };
    let inode = story.ask(1, 1, (0, 1), &create).unwrap().attributes.inode;
    story.send(1, 1, (0, 2), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    story.answer::<st::TruncateChunk>(&truncated(1));
    story.set().unwrap();
    story.end_session(1);
    story.ask(1, 2, (0, 1), &open_of(inode, md::OpenMode::Write)).unwrap();
    story.answer::<st::SyncChunk>(&synced(2));
    story.answer::<st::SyncChunk>(&synced(1));
    assert_eq!(story.calls.len(), 1, "the target measures only the second chunk file");
    inode
}

/// Hole H91 in `docs/tests/holes.md`. docs/semantics.md 3.7.
#[test]
fn size_is_recovered_from_chunk_files_that_lost_no_truncation() {
    let mut story = Story::begin();
    let inode = half_of_a_truncation_is_lost(&mut story);
    story.answer::<st::StatChunk>(&stat(10));
    assert_eq!(story.size(inode), (1 << 20) + 10);
    assert!(story.calls.is_empty());
}

/// Hole H136 in `docs/tests/holes.md`. docs/semantics.md 3.7: the target starts again before it has
/// the size of the second chunk file. The target must not ask the host of this chunk file again
/// about the truncation. Otherwise, a later power loss of this host would count as a loss of the
/// truncation.
#[test]
fn restart_keeps_the_chunk_files_with_a_durable_truncation() {
    let mut story = Story::begin();
    let inode = half_of_a_truncation_is_lost(&mut story);
    story.restart();
    assert_eq!(story.calls.len(), 1, "only the first chunk file may have lost the truncation");
    story.answer::<st::SyncChunk>(&synced(2));
    assert_eq!(story.calls.len(), 1, "the target measures the second chunk file");
    story.answer::<st::StatChunk>(&stat(10));
    assert_eq!(story.size(inode), (1 << 20) + 10);
}

impl Story {
    /// Ends a session.
    pub(super) fn end_session(&mut self, session: u64) {
        self.send(1, session, (0, 0), &md::CloseSession {});
        self.replies.clear();
    }
}

/// Regression test: the target refused a request with a size and an invalid time only after storage
/// had truncated the chunk files.
#[test]
fn a_request_with_an_invalid_time_truncates_nothing() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    let at = Timestamp { seconds: 1, nanoseconds: 1_000_000_000 };
    let invalid =
        md::SetAttributes { modified: Some(md::SetTime { now: false, at }), ..truncate(inode) };
    let refused = story.ask(1, 1, (0, 3), &invalid).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidArgument);
    assert!(story.calls.is_empty());
    assert_eq!(story.size(inode), 10);
}

/// Regression test: a report of written bytes during a truncation raised the size, and the end of
/// the truncation lowered it again. But the client had written the bytes after storage had
/// truncated the chunk file.
#[test]
fn reports_of_writes_wait_for_a_pending_truncation() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(5, 1, (0, 3), &truncate(inode));
    story.send(1, 2, (0, 1), &report(inode, written_up_to(5)));
    story.send(2, 2, (0, 0), &md::AwaitTruncation { inode });
    assert!(story.replies.is_empty());
    story.answer::<st::TruncateChunk>(&truncated(1));
    assert_eq!(story.replies.len(), 3);
    let reply = |on| {
        let (_, reply) = story.replies.iter().find(|(connection, _)| *connection == on).unwrap();
        reply.as_ref().unwrap()
    };
    let reported = md::AttributesReply::from_bytes(reply(1)).unwrap().attributes;
    let awaited = md::AwaitTruncationReply::from_bytes(reply(2)).unwrap().attributes;
    for it in [reported, awaited] {
        let end = (it.size, it.truncate_generation);
        assert_eq!(end, (0, 1), "the client sees that it must write again");
    }
}

#[test]
fn trim_removes_chunk_file_bytes_beyond_the_file_size() {
    let mut story = Story::begin();
    let inode = written(&mut story);
    story.send(1, 2, (0, 1), &md::TrimFile { inode });
    let request = st::TruncateChunk::from_bytes(&story.calls[0].1.body).unwrap();
    assert_eq!(request.size, 10);
    story.answer::<st::TruncateChunk>(&truncated(1));
    let reply = md::AttributesReply::from_bytes(story.replies[0].1.as_ref().unwrap()).unwrap();
    assert_eq!((reply.attributes.size, reply.attributes.truncate_generation), (10, 1));
}

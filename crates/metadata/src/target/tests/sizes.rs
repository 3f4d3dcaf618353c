//! Tests of the sizes of files whose writer has died.

use super::*;
use crate::limits::RETRY_PAUSE;
use skep_types::ChunkFileSet;

/// Regression test: the target logged a recovered size although the file had been truncated during
/// the recovery. So the file got its old size again, with zeros as content.
#[test]
fn a_size_recovery_restarts_after_a_truncation() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let asked = story.calls.remove(0);
    assert_eq!(asked.1.message, st::StatChunk::ID);
    story.send(1, 2, (0, 1), &truncate(inode));
    story.answer::<st::TruncateChunk>(&truncated(1));
    story.replies.clear();
    let result = Ok(stat(100).to_bytes());
    story.happens(Event::Answer { call: asked.0, result });
    assert_eq!(story.size(inode), 0);
    let incarnation = HostIncarnation::new(1);
    story.answer::<st::SyncChunk>(&st::SyncChunkReply { incarnation, exists: true });
    story.answer::<st::StatChunk>(&stat(0));
    story.happens(Event::Tick);
    assert_eq!(story.size(inode), 0);
    assert!(story.calls.is_empty(), "the target recovers the size");
}

/// docs/semantics.md 2.6 and 2.7. A mount may report the end of its writes only with the close. A
/// power loss that reverts this report also reverts the close, because the close is in the same or
/// a later log record. So the target still counts the open, and truncates each chunk file that the
/// writer may have extended.
#[test]
fn truncation_removes_bytes_of_a_write_with_a_lost_report() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let durable = story.log.len();
    let close = close_with(inode, written_up_to(300));
    story.ask(1, 1, (0, 2), &close).unwrap();
    story.log.truncate(durable);
    story.restart();
    story.send(5, 1, (1, 1), &truncate(inode));
    let truncated = story.calls.iter().filter(|(_, it)| it.message == st::TruncateChunk::ID);
    assert_eq!(truncated.count(), 1, "one storage group has all bytes of the file");
}

/// Regression test: when a second writer died during the size recovery after the death of the first
/// writer, the file lost the bytes of the second writer.
#[test]
fn size_recovery_restarts_when_another_writer_dies() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let open = open_of(inode, md::OpenMode::Write);
    story.ask_sharing(2, (0, 1), &open, (1, inode));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let asked = story.calls.remove(0);
    story.ask(1, 2, (0, 0), &md::CloseSession {}).unwrap();
    story.happens(Event::Answer { call: asked.0, result: Ok(stat(10).to_bytes()) });
    story.answer::<st::StatChunk>(&stat(50));
    assert_eq!(story.size(inode), 50);
}

/// Regression test: the death of a writer that had only overwritten bytes left the version and the
/// times of the file unchanged. So other clients used their old cached pages forever.
/// docs/semantics.md 3.7.
#[test]
fn death_of_a_writer_changes_version_and_mtime() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 2), &report(inode, written_up_to(10))).unwrap();
    let attributes = |story: &mut Story| {
        story.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes
    };
    let before = attributes(&mut story);
    story.wall = Timestamp::from_nanoseconds(1_000_000_000);
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    story.answer::<st::StatChunk>(&stat(10));
    let after = attributes(&mut story);
    assert_eq!(after.size, 10);
    assert!(after.change_counter > before.change_counter);
    assert!(after.modified > before.modified);
}

/// Hole H181 in `docs/tests/holes.md`. docs/semantics.md 1.9 and 2.2: the kernel of a mount drops
/// its cached pages of a file only if the modification time differs.
#[test]
fn changes_have_rising_times_although_the_clock_is_set_back() {
    let mut story = Story::begin();
    story.wall.seconds = 60;
    let inode = story.create(1, (0, 1));
    let mut last = story.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes;
    let now = Some(md::SetTime { now: true, at: Timestamp::default() });
    let touch = md::SetAttributes { size: None, modified: now, ..truncate(inode) };
    for (sequence, seconds) in [(2, 60), (3, 58), (4, 58), (5, 61), (6, 60), (7, 50)] {
        // The target starts again, so it accepts the time of the clock.
        story.wall.seconds = seconds;
        story.restart();
        let at = (0, sequence);
        let changed = match sequence % 2 {
            0 => story.ask(1, 1, at, &report(inode, written_up_to(10))).map(|it| it.attributes),
            _ => story.ask(1, 1, at, &touch).map(|it| it.attributes),
        };
        let changed = changed.unwrap();
        assert!(changed.changed > last.changed, "{changed:?} after {last:?}");
        assert_eq!(changed.modified, changed.changed);
        last = changed;
    }
}

/// Regression test: a client that got the lock of a dead writer could see a file size without the
/// last bytes of the writer. docs/semantics.md 3.7.
#[test]
fn the_next_lock_holder_waits_for_the_recovered_size() {
    use skep_wire::file_locks::{LockKind, LockMode, LockRequest, SetLockReply};
    use skep_wire::limits::LOCK_END;
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    let (kind, mode) = (LockKind::Flock, Some(LockMode::Exclusive));
    let lock = LockRequest { inode, kind, owner: 1, mode, start: 0, end: LOCK_END, pid: 0 };
    story.send(1, 2, (0, 1), &SetLock { lock, wait: 0 });
    assert!(story.replies.is_empty());
    // The records of slow requests name the storage target for which the lock waits.
    let storage = story.calls[0].1.group;
    let is_named = |story: &Story| {
        story.target.waits().iter().any(|it| it.reason == WaitReason::Storage(storage))
    };
    assert!(is_named(&story), "{:?}", story.target.waits());
    // After a refusal, the recovery pauses, and the lock still waits for the storage target
    // `storage`.
    let (call, _) = story.calls.remove(0);
    let result = Err(Error::new(ErrorCode::DeviceFailed, "a broken disk"));
    story.happens(Event::Answer { call, result });
    story.now += RETRY_PAUSE / 2;
    story.run(vec![Event::Tick]);
    assert!(is_named(&story), "{:?}", story.target.waits());
    story.now += RETRY_PAUSE;
    story.happens(Event::Tick);
    story.answer::<st::StatChunk>(&stat(50));
    story.now += Duration::from_secs(1);
    story.happens(Event::Tick);
    let (_, result) = story.replies.pop().expect("the lock is granted");
    let reply = SetLockReply::from_bytes(&result.unwrap()).unwrap();
    assert_eq!((reply.conflict, reply.attributes.size), (None, 50));
}

/// Hole H66 in `docs/tests/holes.md`. A program on another host continues the log of a program
/// whose host has died, and must not overwrite lines that the dead mount has not reported.
#[test]
fn writer_after_a_dead_writer_shares_the_file_until_close() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let open = open_of(inode, md::OpenMode::Write);
    // The open waits for the acknowledgement of the dead mount, and runs as soon as the target has
    // closed the file of this mount.
    story.send(1, 2, (0, 1), &open);
    assert!(story.replies.is_empty());
    story.send(2, 1, (0, 0), &md::CloseSession {});
    let opened = |story: &mut Story| {
        let at = story.replies.iter().position(|(on, _)| *on == 1).expect("an answer");
        md::OpenReply::from_bytes(&story.replies.remove(at).1.unwrap()).unwrap()
    };
    let first = opened(&mut story);
    assert!(first.is_shared && first.attributes.size == 0, "the size is not recovered yet");
    story.replies.clear();
    story.answer::<st::StatChunk>(&stat(50));
    assert_eq!(story.size(inode), 50);
    story.send(1, 2, (0, 2), &open);
    assert!(!opened(&mut story).is_shared, "the reply contains the recovered size");
}

/// Regression test: after a failed size recovery, the target did not begin the next recovery.
#[test]
fn next_size_recovery_begins_after_a_failed_recovery() {
    use crate::limits::SIZE_RECOVERIES_AT_ONCE;
    let mut story = Story::begin();
    let count = SIZE_RECOVERIES_AT_ONCE + 1;
    for number in 0..count {
        story.create_as(&format!("f{number}"), 1, (0, number as u64 + 1));
    }
    story.ask(1, 1, (0, 0), &md::CloseSession {}).unwrap();
    while story.target.background.is_ending_sessions() {
        story.happens(Event::Tick);
    }
    story.happens(Event::Tick);
    assert_eq!(story.calls.len(), SIZE_RECOVERIES_AT_ONCE);
    let (call, _) = story.calls.remove(0);
    let refusal = Error::new(ErrorCode::DeviceFailed, "no disk");
    let now = story.now;
    story.happens(Event::Answer { call, result: Err(refusal) });
    assert!(
        story.now < now + Duration::from_millis(100),
        "the next recovery does not wait for the failed one"
    );
    assert_eq!(story.calls.len(), SIZE_RECOVERIES_AT_ONCE);
}

/// docs/semantics.md 4.7: metadata stores which chunk files clients have synced.
#[test]
fn metadata_stores_which_chunk_files_a_client_has_synced() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let of = |pattern_generation, numbers: &[usize]| {
        let mut chunk_files = ChunkFileSet::default();
        numbers.iter().for_each(|number| chunk_files.insert(*number));
        let synced = Some(md::SyncedChunkFiles { pattern_generation, chunk_files });
        md::ReportWritten { inode, written: None, synced }
    };
    let before = story.ask(1, 2, (0, 0), &md::GetAttributes { inode }).unwrap().attributes;
    let pattern = story.ask(1, 2, (0, 0), &md::GetEntryInfo { inode }).unwrap().pattern.unwrap();
    let generation = pattern.generation;
    let reported = story.ask(1, 1, (0, 2), &of(generation, &[0])).unwrap().attributes;
    assert_eq!(reported, before, "neither times nor version change");
    let error = story.ask(1, 1, (0, 3), &of(generation + 1, &[1])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Stale);
    let beyond = of(generation, &[pattern.chunk_file_count()]);
    let error = story.ask(1, 1, (0, 4), &beyond).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    story.restart();
    let synced = story.ask(1, 2, (0, 0), &md::AwaitTruncation { inode }).unwrap().synced;
    assert!(synced.contains(0) && !synced.contains(1));
}

/// docs/semantics.md 4.7: if a truncation removes all bytes of a chunk file, it is no loss that
/// this chunk file is missing.
#[test]
fn truncation_removes_emptied_chunk_files_from_the_synced_set() {
    let mut story = Story::begin();
    let inode = story.create(1, (0, 1));
    let pattern = story.ask(1, 2, (0, 0), &md::GetEntryInfo { inode }).unwrap().pattern.unwrap();
    let mut chunk_files = ChunkFileSet::default();
    chunk_files.insert(0);
    let synced = Some(md::SyncedChunkFiles { pattern_generation: pattern.generation, chunk_files });
    story.ask(1, 1, (0, 2), &md::ReportWritten { inode, written: None, synced }).unwrap();
    let synced = |story: &mut Story| {
        story.ask(1, 2, (0, 0), &md::AwaitTruncation { inode }).unwrap().synced.contains(0)
    };
    let set_size = |story: &mut Story, sequence: u64, size: u64| {
        let request = md::SetAttributes { size: Some(size), ..truncate(inode) };
        story.send(1, 1, (0, sequence), &request);
        let is_truncation = |call: &(CallId, OutgoingCall)| call.1.message == st::TruncateChunk::ID;
        while story.calls.first().is_some_and(is_truncation) {
            story.answer::<st::TruncateChunk>(&truncated(1));
        }
        story.replies.clear();
    };
    set_size(&mut story, 3, 100);
    assert!(synced(&mut story));
    let (open, must_have_name) = (md::OpenMode::Write, false);
    let open = md::Open { must_have_name, ..open_of(inode, open) };
    assert!(story.ask(1, 1, (0, 4), &open).unwrap().synced.contains(0));
    set_size(&mut story, 5, 0);
    assert!(!synced(&mut story));
    assert!(story.ask(1, 1, (0, 6), &open).unwrap().synced.is_empty());
}

//! Tests the state of an inode: sizes from several writers, reports, losses and truncation.

mod inline_end;
mod late_replies;

use super::*;
use skep_types::{
    Chooser, ChunkFileKey, Component, FileKind, GroupId, PatternOrigin, Redundancy, StripePattern,
    Timestamp,
};
use skep_wire::limits::MAX_STARTS;
use skep_wire::metadata::WrittenExtent;

const NOW: Duration = Duration::from_secs(100);

fn attributes(size: u64, truncate_generation: u64, change_counter: u64) -> Attributes {
    let new = Attributes::new(InodeId::new(1), FileKind::Regular, 0o644, Timestamp::default());
    Attributes { size, truncate_generation, change_counter, ..new }
}

fn opened(size: u64) -> Arc<InodeState> {
    let state = InodeState::new(InodeId::new(1));
    state.observe(&attributes(size, 0, 1), NOW);
    state
}

fn key(index: u16) -> ChunkFileKey {
    ChunkFileKey { inode: InodeId::new(1), generation: 1, component: 0, index }
}

/// Returns a pattern whose component on storage begins at `start`, after inline bytes.
fn inline_pattern(generation: u32, start: u64) -> StripePattern {
    let component = Component {
        start,
        chunk_bytes: 64 << 10,
        wanted: 1,
        redundancy: Redundancy::Stripe,
        chooser: Chooser::Balanced,
        groups: vec![GroupId::new(1)],
    };
    StripePattern {
        generation,
        origin: PatternOrigin::Cluster,
        components: vec![Component::inline(), component],
    }
}

fn extent(end: u64, truncate_generation: u64) -> WrittenExtent {
    WrittenExtent { end, truncate_generation, may_leave_holes: false, reach: 0, ends_inline: None }
}

fn write(state: &Arc<InodeState>, end: u64, index: u16, incarnation: u64) {
    let writing = state.try_write().unwrap();
    writing.piece_written(key(index), GroupId::new(1), HostIncarnation::new(incarnation));
    writing.note_write_unless_shared(&(0..end), state.end().truncate_generation);
}

#[test]
fn size_includes_unreported_writes() {
    let state = opened(100);
    write(&state, 50, 0, 1);
    assert_eq!(state.size(), 100);
    write(&state, 150, 0, 1);
    assert_eq!(state.size(), 150);
    let mut seen = attributes(100, 0, 1);
    state.merge_into(&mut seen);
    assert_eq!(seen.size, 150);
    let report = state.unreported().unwrap();
    assert_eq!(report.extent, extent(150, 0));
    state.reported(&report, &attributes(150, 0, 2), false, NOW);
    assert_eq!(state.unreported(), None);
    assert_eq!(state.size(), 150);
}

#[test]
fn write_during_a_report_is_reported_by_the_next_report() {
    let state = opened(0);
    write(&state, 10, 0, 1);
    let report = state.unreported().unwrap();
    write(&state, 20, 0, 1);
    state.reported(&report, &attributes(10, 0, 2), false, NOW);
    assert_eq!(state.unreported().unwrap().extent.end, 20);
    assert_eq!(state.size(), 20);
}

#[test]
fn write_with_a_failed_piece_does_not_change_the_file_size() {
    let state = opened(5);
    let writing = state.try_write().unwrap();
    writing.piece_written(key(0), GroupId::new(1), HostIncarnation::new(1));
    drop(writing);
    assert_eq!(state.size(), 5);
    assert_eq!(state.unreported().unwrap().extent.end, 0);
}

#[test]
fn truncation_waits_for_writes_and_clears_unreported_sizes() {
    let state = opened(0);
    let writing = state.try_write().unwrap();
    writing.note_write_unless_shared(&(0..1000), state.end().truncate_generation);
    let truncating = state.try_truncate().unwrap();
    assert!(!truncating.is_alone());
    assert!(state.try_write().is_none(), "later writes wait");
    assert!(state.try_truncate().is_none());
    drop(writing);
    assert!(truncating.is_alone());
    truncating.done(&attributes(10, 1, 2), NOW);
    drop(truncating);
    assert_eq!(state.size(), 10);
    assert_eq!(state.unreported(), None);
    write(&state, 20, 0, 1);
    assert_eq!(state.unreported().unwrap().extent, extent(20, 1));
}

#[test]
fn truncation_by_another_client_requires_a_size_query() {
    let state = opened(0);
    write(&state, 1000, 0, 1);
    let report = state.unreported().unwrap();
    // Metadata replies with a newer truncate generation. So metadata has ignored the reported end.
    state.reported(&report, &attributes(0, 1, 5), false, NOW);
    assert_eq!(state.size(), 0);
    let mut again = state.unreported().unwrap();
    assert!(again.must_measure);
    again.extent = extent(700, 1);
    state.reported(&again, &attributes(700, 1, 6), false, NOW);
    assert_eq!(state.unreported(), None);
    write(&state, 800, 0, 1);
    assert!(!state.unreported().unwrap().must_measure);
}

/// If the flag `must_measure` stayed set, the mount would assume that the next write may leave
/// holes.
#[test]
fn size_query_is_not_needed_if_metadata_has_all_writes() {
    let state = opened(0);
    write(&state, 1000, 0, 1);
    state.observe(&attributes(0, 1, 5), NOW);
    let measured = state.unreported().unwrap();
    assert!(measured.must_measure);
    // A client truncates the file again after the report. This mount receives the attributes after
    // this truncation before the reply to the report.
    state.observe(&attributes(0, 2, 7), NOW);
    state.reported(&measured, &attributes(700, 1, 6), false, NOW);
    assert_eq!(state.unreported(), None);
    write(&state, 800, 0, 1);
    assert!(!state.unreported().unwrap().must_measure);
}

#[test]
fn reported_size_excludes_confirmed_writes_that_were_truncated() {
    let state = opened(1000);
    state.opened();
    state.set_shared();
    let writing = state.try_write().unwrap();
    writing.piece_written(key(0), GroupId::new(1), HostIncarnation::new(1));
    assert!(!writing.note_write_unless_shared(&(0..100), 0), "metadata must confirm the write");
    writing.note_confirmed_write(100);
    state.observe(&attributes(0, 1, 5), NOW);
    assert!(!state.unreported().unwrap().must_measure, "the truncation has removed the bytes");
    let report = writing.report_with(&(50..60));
    let expected = WrittenExtent { may_leave_holes: true, reach: 100, ..extent(60, 1) };
    assert_eq!(report.extent, expected);
    state.reported(&report, &attributes(60, 1, 6), false, NOW);
    assert_eq!((state.size(), state.unreported()), (60, None));
}

#[test]
fn only_writes_that_begin_beyond_the_end_may_leave_holes() {
    let may_leave_holes = |state: &InodeState| state.unreported().unwrap().extent.may_leave_holes;
    let state = opened(100);
    state
        .try_write()
        .unwrap()
        .note_write_unless_shared(&(100..200), state.end().truncate_generation);
    state
        .try_write()
        .unwrap()
        .note_write_unless_shared(&(200..300), state.end().truncate_generation);
    state
        .try_write()
        .unwrap()
        .note_write_unless_shared(&(50..150), state.end().truncate_generation);
    assert!(!may_leave_holes(&state), "each write began within the file or at its end");
    state
        .try_write()
        .unwrap()
        .note_write_unless_shared(&(301..302), state.end().truncate_generation);
    assert!(may_leave_holes(&state));
    state.try_truncate().unwrap().done(&attributes(0, 1, 2), NOW);
    state.try_write().unwrap().note_write_unless_shared(&(0..10), state.end().truncate_generation);
    assert!(!may_leave_holes(&state), "a truncation removes the holes");
    state.try_write().unwrap().note_write_unless_shared(&(20..30), state.end().truncate_generation);
    let report = state.unreported().unwrap();
    state.reported(&report, &attributes(30, 1, 3), false, NOW);
    state.observe(&attributes(0, 2, 4), NOW);
    state.try_write().unwrap().note_write_unless_shared(&(0..10), state.end().truncate_generation);
    assert!(!may_leave_holes(&state), "a truncation by another client removes the holes too");
}

#[test]
fn late_reply_does_not_restore_an_old_size() {
    let state = opened(100);
    state.observe(&attributes(200, 1, 9), NOW);
    state.observe(&attributes(100, 0, 8), NOW + NOW);
    assert_eq!(state.size(), 200);
    assert_eq!(state.age(NOW + NOW), NOW);
}

#[test]
fn chunk_files_written_during_a_sync_stay_unsynced() {
    let state = opened(0);
    write(&state, 10, 0, 1);
    write(&state, 20, 1, 1);
    let snapshot = state.unsynced();
    assert_eq!(snapshot.len(), 2);
    write(&state, 30, 1, 1);
    for unsynced in &snapshot {
        state.synced(unsynced, HostIncarnation::new(1));
    }
    let left: Vec<_> = state.unsynced().iter().map(|unsynced| unsynced.key).collect();
    assert_eq!(left, [key(1)]);
    assert_eq!(state.losses(), 0);
}

#[test]
fn new_incarnation_of_a_storage_host_counts_as_one_loss() {
    let state = opened(0);
    write(&state, 10, 0, 1);
    state.synced(&state.unsynced()[0], HostIncarnation::new(2));
    assert_eq!(state.losses(), 1);
    assert_eq!(state.unsynced(), []);
    write(&state, 20, 0, 2);
    assert_eq!(state.losses(), 1, "a synced file may be written by any incarnation");
    write(&state, 30, 0, 3);
    assert_eq!(state.losses(), 2);
    state.synced(&state.unsynced()[0], HostIncarnation::new(3));
    assert_eq!(state.losses(), 2, "a loss is counted once");
}

#[test]
fn open_or_unsynced_inode_is_not_idle() {
    let state = opened(0);
    state.opened();
    state.opened();
    write(&state, 10, 0, 1);
    state.closing(false, false);
    state.closing(false, false);
    assert!(!state.closed());
    assert!(state.closed());
    assert!(!state.is_idle());
    assert!(state.is_closed_unsynced());
    state.synced(&state.unsynced()[0], HostIncarnation::new(1));
    assert!(state.is_idle());
}

/// A truncation may have extended the file to its present size without bytes in the chunk files.
/// Without the report, a later truncation or removal would leave the written bytes in the chunk
/// files, and programs could read them later.
#[test]
fn write_below_the_file_size_is_reported_with_its_end() {
    let state = opened(1000);
    state.opened();
    state.set_shared();
    let writing = state.try_write().unwrap();
    assert!(!writing.note_write_unless_shared(&(0..300), 0), "metadata must confirm the write");
    writing.note_confirmed_write(300);
    let report = state.unreported().unwrap();
    assert_eq!(report.extent, WrittenExtent { reach: 300, ..extent(0, 0) });
    assert_eq!(state.size(), 1000);
}

#[test]
fn unfinished_write_is_reported_with_the_offset_it_may_reach() {
    let state = opened(100);
    state.try_write().unwrap().note_reach(5000);
    let report = state.unreported().unwrap();
    assert_eq!(report.extent, WrittenExtent { reach: 5000, ..extent(0, 0) });
    state.reported(&report, &attributes(100, 0, 2), false, NOW);
    assert_eq!((state.unreported(), state.size()), (None, 100));
    write(&state, 6000, 0, 1);
    assert_eq!(state.unreported().unwrap().extent, extent(6000, 0));
}

#[test]
fn size_reports_lost_in_a_power_loss_are_repeated() {
    let state = opened(10);
    write(&state, 500, 0, 1);
    let report = state.unreported().unwrap();
    state.reported(&report, &attributes(500, 0, 2), false, NOW);
    assert!(state.is_reported_undurably());
    let told = state.reported_extent();
    assert_eq!(state.compare(&told, &attributes(500, 0, 2)), ReportLoss::Nothing);
    assert!(!state.is_reported_undurably());
    assert_eq!(state.unreported(), None);
    assert_eq!(state.compare(&told, &attributes(10, 0, 1)), ReportLoss::End);
    let again = state.unreported().unwrap();
    assert_eq!(again.extent, extent(500, 0));
    state.reported(&again, &attributes(500, 0, 2), true, NOW);
    assert_eq!((state.unreported(), state.is_reported_undurably()), (None, false));
    // Another client has truncated the file since, so nothing is lost.
    assert_eq!(state.compare(&told, &attributes(3, 1, 3)), ReportLoss::Nothing);
}

#[test]
fn truncation_lost_by_metadata_is_detected() {
    let state = opened(1000);
    let told_before = state.reported_extent();
    let truncating = state.try_truncate().unwrap();
    truncating.done(&attributes(20, 1, 2), NOW);
    drop(truncating);
    assert!(state.is_reported_undurably());
    // The acknowledged end is from before the truncation, so the comparison must not detect a lost
    // truncation.
    assert_eq!(state.compare(&told_before, &attributes(1000, 0, 1)), ReportLoss::Nothing);
    let told = state.reported_extent();
    assert_eq!(state.compare(&told, &attributes(1000, 0, 1)), ReportLoss::Truncation);
    assert_eq!(state.size(), 1000);
    let report = state.unreported().unwrap();
    assert!(report.must_measure);
    assert_eq!(report.extent.truncate_generation, 0);
}

fn mark(start: u64, record: u64) -> InlineMark {
    InlineMark { start, record: skep_types::Lsn::new(record) }
}

#[test]
fn inline_write_needs_no_report() {
    let state = opened(10);
    let writing = state.try_write().unwrap();
    state.inline_written(mark(1, 5));
    writing.note_inline_write(300, &attributes(300, 0, 2), NOW);
    assert_eq!((state.size(), state.unreported()), (300, None));
    assert!(state.is_reported_undurably() && !state.is_idle());
    // Metadata lost the write in a power loss, so the client must report the size again.
    let told = state.reported_extent();
    assert_eq!(state.compare(&told, &attributes(10, 0, 1)), ReportLoss::End);
    assert_eq!(state.unreported().unwrap().extent.end, 300);
    // An inline write must not mark earlier unreported writes as reported.
    write(&state, 9000, 0, 1);
    writing.note_inline_write(400, &attributes(400, 0, 3), NOW);
    assert_eq!(state.unreported().unwrap().extent.end, 9000);
    // Another client truncated the file after this inline write, and this mount has already
    // recorded the truncation.
    state.observe(&attributes(0, 1, 9), NOW);
    writing.note_inline_write(500, &attributes(500, 0, 8), NOW);
    assert_eq!(state.size(), 0);
}

#[test]
fn inline_write_stays_unsynced_until_a_sync_includes_the_write() {
    let state = opened(0);
    for (start, record) in [(2, 30), (1, 9), (2, 20), (1, 11)] {
        state.inline_written(mark(start, record));
    }
    let written = state.unsynced_inline();
    assert_eq!(written, [mark(1, 11), mark(2, 30)]);
    state.inline_written(mark(2, 31));
    state.inline_synced(&written, false);
    assert_eq!(state.unsynced_inline(), [mark(2, 31)], "the later write is not synced yet");
    assert_eq!(state.losses(), 0);
    state.inline_synced(&[mark(2, 31)], true);
    assert_eq!((state.losses(), state.unsynced_inline().len()), (1, 0));
    assert!(state.is_idle());
    // Metadata stores the inline marks of only `MAX_STARTS` starts of the target, so the write of
    // the oldest start counts as lost.
    for start in 1..=MAX_STARTS as u64 + 1 {
        state.inline_written(mark(start, start));
    }
    assert_eq!((state.losses(), state.unsynced_inline().len()), (2, MAX_STARTS));
    assert_eq!(state.unsynced_inline()[0], mark(2, 2));
}

#[test]
fn third_fsync_of_metadata_and_storage_moves_inline_bytes() {
    const INLINE: u64 = 4096;
    let unsynced = |size| {
        let state = opened(0);
        write(&state, size, 0, 1);
        state.inline_written(mark(1, 1));
        state
    };
    let due =
        |state: &InodeState, was_grown| [0; 7].map(|_| state.count_sync_of_both(INLINE, was_grown));
    let each_third = [false, false, true, false, false, true, false];
    assert_eq!(due(&unsynced(5000), false), each_third);
    let first = [true, false, false, true, false, false, true];
    assert_eq!(due(&unsynced(5000), true), first, "the file was large when it was opened");
    assert_eq!(due(&unsynced(INLINE), true), [false; 7], "the file has only inline bytes");
    let shared = unsynced(5000);
    shared.opened();
    shared.set_shared();
    assert_eq!(due(&shared, true), [false; 7]);
    let on_storage = opened(0);
    write(&on_storage, 5000, 0, 1);
    assert_eq!(due(&on_storage, true), [false; 7]);
}

#[test]
fn inline_move_is_recorded_for_one_pattern_generation_only() {
    let state = opened(0);
    assert!(!state.has_moved_inline(0) && !state.has_moved_inline(1));
    state.inline_moved(1);
    assert!(state.has_moved_inline(1) && !state.has_moved_inline(2));
}

#[test]
fn open_reply_with_inline_bytes_reverts_an_unconfirmed_move() {
    let pattern = |start| inline_pattern(1, start);
    let state = opened(0);
    state.pattern_opened(&pattern(0));
    assert!(state.unconfirmed_move().is_none(), "metadata shows only durable moves");
    state.empty_inline_ended(1, mark(1, 9));
    state.pattern_opened(&pattern(0));
    assert!(state.has_moved_inline(1));
    assert_eq!(
        state.unconfirmed_move().map(|it| it.mark),
        Some(mark(1, 9)),
        "a pattern without inline bytes reverts no move"
    );
    state.pattern_opened(&pattern(4096));
    assert!(!state.has_moved_inline(1), "a power loss has reverted the move");
    assert_eq!(state.unconfirmed_move().map(|it| it.mark), Some(mark(1, 9)));
    state.move_confirmed(1);
    state.pattern_opened(&pattern(4096));
    assert!(state.has_moved_inline(1) && state.unconfirmed_move().is_none());
}

#[test]
fn pattern_of_the_newest_open_is_known_until_the_last_close() {
    let state = opened(0);
    let generation = || state.pattern().map(|it| it.generation);
    assert_eq!(generation(), None);
    for number in [1, 2] {
        state.opened();
        state.set_pattern(Arc::new(inline_pattern(number, 4096)));
        assert_eq!(generation(), Some(number));
    }
    assert!(state.pattern().unwrap().inline_bytes() > 0);
    state.empty_inline_ended(2, mark(1, 9));
    assert_eq!(state.pattern().unwrap().inline_bytes(), 0, "the first bytes are on storage");
    for left in [Some(2), None] {
        state.closing(false, false);
        state.closed();
        assert_eq!(generation(), left);
    }
}

#[test]
fn open_with_a_new_pattern_reports_the_replaced_generation() {
    let state = opened(0);
    assert_eq!(state.opened_generation(), None);
    let opened = [1, 1, 2, 2].map(|generation| state.generation_opened(generation));
    assert_eq!(opened, [None, None, Some(1), None]);
    assert_eq!(state.opened_generation(), Some(2));
}

#[test]
fn only_reports_of_a_replaced_pattern_are_discarded() {
    let state = opened(0);
    state.generation_opened(1);
    write(&state, 10, 0, 1);
    assert!(state.unreported().is_some());
    state.generation_opened(1);
    assert!(state.unreported().is_some());
    state.generation_opened(2);
    assert!(state.unreported().is_none(), "no reader finds the bytes");
    write(&state, 10, 0, 1);
    // Another thread finds out late that the pattern with generation 1 was replaced.
    state.pattern_expired(1);
    assert!(state.unreported().is_some());
    state.pattern_expired(2);
    assert!(state.unreported().is_none());
}

#[test]
fn dropped_move_of_inline_bytes_still_counts_as_running() {
    let state = opened(0);
    let claim = state.try_truncate().unwrap();
    assert!(!state.is_moving_inline());
    let moving = claim.begin_move().unwrap();
    assert!(state.is_moving_inline());
    moving.end();
    assert!(!state.is_moving_inline());
    drop(claim.begin_move());
    assert!(state.is_moving_inline() && claim.begin_move().is_none());
}

#[test]
fn reverted_end_of_an_inline_component_counts_as_one_loss() {
    let state = opened(0);
    state.empty_inline_ended(1, mark(1, 9));
    assert!(state.has_moved_inline(1) && state.unconfirmed_move().is_some());
    state.move_reverted();
    assert_eq!((state.losses(), state.unconfirmed_move().is_none()), (1, true));
    assert!(!state.has_moved_inline(1), "the mount uses the inline component again");
}

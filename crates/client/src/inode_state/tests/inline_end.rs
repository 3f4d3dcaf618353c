//! Tests how the inline component of a new file ends: the write that ends it, and the contents of
//! the reports.

use super::*;

/// Reports `end` of the file, and returns the generation whose inline component the report ends.
fn report(state: &InodeState, end: u64, version: u64, is_durable: bool) -> Option<u32> {
    let report = state.unreported().unwrap();
    assert_eq!((report.extent.end, report.extent.reach), (end, 0));
    state.reported(&report, &attributes(end, 0, version), is_durable, NOW);
    report.extent.ends_inline
}

/// Returns the state of a file that this client has created and has open.
fn new_file() -> Arc<InodeState> {
    let state = opened(0);
    state.created();
    state
}

/// Decides that a first write of 5000 bytes ends the inline component of a new file.
fn end_inline(state: &InodeState) {
    state.created();
    assert!(state.place_first_bytes(Some(1), 5000));
}

/// Returns the state of a new file whose inline component has ended.
fn with_ended_inline() -> Arc<InodeState> {
    let state = opened(0);
    end_inline(&state);
    state
}

/// Returns the state of a new file whose client has reported the end of the inline component, but
/// metadata has not persisted it.
fn with_reported_end() -> Arc<InodeState> {
    let state = with_ended_inline();
    write(&state, 5000, 0, 1);
    assert_eq!(report(&state, 5000, 2, false), Some(1));
    state
}

#[test]
fn reports_contain_the_end_of_inline_bytes_until_it_is_durable() {
    let state = with_ended_inline();
    assert!(state.has_moved_inline(1) && state.has_unreported_end());
    write(&state, 5000, 0, 1);
    assert_eq!(report(&state, 5000, 2, false), Some(1));
    assert!(!state.has_unreported_end() && state.ending_inline() == Some(1));
    write(&state, 6000, 0, 1);
    assert_eq!(report(&state, 6000, 3, true), Some(1));
    assert_eq!(state.ending_inline(), None);
    write(&state, 7000, 0, 1);
    assert_eq!(report(&state, 7000, 4, false), None);
    assert!(state.has_moved_inline(1));
}

#[test]
fn durable_size_confirms_the_end_of_the_inline_component() {
    let state = with_reported_end();
    let sent = state.reported_extent();
    assert_eq!(state.compare(&sent, &attributes(0, 0, 1)), ReportLoss::End);
    assert!(state.has_unreported_end(), "a power loss has reverted the report");
    assert_eq!(report(&state, 5000, 3, false), Some(1));
    let sent = state.reported_extent();
    assert_eq!(state.compare(&sent, &attributes(5000, 0, 3)), ReportLoss::Nothing);
    assert_eq!(state.ending_inline(), None);
}

#[test]
fn only_the_first_write_of_a_new_file_ends_its_inline_component() {
    let known = opened(0);
    assert!(!known.place_first_bytes(Some(1), 5000), "another client may have used the file");
    let small = new_file();
    assert!(!small.place_first_bytes(None, 10), "the write fits into the inline component");
    assert!(!small.place_first_bytes(Some(1), 5000), "the file has inline bytes");
    let shared = new_file();
    shared.set_shared();
    assert!(!shared.place_first_bytes(Some(1), 5000));
    let extended = new_file();
    write(&extended, 10_000, 0, 1);
    assert!(!extended.place_first_bytes(Some(1), 5000), "metadata may have the new size");
    let lost = new_file();
    lost.opened_again(false);
    assert!(!lost.place_first_bytes(Some(1), 5000), "metadata had lost the open");
    assert_eq!(lost.unreported(), None);
}

#[test]
fn evicted_client_reports_no_end_of_an_inline_component() {
    let state = with_ended_inline();
    state.forget_unreported();
    assert_eq!((state.unreported(), state.has_unreported_end()), (None, false));
}

#[test]
fn reopened_shared_file_uses_its_inline_component_again() {
    let state = with_ended_inline();
    state.opened_again(false);
    assert!(state.has_moved_inline(1) && state.losses() == 0);
    state.opened_again(true);
    assert_eq!((state.losses(), state.has_unreported_end()), (1, false));
    assert!(!state.has_moved_inline(1));
}

/// After a failed write, the durable size does not show that the component has ended.
#[test]
fn durable_pattern_confirms_the_end_of_the_inline_component() {
    let ended = || {
        let state = with_ended_inline();
        let report = state.unreported().unwrap();
        state.reported(&report, &attributes(0, 0, 2), false, NOW);
        let sent = state.reported_extent();
        assert_eq!(state.compare(&sent, &attributes(0, 0, 2)), ReportLoss::Nothing);
        assert_eq!(state.ending_inline(), Some(1));
        state
    };
    let durable = ended();
    assert!(!durable.compare_end(Some(true)));
    assert_eq!((durable.ending_inline(), durable.unreported()), (None, None));
    let reverted = ended();
    assert!(reverted.compare_end(Some(false)));
    assert_eq!(reverted.unreported().unwrap().extent.ends_inline, Some(1));
    let replaced = ended();
    assert!(!replaced.compare_end(None));
    assert_eq!((replaced.ending_inline(), replaced.unreported()), (None, None));
}

/// Metadata lets no client truncate the file before metadata has recorded the end of the component.
#[test]
fn durable_truncation_confirms_end_of_the_inline_component() {
    let state = with_reported_end();
    let sent = state.reported_extent();
    assert_eq!(state.compare(&sent, &attributes(0, 1, 3)), ReportLoss::Nothing);
    assert_eq!(state.ending_inline(), None);
}

/// A power loss may revert the close together with the report.
#[test]
fn close_keeps_the_inline_end_until_its_report_is_durable() {
    let state = opened(0);
    state.opened();
    end_inline(&state);
    write(&state, 5000, 0, 1);
    state.closing(false, false);
    assert_eq!(report(&state, 5000, 2, false), Some(1));
    assert!(state.closed());
    assert_eq!(state.ending_inline(), Some(1));
}

//! Tests of the end of the inline component of a new file: the write that ends it, and the contents
//! of the reports.

use super::*;

/// Reports `end` of the file, and returns the generation whose inline component the report ends.
fn report(state: &InodeState, end: u64, version: u64, is_durable: bool) -> Option<u32> {
    let report = state.unreported().unwrap();
    assert_eq!((report.extent.end, report.extent.reach), (end, 0));
    state.reported(&report, &attributes(end, 0, version), is_durable, NOW);
    report.extent.ends_inline
}

#[test]
fn reports_contain_the_end_of_inline_bytes_until_it_is_durable() {
    let state = opened(0);
    state.created();
    assert!(state.place_first_bytes(Some(1), 5000));
    assert!(state.has_moved_inline(1) && state.has_unreported_end());
    write(&state, 5000, 0, 1);
    assert_eq!(report(&state, 5000, 2, false), Some(1));
    assert!(!state.has_unreported_end() && state.is_ending_inline());
    write(&state, 6000, 0, 1);
    assert_eq!(report(&state, 6000, 3, true), Some(1));
    assert!(!state.is_ending_inline());
    write(&state, 7000, 0, 1);
    assert_eq!(report(&state, 7000, 4, false), None);
    assert!(state.has_moved_inline(1));
}

#[test]
fn durable_size_shows_that_the_inline_component_has_ended() {
    let state = opened(0);
    state.created();
    assert!(state.place_first_bytes(Some(1), 5000));
    write(&state, 5000, 0, 1);
    assert_eq!(report(&state, 5000, 2, false), Some(1));
    let sent = state.reported_extent();
    assert_eq!(state.compare(&sent, &attributes(0, 0, 1)), ReportLoss::End);
    assert!(state.has_unreported_end(), "a power loss has reverted the report");
    assert_eq!(report(&state, 5000, 3, false), Some(1));
    let sent = state.reported_extent();
    assert_eq!(state.compare(&sent, &attributes(5000, 0, 3)), ReportLoss::Nothing);
    assert!(!state.is_ending_inline());
}

#[test]
fn only_the_first_write_of_a_new_file_ends_its_inline_component() {
    let known = opened(0);
    assert!(!known.place_first_bytes(Some(1), 5000), "another client may have used the file");
    let new = || {
        let state = opened(0);
        state.created();
        state
    };
    let small = new();
    assert!(!small.place_first_bytes(None, 10), "the write fits into the inline component");
    assert!(!small.place_first_bytes(Some(1), 5000), "the file has inline bytes");
    let shared = new();
    shared.set_shared();
    assert!(!shared.place_first_bytes(Some(1), 5000));
    let extended = new();
    write(&extended, 10_000, 0, 1);
    assert!(!extended.place_first_bytes(Some(1), 5000), "metadata may have the new size");
    let lost = new();
    lost.opened_again(false);
    assert!(!lost.place_first_bytes(Some(1), 5000), "metadata had lost the open");
    assert_eq!(lost.unreported(), None);
}

#[test]
fn evicted_client_reports_no_end_of_an_inline_component() {
    let state = opened(0);
    state.created();
    assert!(state.place_first_bytes(Some(1), 5000));
    state.forget_unreported();
    assert_eq!((state.unreported(), state.has_unreported_end()), (None, false));
}

#[test]
fn reopened_and_shared_file_loses_the_end_of_its_inline_bytes() {
    let state = opened(0);
    state.created();
    assert!(state.place_first_bytes(Some(1), 5000));
    state.opened_again(false);
    assert!(state.has_moved_inline(1) && state.losses() == 0);
    state.opened_again(true);
    assert_eq!((state.losses(), state.has_unreported_end()), (1, false));
    assert!(!state.has_moved_inline(1));
}

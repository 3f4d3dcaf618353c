//! Tests the contents of a journal after interruptions, damage and full disks.

use super::*;
use crate::record::CalibratedRecord;
use proptest::prelude::*;

const PLAN: &str = "name = 'x'\ntitle = 't'\n[[experiment]]\nname = 'a'\ntitle = 'a'\n";

fn study() -> StudyRecord {
    StudyRecord {
        format: FORMAT,
        plan: PLAN.to_owned(),
        started_at: "2026-01-01T00:00:00Z".to_owned(),
        skep_version: "0.1.0".to_owned(),
        place: "lab x".to_owned(),
        hosts: vec!["c1".to_owned()],
        targets_per_server: None,
        limit: None,
    }
}

fn record(data_bytes: u64) -> Record {
    Record::Calibrated(CalibratedRecord {
        data_bytes,
        is_data_enough: true,
        hosts: 4,
        are_hosts_enough: false,
    })
}

fn plan() -> Plan {
    Plan::parse(PLAN).expect("a plan")
}

/// Creates a journal with `records` records after the record of the study.
fn filled(directory: &Path, records: u64) {
    let mut journal = Journal::create(directory, &study()).expect("made");
    for number in 0..records {
        journal.reserve(4096).expect("room");
        journal.append(&record(number)).expect("written");
    }
}

#[test]
fn resumed_journal_has_all_records_and_accepts_more() {
    let scratch = tempfile::tempdir().expect("a directory");
    let directory = scratch.path().join("study");
    filled(&directory, 2);
    let contents = read(&directory).expect("a journal");
    assert_eq!(contents.study, study());
    assert_eq!(contents.records, [record(0), record(1)]);
    let (mut journal, found) = Journal::resume(&directory, &plan()).expect("the same plan");
    assert_eq!(found, contents);
    journal.append(&record(2)).expect("written");
    assert_eq!(read(&directory).expect("a journal").records.len(), 3);
    let again = Journal::resume(&directory, &plan()).expect_err("the journal is open");
    assert_eq!(again.code(), ErrorCode::InUse);
}

#[test]
fn second_study_and_resume_with_another_plan_are_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    filled(scratch.path(), 1);
    let before = std::fs::read(scratch.path().join(FILE)).expect("a file");
    let again = Journal::create(scratch.path(), &study()).expect_err("the directory has a journal");
    assert_eq!(again.code(), ErrorCode::Exists);
    assert!(again.context().contains("--resume"), "{again}");
    let other = Plan::parse(&PLAN.replace("'t'", "'u'")).expect("a plan");
    let refused = Journal::resume(scratch.path(), &other).expect_err("another plan");
    assert_eq!(refused.code(), ErrorCode::Configuration);
    assert!(refused.context().contains("another plan"), "{refused}");
    assert_eq!(
        std::fs::read(scratch.path().join(FILE)).expect("a file"),
        before,
        "a refusal does not change the journal"
    );
    // Two plans that differ only in comments and the order of keys are equal.
    let same = Plan::parse(&format!("# the same\n{PLAN}")).expect("a plan");
    Journal::resume(scratch.path(), &same).expect("the same plan");
    let missing = read(&scratch.path().join("none")).expect_err("none");
    assert_eq!(missing.code(), ErrorCode::NotFound);
}

#[test]
fn unreadable_journal_line_is_reported_with_its_number() {
    let scratch = tempfile::tempdir().expect("a directory");
    filled(scratch.path(), 3);
    let path = scratch.path().join(FILE);
    let text = std::fs::read_to_string(&path).expect("a file");
    let mut lines: Vec<&str> = text.lines().collect();
    lines[2] = "{\"kind\":\"calib";
    std::fs::write(&path, lines.join("\n") + "\n").expect("written");
    let error = read(scratch.path()).expect_err("damaged");
    assert_eq!(error.code(), ErrorCode::Corrupt);
    assert!(error.context().contains("line 3"), "{error}");
}

#[test]
fn journal_of_a_later_version_is_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let later = StudyRecord { format: FORMAT + 1, ..study() };
    Journal::create(scratch.path(), &later).expect("made");
    let error = read(scratch.path()).expect_err("later");
    assert_eq!(error.code(), ErrorCode::VersionMismatch);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After the last line was truncated at any place, the journal still has all earlier records. A
    /// new record replaces the incomplete line.
    #[test]
    fn torn_last_line_is_the_only_record_lost(cut in 1_u64..100) {
        let scratch = tempfile::tempdir().expect("a directory");
        filled(scratch.path(), 3);
        let path = scratch.path().join(FILE);
        let text = std::fs::read(&path).expect("a file");
        let last = text[..text.len() - 1].iter().rposition(|it| *it == b'\n').expect("lines");
        let cut = cut.min((text.len() - last - 1) as u64);
        let file = File::options().write(true).open(&path).expect("a file");
        file.set_len(text.len() as u64 - cut).expect("cut");
        drop(file);
        prop_assert_eq!(read(scratch.path()).expect("readable").records, [record(0), record(1)]);
        let (mut journal, contents) = Journal::resume(scratch.path(), &plan()).expect("resumed");
        prop_assert_eq!(contents.records.len(), 2);
        journal.append(&record(9)).expect("written");
        let records = read(scratch.path()).expect("readable").records;
        prop_assert_eq!(records, [record(0), record(1), record(9)]);
    }
}

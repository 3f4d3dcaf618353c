//! Tests of the log file after restarts, torn writes and damage.

use super::*;
use skep_format::consensus::EntryContent;
use skep_testkit::thin::{ThinDisk, may_mount};
use skep_types::codec::Bytes;

const CLUSTER: ClusterId = ClusterId::new([9; 16]);

fn position(index: u64) -> LogPosition {
    LogPosition { term: 1, leader: 2, index }
}

fn append(index: u64) -> LogRecord {
    let content = EntryContent::Command { command: Bytes(vec![7; 100]) };
    LogRecord::Append { entry: LogEntry { position: position(index), content } }
}

fn open(directory: &Path) -> LogFile {
    LogFile::open(directory, CLUSTER, 2).unwrap()
}

/// Returns a directory with the empty log of member 2.
fn new_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    LogFile::create(directory.path(), CLUSTER, 2).unwrap();
    directory
}

fn indexes(log: &LogFile) -> Vec<u64> {
    log.entries(0, u64::MAX).map(|entry| entry.position.index).collect()
}

#[test]
fn restart_restores_the_vote_and_the_truncated_log() {
    let directory = new_directory();
    let mut log = open(directory.path());
    let vote = VoteRecord { term: 3, candidate: 1, is_elected: true };
    log.write((0..5).map(append).collect()).unwrap();
    log.write(vec![LogRecord::Vote { vote }, LogRecord::Truncate { from: 3 }]).unwrap();
    log.write(vec![append(3)]).unwrap();
    log.remove_up_to(position(1)).unwrap();
    log.write(vec![append(4)]).unwrap();
    for log in [&log, &open(directory.path())] {
        assert_eq!(indexes(log), [2, 3, 4]);
        assert_eq!((log.vote(), log.removed()), (Some(vote), Some(position(1))));
        assert_eq!(log.entries(3, 4).count(), 1);
    }
    // The leader's snapshot may contain the effects of entries that this log does not have yet.
    log.remove_up_to(position(20)).unwrap();
    let mut log = open(directory.path());
    assert_eq!((indexes(&log), log.last()), (Vec::new(), Some(position(20))));
    log.write(vec![append(21)]).unwrap();
    assert_eq!(indexes(&open(directory.path())), [21]);
}

#[test]
fn torn_write_is_truncated_and_the_log_continues() {
    let directory = new_directory();
    let path = directory.path().join(LOG_FILE);
    let mut log = open(directory.path());
    log.write(vec![append(0)]).unwrap();
    log.write(vec![append(1), append(2)]).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let mut log = open(directory.path());
    assert_eq!(indexes(&log), [0, 1]);
    log.write(vec![append(2)]).unwrap();
    assert_eq!(indexes(&open(directory.path())), [0, 1, 2]);
}

#[test]
fn damaged_logs_and_logs_of_other_members_are_refused() {
    let directory = new_directory();
    let path = directory.path().join(LOG_FILE);
    let mut log = open(directory.path());
    for index in 0..3 {
        log.write(vec![append(index)]).unwrap();
    }
    let other = LogFile::open(directory.path(), CLUSTER, 3).unwrap_err();
    assert_eq!(other.code(), ErrorCode::Configuration);
    assert!(other.context().contains("member 2"), "{other}");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[LOG_HEAD_BYTES + 100] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let damaged = LogFile::open(directory.path(), CLUSTER, 2).unwrap_err();
    assert_eq!(damaged.code(), ErrorCode::Corrupt);
    assert!(damaged.context().contains(LOG_FILE), "{damaged}");
    // The log must refuse a file that has lost its only record, and must not open it as an empty
    // log.
    bytes.truncate(LOG_HEAD_BYTES + 20);
    std::fs::write(&path, &bytes).unwrap();
    let damaged = LogFile::open(directory.path(), CLUSTER, 2).unwrap_err();
    assert!(damaged.context().contains("first record"), "{damaged}");
    let mut contents = Contents::default();
    contents.apply(append(1)).unwrap();
    assert_eq!(contents.apply(append(3)).unwrap_err().code(), ErrorCode::Corrupt);
}

#[test]
fn log_refuses_all_writes_after_a_failed_write() {
    let directory = new_directory();
    let mut log = open(directory.path());
    log.file = File::open(directory.path().join(LOG_FILE)).unwrap();
    for _ in 0..2 {
        assert_eq!(log.write(vec![append(0)]).unwrap_err().code(), ErrorCode::DeviceFailed);
    }
    assert_eq!(log.remove_up_to(position(0)).unwrap_err().code(), ErrorCode::DeviceFailed);
    assert!(indexes(&log).is_empty());
}

#[test]
fn records_out_of_order_are_refused_before_the_write() {
    let directory = new_directory();
    let path = directory.path().join(LOG_FILE);
    let mut log = open(directory.path());
    log.write((0..4).map(append).collect()).unwrap();
    log.remove_up_to(position(1)).unwrap();
    let before = std::fs::read(&path).unwrap();
    let of_term = |term| {
        let position = LogPosition { term, ..position(4) };
        LogRecord::Append { entry: LogEntry { position, content: EntryContent::Blank } }
    };
    let base = || LogRecord::Base { vote: None, removed: None };
    for wrong in [
        vec![append(5)],
        vec![append(3)],
        vec![append(4), append(4)],
        vec![of_term(0)],
        vec![LogRecord::Truncate { from: 3 }, append(4)],
        vec![LogRecord::Truncate { from: 1 }],
        vec![base()],
    ] {
        let error = log.write(wrong.clone()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt, "{wrong:?}");
        assert!(error.context().contains(LOG_FILE), "{error}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    log.write(vec![LogRecord::Truncate { from: 3 }, append(3), of_term(2)]).unwrap();
    assert_eq!(indexes(&open(directory.path())), [2, 3, 4]);
}

#[test]
fn log_that_does_not_continue_the_snapshot_is_refused() {
    let directory = new_directory();
    let mut log = open(directory.path());
    log.join_snapshot(None).unwrap();
    log.write((0..6).map(append).collect()).unwrap();
    log.remove_up_to(position(2)).unwrap();
    let other_term = LogPosition { term: 9, ..position(4) };
    for snapshot in [None, Some(position(1)), Some(other_term)] {
        let error = log.join_snapshot(snapshot).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt, "{snapshot:?}");
        assert!(error.context().contains("new id"), "{error}");
    }
    for joined in [2, 4, 5] {
        log.join_snapshot(Some(position(joined))).unwrap();
        assert_eq!(indexes(&log), [3, 4, 5], "the log continues the snapshot");
    }
    // The member crashed after it stored the leader's snapshot and before it updated its log. The
    // last log entries belong to a term that lost an election.
    log.join_snapshot(Some(LogPosition { term: 3, ..position(20) })).unwrap();
    let mut log = open(directory.path());
    assert_eq!((indexes(&log), log.last().unwrap().index), (Vec::new(), 20));
    let next = LogPosition { term: 3, ..position(21) };
    let entry = LogEntry { position: next, content: EntryContent::Blank };
    log.write(vec![LogRecord::Append { entry }]).unwrap();
}

/// Mounts a file system of 24 MiB at `path`. `None` means that the test does not run as root.
fn small_disk(path: &Path) -> Option<Unmount> {
    if !may_mount() {
        return None;
    }
    let mut mount = std::process::Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=24m", "log"]).arg(path);
    let is_mounted = mount.status().is_ok_and(|status| status.success());
    assert!(is_mounted, "cannot mount a tmpfs at {}", path.display());
    Some(Unmount(path.to_owned()))
}

/// Unmounts the file system, even if the test fails.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// An earlier version of the log had a bug: once the disk had been full, management accepted no
/// change until its restart.
#[test]
fn log_on_a_full_disk_refuses_commands_beyond_its_reserve() {
    let parent = tempfile::tempdir().unwrap();
    let Some(_unmount) = small_disk(parent.path()) else { return };
    LogFile::create(parent.path(), CLUSTER, 2).unwrap();
    let mut log = open(parent.path());
    let filler = parent.path().join("filler");
    let fill = |mut file: &File| while std::io::Write::write(&mut file, &[1; 1 << 16]).is_ok() {};
    fill(&File::create(&filler).unwrap());
    let long = |index| {
        let content = EntryContent::Command { command: Bytes(vec![7; 1 << 20]) };
        LogRecord::Append { entry: LogEntry { position: position(index), content } }
    };
    let mut index = 0;
    let error = loop {
        assert!(index < 100, "the disk is small");
        if let Err(error) = log.reserve() {
            break error;
        }
        log.write(vec![long(index)]).unwrap();
        index += 1;
    };
    assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
    assert!(index > 0, "a start reserves space");
    // The reserved space suffices for an election, and for the replacement of the log file by a
    // smaller file.
    let vote = VoteRecord { term: 3, candidate: 1, is_elected: true };
    log.write(vec![LogRecord::Vote { vote }]).unwrap();
    log.remove_up_to(position(0)).unwrap();
    log.write(vec![append(index)]).unwrap();
    std::fs::remove_file(&filler).unwrap();
    log.reserve().unwrap();
    log.write(vec![append(index + 1)]).unwrap();
    assert_eq!(open(parent.path()).last(), Some(position(index + 1)));
}

/// docs/semantics.md 3.1: the record of a failed sync is on the device after a restart.
#[test]
fn entry_of_a_failed_sync_is_on_the_device_after_restart() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(thin) = ThinDisk::new(scratch.path(), 24) else { return };
    LogFile::create(&thin.path(), CLUSTER, 2).unwrap();
    let mut log = open(&thin.path());
    let near_end_of_block = 4096 - 250;
    for index in 0.. {
        if log.end > near_end_of_block {
            break;
        }
        log.write(vec![append(index)]).unwrap();
    }
    assert!(log.end < 4096);
    // Remove the reserved space, so that the next write must allocate a block.
    log.file.set_len(log.end).unwrap();
    log.file.sync_all().unwrap();
    thin.trim();
    let stranger = File::create(thin.path().join("stranger")).unwrap();
    let fill = |number: u64| {
        stranger.write_all_at(&[7; 4096], number << 12)?;
        stranger.sync_all()
    };
    assert!((0..10_000).any(|number| fill(number).is_err()), "the device is full");
    let last = log.last().unwrap().index + 1;
    let content = EntryContent::Command { command: Bytes(vec![7; 900]) };
    let long = LogRecord::Append { entry: LogEntry { position: position(last), content } };
    // The process ends directly after the failed sync.
    log.write(vec![long]).unwrap_err();
    drop(log);
    thin.resize(200);
    assert_eq!(open(&thin.path()).last(), Some(position(last)));
    ThinDisk::drop_page_cache();
    assert_eq!(open(&thin.path()).last(), Some(position(last)));
}

//! Tests of the log: appends, segments, full disks, failed syncs.

use super::*;
use skep_testkit::thin::{ThinDisk, may_mount};
use skep_types::{ClusterId, TargetId};

const OWNER: LogOwner = LogOwner { cluster: ClusterId::new([7; 16]), target: TargetId::new(1) };
const EPOCH: Epoch = Epoch::new(1);

fn open(path: &Path) -> Result<Recovered> {
    Log::open(path, OWNER, Lsn::new(1))
}

fn fill(path: &Path, count: u64, bytes: usize) {
    let mut log = open(path).unwrap().log;
    for lsn in 1..=count {
        log.append(EPOCH, Lsn::new(lsn), Lsn::new(lsn - 1), &vec![lsn as u8; bytes]).unwrap();
    }
}

#[test]
fn records_survive_reopening_and_a_torn_tail_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 3, 100);
    let path = segment_path(directory.path(), Lsn::new(1));
    let len = 3 * (skep_format::log::RECORD_HEADER_BYTES as u64 + 100);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
    let mut recovered = open(directory.path()).unwrap();
    assert_eq!(recovered.records.len(), 2);
    assert_eq!(recovered.truncated_bytes, 139);
    assert_eq!(recovered.epoch, EPOCH);
    recovered.log.append(EPOCH, Lsn::new(3), Lsn::new(2), b"again").unwrap();
    let records = open(directory.path()).unwrap().records;
    assert_eq!((records[2].lsn, records[2].payload.as_slice()), (Lsn::new(3), &b"again"[..]));
}

/// If appends changed the length of the file, each sync of the log would commit the journal of the
/// file system.
#[test]
fn appends_overwrite_zeros_and_keep_the_file_length() {
    let directory = tempfile::tempdir().unwrap();
    let path = segment_path(directory.path(), Lsn::new(1));
    let length = || std::fs::metadata(&path).unwrap().len();
    let mut log = open(directory.path()).unwrap().log;
    let (mut lsn, mut lengths) = (0, std::collections::BTreeSet::new());
    for _ in 0..ZEROS_BYTES / 1000 * 2 {
        lsn += 1;
        log.append(EPOCH, Lsn::new(lsn), Lsn::new(lsn - 1), &[7; 960]).unwrap();
        assert!(length() > log.offset, "zeros follow record {lsn}");
        lengths.insert(length());
    }
    assert_eq!(lengths.len(), 2);
    let recovered = open(directory.path()).unwrap();
    assert_eq!((recovered.records.len() as u64, recovered.truncated_bytes), (lsn, 0));
    assert_eq!(length(), recovered.log.offset, "the start removes the zeros");
}

#[test]
fn torn_record_before_zeros_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 3, 100);
    let path = segment_path(directory.path(), Lsn::new(1));
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 90], 330).unwrap();
    let mut recovered = open(directory.path()).unwrap();
    assert_eq!((recovered.records.len(), recovered.truncated_bytes), (2, 50));
    recovered.log.append(EPOCH, Lsn::new(3), Lsn::new(2), b"again").unwrap();
    assert_eq!(open(directory.path()).unwrap().records[2].payload, b"again");
}

#[test]
fn segment_of_an_older_epoch_is_reported_as_damage() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 5, SEGMENT_BYTES as usize / 4);
    let path = segment_path(directory.path(), Lsn::new(5));
    let (epoch, lsn) = (Epoch::default(), Lsn::new(5));
    let older = encode_record(OWNER, epoch, lsn, Lsn::new(4), b"older").unwrap();
    std::fs::write(&path, older).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Corrupt);
    assert!(error.context().contains("epoch"), "{error}");
}

#[test]
fn record_longer_than_a_reader_accepts_is_not_appended() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path()).unwrap().log;
    let payload = vec![1; skep_format::log::MAX_PAYLOAD_BYTES + 1];
    let error = log.append(EPOCH, Lsn::new(1), Lsn::new(0), &payload).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TooLarge);
    log.append(EPOCH, Lsn::new(1), Lsn::new(0), b"small").unwrap();
    let records = open(directory.path()).unwrap().records;
    assert_eq!((records.len(), records[0].payload.as_slice()), (1, &b"small"[..]));
}

#[test]
fn log_continues_in_a_new_segment_and_trims_old_segments() {
    let directory = tempfile::tempdir().unwrap();
    // Four records of this length fill a segment.
    fill(directory.path(), 20, SEGMENT_BYTES as usize / 4);
    let mut recovered = open(directory.path()).unwrap();
    recovered.log.check_invariants();
    assert_eq!((recovered.records.len(), recovered.log.segments.len()), (20, 5));
    recovered.log.trim(Lsn::new(11)).unwrap();
    let recovered = open(directory.path()).unwrap();
    assert_eq!(recovered.records.first().map(|it| it.lsn), Some(Lsn::new(9)));
}

fn first_record(path: &Path, next: u64) -> Option<u64> {
    let recovered = Log::open(path, OWNER, Lsn::new(next)).unwrap();
    recovered.records.first().map(|it| it.lsn.raw())
}

#[test]
fn open_of_the_log_reads_only_segments_with_needed_records() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 20, SEGMENT_BYTES as usize / 4);
    for (next, first) in [(1, 1), (9, 1), (10, 5), (21, 13)] {
        assert_eq!(
            first_record(directory.path(), next),
            Some(first),
            "the records from {next} on are needed"
        );
    }
    let recovered = Log::open(directory.path(), OWNER, Lsn::new(21)).unwrap();
    assert_eq!(recovered.log.segments.len(), 5, "the other segments stay");
}

#[test]
fn error_for_damage_in_an_earlier_segment_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 5, SEGMENT_BYTES as usize / 4);
    let path = segment_path(directory.path(), Lsn::new(1));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = open(directory.path()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Corrupt);
    assert!(error.context().contains("0000000000000001.log"), "{error}");
}

/// A small file system, which is unmounted when this value is dropped. A test that does not run as
/// root prints a line and passes.
struct Disk(tempfile::TempDir);

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let ended = std::process::Command::new(program).args(arguments).output();
    ended.is_ok_and(|output| output.status.success())
}

impl Drop for Disk {
    fn drop(&mut self) {
        succeeds("umount", &["-l", self.0.path().to_str().unwrap()]);
    }
}

#[test]
fn log_refuses_appends_only_after_its_reserved_space_is_used() {
    let disk = Disk(tempfile::tempdir().unwrap());
    let (root, payload) = (disk.0.path(), vec![7; 1 << 20]);
    if !may_mount() {
        return;
    }
    let arguments = ["-t", "tmpfs", "-o", "size=90m", "log", root.to_str().unwrap()];
    assert!(succeeds("mount", &arguments), "cannot mount a tmpfs");
    let directory = root.join("log");
    let mut log = open(&directory).unwrap().log;
    let mut written = 0;
    let mut append = |log: &mut Log| {
        log.append(EPOCH, Lsn::new(written + 1), Lsn::new(written), &payload)?;
        written += 1;
        Ok::<u64, Error>(written)
    };
    while append(&mut log).unwrap() < 20 {}
    let mut stranger = std::fs::File::create(root.join("stranger")).unwrap();
    while std::io::Write::write_all(&mut stranger, &[1; 4096]).is_ok() {}
    let error = loop {
        if let Err(error) = append(&mut log) {
            break error;
        }
    };
    assert_eq!(error.code(), ErrorCode::NoSpace, "{error}");
    assert!(error.context().contains("0000000000000001.log"), "{error}");
    let recovered = open(&directory).unwrap();
    let count = recovered.records.len() as u64;
    assert!(count >= 20 + AHEAD_BYTES / 2 / (1 << 20), "only {count} records fit");
    assert_eq!((recovered.truncated_bytes, recovered.log.segments.len()), (0, 1));
    drop(stranger);
    std::fs::remove_file(root.join("stranger")).unwrap();
    assert_eq!(append(&mut log).unwrap(), count + 1, "a failed append changes nothing");
    append(&mut log).unwrap();
    assert_eq!(log.segments.len(), 2, "the next segment is begun when it has space");
    assert_eq!(open(&directory).unwrap().records.len() as u64, count + 2);
}

/// docs/semantics.md 3.1.
#[test]
fn records_of_a_failed_sync_reach_the_device_at_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let Some(thin) = ThinDisk::new(directory.path(), 200) else { return };
    let path = thin.path().join("log");
    let mut log = open(&path).unwrap().log;
    log.append(EPOCH, Lsn::new(1), Lsn::default(), b"synced").unwrap();
    log.sync().unwrap();
    thin.resize(24);
    for lsn in 2..=30 {
        log.append(EPOCH, Lsn::new(lsn), Lsn::new(1), &vec![lsn as u8; 1 << 20]).unwrap();
    }
    assert!(log.sync().is_err(), "the device has no space for the records");
    drop(log);
    // The log cannot be opened while the device has no space for its records.
    let refused = open(&path).unwrap_err();
    assert!(refused.context().contains("unsynced end of log"), "{refused}");
    thin.resize(200);
    assert_eq!(open(&path).unwrap().records.len(), 30);
    ThinDisk::drop_page_cache();
    let records = open(&path).unwrap().records;
    let is_whole = |record: &Record| {
        let lsn = record.lsn.raw();
        lsn == 1 || record.payload == vec![lsn as u8; 1 << 20]
    };
    assert_eq!((records.len(), records.iter().all(is_whole)), (30, true));
}

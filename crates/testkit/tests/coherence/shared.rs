//! Files that both mounts have open while at least one mount writes. A read must return the bytes
//! of all completed writes.

use crate::Mounts;
use rustix::fs::OFlags;
use skep_testkit::files;
use skep_testkit::program::run_in;
use skep_testkit::suite::Case;
use skep_testkit::{Random, wait_for};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) const CASES: &[Case<Mounts>] = skep_testkit::cases![shared:
    next_read_returns_the_bytes_of_each_write, outdated_cached_pages_are_never_read_again,
    concurrent_appends_of_both_mounts_are_not_mixed,
    concurrent_appends_of_one_mebibyte_are_not_mixed,
    concurrent_direct_appends_of_both_mounts_lose_no_record,
    next_read_ends_at_the_size_that_a_truncation_set, write_after_a_truncation_extends_the_file,
    truncated_bytes_of_concurrent_writes_never_reappear,
    reads_of_a_shared_file_do_not_change_its_times, shared_files_can_be_mapped,
    reads_are_correct_after_a_file_is_no_longer_shared,
];

fn open(path: &Path) -> File {
    files::open_with(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

/// Returns all bytes of an open file.
fn all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; files::metadata_of(file).len() as usize];
    files::read_exact_at(file, &mut bytes, 0);
    bytes
}

/// Writes random bytes to a random range of the file through the handle `by`, and to the same range
/// of `model`.
fn write_some(random: &mut Random, by: &File, model: &mut Vec<u8>) {
    let offset = random.below(model.len() + 5000);
    let most = random.one_of(&[100, 5000, 300_000]);
    let len = 1 + random.below(most);
    let bytes = random.bytes(len);
    files::write_all_at(by, &bytes, offset as u64);
    model.resize(model.len().max(offset + len), 0);
    model[offset..offset + len].copy_from_slice(&bytes);
}

/// docs/semantics.md 2.3, 2.7 and 2.9. The writing mount still has a cached size that is older than
/// the truncation by the other mount. Half of the files are larger than the inline bytes.
fn write_after_a_truncation_extends_the_file(mounts: &Mounts) {
    for round in 0..20_u64 {
        let name = format!("file-{round}");
        let (here, there) = match round % 2 {
            0 => (mounts.one.join(&name), mounts.other.join(&name)),
            _ => (mounts.other.join(&name), mounts.one.join(&name)),
        };
        let (truncating, writing) = (open(&here), open(&there));
        let len = if round % 4 < 2 { 10_000 } else { 30_000 };
        files::write_all_at(&writing, &vec![1; len], 0);
        files::set_len(&truncating, 0);
        files::write_all_at(&writing, b"acknowledged", 100);
        // Do not call `stat`, because `stat` would make the writing mount report the size.
        let mut found = [9; 1000];
        for (mount, reader) in [("truncating", &truncating), ("writing", &writing)] {
            let read = files::read_at(reader, &mut found, 0);
            assert_eq!(read, 112, "round {round}: bytes that the {mount} mount reads");
            assert!(found[..100].iter().all(|byte| *byte == 0), "round {round}");
            assert_eq!(&found[100..112], b"acknowledged", "round {round}");
        }
        let mut log = files::open_with(OpenOptions::new().append(true), &here);
        log.write_all(b", appended").expect("appended");
        let end = &files::read(&there)[100..];
        assert_eq!(end, b"acknowledged, appended", "round {round}");
    }
}

/// docs/semantics.md 2.7. A truncation during a write removes either no byte or all bytes of the
/// write. Removed bytes never reappear.
fn truncated_bytes_of_concurrent_writes_never_reappear(mounts: &Mounts) {
    const PIECE: usize = 100_000;
    let (here, there) = (open(&mounts.one.join("file")), open(&mounts.other.join("file")));
    for round in 1..=120_u8 {
        files::set_len(&here, 0);
        files::write_all_at(&there, &[255; 3 * PIECE], 0);
        std::thread::scope(|scope| {
            scope.spawn(|| files::set_len(&here, 0));
            scope.spawn(|| files::write_all_at(&there, &[round; PIECE], PIECE as u64));
        });
        let len = files::metadata_of(&here).len() as usize;
        assert!(len == 0 || len == 2 * PIECE, "round {round}: {len} bytes");
        files::set_len(&here, 4 * PIECE as u64);
        let found = all(&there);
        let is_written = len > 0;
        for (at, byte) in found.iter().enumerate() {
            let expected = match at / PIECE {
                1 if is_written => round,
                _ => 0,
            };
            assert_eq!(*byte, expected, "round {round}: byte {at} of {len}");
        }
    }
}

/// docs/semantics.md 2.3 and 2.4.
fn next_read_returns_the_bytes_of_each_write(mounts: &Mounts) {
    let mut random = Random::new(Random::seed_of_run());
    let handles = [open(&mounts.one.join("file")), open(&mounts.other.join("file"))];
    let mut model = vec![0];
    files::write_all_at(&handles[0], &model, 0);
    for round in 0..150 {
        write_some(&mut random, &handles[round % 2], &mut model);
        let (reader, len) = (&handles[(round + 1) % 2], model.len() as u64);
        assert_eq!(files::metadata_of(reader).len(), len, "round {round}: the size");
        assert!(all(reader) == model, "round {round}: the contents");
        let mut beyond = [0; 9];
        assert_eq!(files::read_at(reader, &mut beyond, len), 0, "the end");
        // Read without an earlier call of `stat`.
        write_some(&mut random, &handles[round % 2], &mut model);
        let mut tail = vec![0; 400_000];
        let start = model.len().saturating_sub(1000);
        let read = files::read_at(reader, &mut tail, start as u64);
        assert!(tail[..read] == model[start..], "round {round}: the last {read} bytes of the file");
    }
}

/// docs/semantics.md 2.3. The reader opens the file earlier than the writer, so the kernel caches
/// the pages that the reader reads.
fn outdated_cached_pages_are_never_read_again(mounts: &Mounts) {
    let mut random = Random::new(Random::seed_of_run());
    for (round, len) in [4096, 100_000, 1_500_000].into_iter().enumerate() {
        let (here, there) = (format!("file-{round}"), mounts.other.join(format!("file-{round}")));
        let mut model = random.bytes(len);
        files::write(mounts.one.join(&here), &model);
        let reader = files::open(mounts.one.join(&here));
        assert!(all(&reader) == model);
        let writer = open(&there);
        for change in 0..60 {
            // Some of these writes change neither the size nor the times that metadata stores.
            let at = random.below(model.len());
            let len = (model.len() - at).min(1 + random.below(9000));
            let bytes = random.bytes(len);
            files::write_all_at(&writer, &bytes, at as u64);
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            if change % 10 == 9 {
                write_some(&mut random, &writer, &mut model);
            }
            assert!(all(&reader) == model, "file of {len} bytes, change {change}");
        }
    }
}

const RECORDS: usize = 150;

/// Appends numbered lines of different lengths.
fn append(path: &Path, name: &str) {
    let mut file = files::open_with(OpenOptions::new().read(true).append(true), path);
    for record in 0..RECORDS {
        let filler = "x".repeat(record * 37 % 9000);
        let line = format!("{name} {record} {filler}\n");
        // Call `write` only once, because two calls would append at two different offsets.
        assert_eq!(file.write(line.as_bytes()).expect("written"), line.len());
    }
}

/// docs/semantics.md 2.9.
fn concurrent_appends_of_both_mounts_are_not_mixed(mounts: &Mounts) {
    files::write(mounts.one.join("log"), "");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..6)
            .map(|number| {
                let place = if number % 2 == 0 { &mounts.one } else { &mounts.other };
                scope.spawn(move || append(&place.join("log"), &format!("writer-{number}")))
            })
            .collect();
        let reader = scope.spawn(|| {
            // No read may return a hole or an incomplete line. (The reader must open the file after
            // the writers have opened it, because of the exception in docs/semantics.md 2.3.)
            wait_for("something is written", Duration::from_secs(30), || {
                let found = files::metadata(mounts.other.join("log")).len() > 50_000;
                found.then_some(())
            });
            let file = files::open(mounts.other.join("log"));
            loop {
                let is_last = is_done.load(Ordering::Relaxed);
                let bytes = all(&file);
                assert!(!bytes.contains(&0), "a file of {} bytes has zeros", bytes.len());
                let end = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(80)..]);
                assert!(bytes.is_empty() || end.ends_with('\n'), "{} bytes: {end}", bytes.len());
                if is_last {
                    return;
                }
            }
        });
        let results: Vec<_> =
            writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
        reader.join().expect("the reader");
    });
    let text = files::read_to_string(mounts.other.join("log"));
    let mut next = [0; 6];
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let name = words.next().expect("a name").strip_prefix("writer-").expect("a writer");
        let writer: usize = name.parse().expect("a number");
        let record = next[writer];
        assert_eq!(
            words.next().expect("a number"),
            record.to_string(),
            "the records of a writer are in order"
        );
        assert_eq!(words.next().expect("filler").len(), record * 37 % 9000);
        next[writer] += 1;
    }
    assert_eq!(next, [RECORDS; 6], "the file has each record once");
}

/// docs/semantics.md 2.9, with `O_DIRECT`.
fn concurrent_direct_appends_of_both_mounts_lose_no_record(mounts: &Mounts) {
    const RECORD: usize = 4096;
    const COUNT: u8 = 40;
    files::write(mounts.one.join("log"), "");
    std::thread::scope(|scope| {
        for writer in 0..2_u8 {
            let place = if writer == 0 { &mounts.one } else { &mounts.other };
            let mut options = OpenOptions::new();
            options.append(true).custom_flags(OFlags::DIRECT.bits() as i32);
            let mut log = files::open_with(&options, place.join("log"));
            scope.spawn(move || {
                for record in 0..COUNT {
                    let (bytes, start) = with_pages(1 + writer * COUNT + record, RECORD);
                    let bytes = &bytes[start..start + RECORD];
                    assert_eq!(log.write(bytes).expect("written"), RECORD);
                }
            });
        }
    });
    for place in [&mounts.one, &mounts.other] {
        let bytes = files::read(place.join("log"));
        assert_eq!(
            bytes.len(),
            2 * usize::from(COUNT) * RECORD,
            "the file has the length of all records"
        );
        let mut records: Vec<_> = bytes.chunks(RECORD).map(|record| record[0]).collect();
        records.sort_unstable();
        assert!(records.into_iter().eq(1..=2 * COUNT), "the file has each record once");
    }
}

/// Returns a buffer, and the offset of the first page boundary in the buffer. The kernel passes at
/// most 256 pages of a program's memory in one request, and an unaligned mebibyte occupies parts of
/// 257 pages.
pub(crate) fn with_pages(byte: u8, len: usize) -> (Vec<u8>, usize) {
    const PAGE: usize = 4096;
    let bytes = vec![byte; len + 2 * PAGE];
    let start = bytes.as_ptr().align_offset(PAGE);
    (bytes, start)
}

const LONG_RECORDS: u8 = 12;

/// Appends long records from both mounts at the same time. Each record begins `behind` bytes behind
/// a page boundary in memory.
fn append_long(mounts: &Mounts, name: &str, len: usize, behind: usize) {
    files::write(mounts.one.join(name), "");
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let place = if writer % 2 == 0 { &mounts.one } else { &mounts.other };
            let log = OpenOptions::new().append(true).open(place.join(name));
            let mut log = log.expect("opened");
            scope.spawn(move || {
                for record in 0..LONG_RECORDS {
                    let (bytes, start) = with_pages(1 + writer * LONG_RECORDS + record, len);
                    let bytes = &bytes[start + behind..start + behind + len];
                    assert_eq!(log.write(bytes).expect("written"), len);
                }
            });
        }
    });
}

/// docs/semantics.md 2.9, for the longest appends whose bytes are guaranteed to be consecutive.
fn concurrent_appends_of_one_mebibyte_are_not_mixed(mounts: &Mounts) {
    for (name, len, behind) in [("pages", 1 << 20, 0), ("elsewhere", (1 << 20) - 4096, 7)] {
        append_long(mounts, name, len, behind);
        for place in [&mounts.one, &mounts.other] {
            let bytes = files::read(place.join(name));
            assert_eq!(bytes.len(), 4 * usize::from(LONG_RECORDS) * len);
            let mut next = [0; 4];
            for record in bytes.chunks(len) {
                let number = record[0].checked_sub(1).expect("no zeros");
                let is_whole = record.iter().all(|byte| *byte == record[0]);
                assert!(is_whole, "{name}: a record is cut into pieces");
                let writer = usize::from(number / LONG_RECORDS);
                assert_eq!(
                    number % LONG_RECORDS,
                    next[writer],
                    "{name}: the records of a writer are in order"
                );
                next[writer] += 1;
            }
        }
    }
}

/// docs/semantics.md 2.7.
fn next_read_ends_at_the_size_that_a_truncation_set(mounts: &Mounts) {
    let (here, there) = (open(&mounts.one.join("file")), open(&mounts.other.join("file")));
    for round in 0..30_u8 {
        files::write_all_at(&here, &[round; 50_000], 0);
        assert_eq!(all(&there), [round; 50_000]);
        files::set_len(&there, 10);
        assert_eq!(all(&here), [round; 10]);
        files::set_len(&here, 20_000);
        let mut expected = vec![round; 10];
        expected.resize(20_000, 0);
        assert!(all(&there) == expected, "round {round}");
    }
}

/// docs/semantics.md 1.9. When a program reads a shared file, the mount drops the kernel's cached
/// pages. This drop must not change the times of the file.
fn reads_of_a_shared_file_do_not_change_its_times(mounts: &Mounts) {
    for (name, len) in [("small", 9000), ("large", 90_000)] {
        files::write(mounts.one.join(name), vec![1; len]);
        let reader = files::open(mounts.one.join(name));
        let writer = open(&mounts.other.join(name));
        let times = || {
            let found = [reader.metadata(), fs::metadata(mounts.one.join(name)), writer.metadata()];
            found.map(|it| it.map(|it| (it.mtime(), it.mtime_nsec())).expect("there"))
        };
        let first = times();
        assert!(first.iter().all(|it| *it == first[0]), "{name}: {first:?}");
        for _ in 0..20 {
            assert!(all(&reader) == vec![1; len], "{name}");
            assert_eq!(times(), first, "{name}");
        }
    }
}

/// docs/semantics.md 2.8.
fn shared_files_can_be_mapped(mounts: &Mounts) {
    const PROGRAM: &str = "import mmap, sys\n\
        with open(sys.argv[1], 'r+b') as file:\n\
        \x20   mapped = mmap.mmap(file.fileno(), 0)\n\
        \x20   assert mapped[:] == bytes([1]) * int(sys.argv[2])\n\
        \x20   mapped[5000] = 7\n\
        \x20   mapped.flush()\n";
    for (name, len) in [("small", 8192), ("large", 81_920)] {
        let here = open(&mounts.one.join(name));
        files::write_all_at(&here, &vec![1; len], 0);
        run_in(&mounts.other, "python3", ["-c", PROGRAM, name, &len.to_string()]);
        assert_eq!(all(&here)[5000], 7, "{name}");
    }
}

/// When a file is not shared any more, the kernel caches the file's pages after the next open. The
/// test cannot observe the cache, so the test checks only that the contents are correct.
/// docs/semantics.md 2.2.
fn reads_are_correct_after_a_file_is_no_longer_shared(mounts: &Mounts) {
    let mut random = Random::new(Random::seed_of_run());
    let (here, there) = (mounts.one.join("file"), mounts.other.join("file"));
    let mut model = vec![5; 10_000];
    files::write(&here, &model);
    for _ in 0..40 {
        let (one, other) = (open(&here), open(&there));
        write_some(&mut random, &one, &mut model);
        write_some(&mut random, &other, &mut model);
        drop((one, other));
        assert!(files::read(&here) == model);
        assert!(files::read(&there) == model);
    }
}

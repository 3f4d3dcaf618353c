//! Reading and writing, at all offsets and sizes.

use crate::{Test, ok};
use skep_testkit::Random;
use skep_testkit::files;
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

pub(crate) const CASES: &[Test] = skep_testkit::cases![read_write:
    written_bytes_of_any_length_are_read_back,
    hole_of_a_file_reads_as_zeros,
    holes_allocate_no_space,
    reads_stop_at_the_end_of_the_file,
    appended_bytes_follow_the_old_end_of_the_file,
    concurrent_appends_do_not_mix_records,
    writes_to_random_ranges_match_a_model,
    concurrent_writes_of_threads_to_one_file_are_all_kept,
    write_on_one_handle_is_read_on_another,
    vectored_writes_and_reads_keep_their_order,
    reopened_file_has_the_written_bytes,
    file_written_byte_by_byte_has_all_bytes,
    cp_copies_all_bytes_of_a_file,
];

fn open(path: &Path) -> File {
    files::open_with(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

fn written_bytes_of_any_length_are_read_back(root: &Path) {
    let mut random = Random::new(1);
    for len in
        [1, 4095, 4096, 4097, 16_383, 16_384, 16_385, 65_536, 524_287, 524_288, 524_289, 9_000_001]
    {
        let bytes = random.bytes(len);
        let path = root.join(format!("file-{len}"));
        files::write(&path, &bytes);
        assert_eq!(files::metadata(&path).len(), len as u64);
        assert!(files::read(&path) == bytes, "{len}");
    }
}

fn hole_of_a_file_reads_as_zeros(root: &Path) {
    let file = open(&root.join("file"));
    files::write_all_at(&file, b"end", 10_000_000);
    let mut bytes = vec![1; 10_000_003];
    files::read_exact_at(&file, &mut bytes, 0);
    assert!(bytes[..10_000_000].iter().all(|byte| *byte == 0));
    assert_eq!(&bytes[10_000_000..], b"end");
}

/// A file takes space for its written data, and a little space for data of the file system itself.
/// docs/semantics.md 1.13.
fn holes_allocate_no_space(root: &Path) {
    const LEN: u64 = 100 << 20;
    let file = open(&root.join("file"));
    let takes = |least: u64| {
        let bytes = files::metadata_of(&file).blocks() * 512;
        assert!((least..least + (256 << 10)).contains(&bytes), "{least}: {bytes}");
    };
    files::set_len(&file, LEN);
    takes(0);
    files::write_all_at(&file, &[1; 65_536], LEN / 2);
    takes(65_536);
    files::write_all_at(&file, &[2; 65_536], LEN - 65_536);
    takes(2 * 65_536);
    files::set_len(&file, LEN / 2);
    takes(0);
    files::set_len(&file, 0);
    assert_eq!(files::metadata_of(&file).blocks(), 0);
    files::write_all_at(&file, &[3; 65_536], 0);
    takes(65_536);
}

fn reads_stop_at_the_end_of_the_file(root: &Path) {
    let file = open(&root.join("file"));
    files::write_all_at(&file, &[3; 5000], 0);
    let mut bytes = [0; 100];
    assert_eq!(files::read_at(&file, &mut bytes, 4950), 50);
    assert_eq!(files::read_at(&file, &mut bytes, 5000), 0);
    assert_eq!(files::read_at(&file, &mut bytes, 1 << 40), 0);
    assert_eq!(ok(file.write_at(&[], 100_000)), 0);
    assert_eq!(files::metadata_of(&file).len(), 5000);
}

fn appended_bytes_follow_the_old_end_of_the_file(root: &Path) {
    let path = root.join("file");
    let mut expected = Vec::new();
    let mut random = Random::new(2);
    for _ in 0..40 {
        let file = files::open_with(OpenOptions::new().append(true).create(true), &path);
        let bytes = random.bytes(random.clone().below(70_000));
        files::write_all(&file, &bytes);
        expected.extend(bytes);
    }
    assert!(files::read(&path) == expected);
}

/// Several threads append records on one mount. No record may be lost or mixed with another record.
fn concurrent_appends_do_not_mix_records(root: &Path) {
    let path = root.join("file");
    files::create(&path);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let file = files::open_with(OpenOptions::new().append(true), path);
                for _ in 0..100 {
                    files::write_all(&file, &[b'a' + thread; 100]);
                }
            });
        }
    });
    let bytes = files::read(&path);
    assert_eq!(bytes.len(), 40_000);
    for record in bytes.chunks_exact(100) {
        assert!(record.iter().all(|byte| *byte == record[0]));
    }
    for thread in 0..4_u8 {
        let count = bytes.iter().filter(|byte| **byte == b'a' + thread).count();
        assert_eq!(count, 10_000);
    }
}

fn writes_to_random_ranges_match_a_model(root: &Path) {
    const LEN: usize = 6 << 20;
    let path = root.join("file");
    let mut model = vec![0; LEN];
    let mut random = Random::new(3);
    let file = open(&path);
    files::set_len(&file, LEN as u64);
    for round in 0..300 {
        let len = [1, 7, 512, 4096, 100_000, 1_000_000][random.below(6)];
        let from = random.below(LEN - len);
        if random.below(2) == 0 {
            let bytes = random.bytes(len);
            files::write_all_at(&file, &bytes, from as u64);
            model[from..from + len].copy_from_slice(&bytes);
        } else {
            let mut bytes = vec![0; len];
            files::read_exact_at(&file, &mut bytes, from as u64);
            assert!(bytes == model[from..from + len], "round {round}: {from} + {len}");
        }
    }
    drop(file);
    assert!(files::read(&path) == model);
}

fn concurrent_writes_of_threads_to_one_file_are_all_kept(root: &Path) {
    const PART: usize = 1_300_001;
    let path = root.join("file");
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let path = &path;
            scope.spawn(move || {
                let file = open(path);
                let bytes = Random::new(thread as u64).bytes(PART);
                for (index, piece) in bytes.chunks(77_777).enumerate() {
                    files::write_all_at(&file, piece, (thread * PART + index * 77_777) as u64);
                }
            });
        }
    });
    let bytes = files::read(&path);
    assert_eq!(bytes.len(), 8 * PART);
    for (thread, part) in bytes.chunks_exact(PART).enumerate() {
        assert!(part == Random::new(thread as u64).bytes(PART), "part {thread}");
    }
}

/// docs/semantics.md 2.1.
fn write_on_one_handle_is_read_on_another(root: &Path) {
    let path = root.join("file");
    let (writer, reader) = (open(&path), open(&path));
    for round in 0..200_u64 {
        let bytes = round.to_le_bytes();
        files::write_all_at(&writer, &bytes, round * 4099);
        let mut found = [0; 8];
        files::read_exact_at(&reader, &mut found, round * 4099);
        assert_eq!(found, bytes);
        assert_eq!(files::metadata_of(&reader).len(), round * 4099 + 8);
    }
}

fn vectored_writes_and_reads_keep_their_order(root: &Path) {
    let path = root.join("file");
    let parts: Vec<Vec<u8>> = (0..200).map(|index| vec![index as u8; index * 13]).collect();
    let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let total: usize = parts.iter().map(Vec::len).sum();
    let written = ok(files::create(&path).write_vectored(&slices));
    assert_eq!(written, total);
    assert!(files::read(&path) == parts.concat());
}

fn reopened_file_has_the_written_bytes(root: &Path) {
    // In Skep, the bytes of the shorter file are in metadata.
    for (name, shortest) in [("short", 10_000), ("long", 40_000)] {
        let path = root.join(name);
        for round in 0..50_u8 {
            let len = shortest + usize::from(round);
            files::write(&path, vec![round; len]);
            assert_eq!(files::metadata(&path).len(), len as u64);
            assert!(files::read(&path) == vec![round; len], "{name}, round {round}");
        }
    }
}

fn file_written_byte_by_byte_has_all_bytes(root: &Path) {
    // In Skep, the bytes of the first file are in metadata.
    for (name, len) in [("short", 0), ("long", 40_000)] {
        let path = root.join(name);
        let file = files::create(&path);
        let mut expected = vec![7; len];
        files::write_all(&file, &expected);
        for index in 0..2000_u32 {
            files::write_all(&file, &[index as u8]);
            expected.push(index as u8);
        }
        drop(file);
        assert!(files::read(&path) == expected, "{name}");
    }
}

fn cp_copies_all_bytes_of_a_file(root: &Path) {
    let bytes = Random::new(5).bytes(2_345_678);
    files::write(root.join("from"), &bytes);
    // The program `cp` uses copy_file_range or sendfile.
    assert_eq!(files::copy(root.join("from"), root.join("to")), 2_345_678);
    assert!(files::read(root.join("to")) == bytes);
}

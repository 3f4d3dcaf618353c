//! Two mounts change files with inline bytes. The tests compare the contents with the expected
//! bytes.

use super::*;
use rustix::fs::{OFlags, SeekFrom, copy_file_range, seek};
use skep_testkit::program::run_in;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// docs/semantics.md 2.1, 2.2, 2.6, 2.7, 2.11, 2.12 and 2.13, for ranges that are partly in
/// metadata and partly in storage.
#[test]
fn changes_beyond_the_inline_bytes_appear_on_both_mounts() {
    let (cluster, second) = mounts();
    for (here, there) in [(cluster.path(), second.path()), (second.path(), cluster.path())] {
        let name = format!("file-{}", here.display().to_string().len());
        let mut it = Checked { paths: [here.join(&name), there.join(&name)], expected: Vec::new() };
        let bytes = Random::new(5).bytes(200_000);
        let file = open(&it.paths[0]);
        it.write(&file, 100, &bytes[..50]);
        it.check("a write beyond the end of the file");
        it.write(&file, 0, &bytes[..3000]);
        it.write(&file, 4000, &bytes[..200]);
        it.check("a write across the end of the inline bytes");
        it.write(&file, 90_000, &bytes[..110_000]);
        it.resize(&file, 4097);
        it.check("a truncation beyond the inline bytes");
        it.resize(&file, 1000);
        it.resize(&file, 9000);
        it.check("a truncation within the inline bytes and an extension");
        it.write(&file, 0, &bytes[..9000]);
        let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
        let keep = FallocateFlags::KEEP_SIZE;
        it.clear(&file, 3000..6000, punch | keep);
        it.check("a hole across the end of the inline bytes");
        it.clear(&file, 500..600, zero);
        it.clear(&file, 8000..12_000, zero | keep);
        it.check("zeros");
        files::fallocate(&file, keep, 0, 100_000);
        it.check("space");
        files::fallocate(&file, FallocateFlags::empty(), 2000, 10_000);
        it.expected.resize(12_000, 0);
        it.check("an extension by fallocate");
        assert_eq!(seek(&file, SeekFrom::Data(10)).expect("data"), 10);
        assert!(seek(&file, SeekFrom::Hole(10)).expect("a hole") >= INLINE as u64);

        let mut appending = files::open_with(OpenOptions::new().append(true), &it.paths[0]);
        it.resize(&file, 4000);
        appending.write_all(&bytes[..300]).expect("appended");
        it.expected.extend_from_slice(&bytes[..300]);
        it.check("an append across the end of the inline bytes");

        // Python writes through the mapping, so that this test needs no unsafe code.
        let program = format!(
            "import mmap\n\
             with open('{name}', 'r+b') as file:\n\
             \x20   mapped = mmap.mmap(file.fileno(), 4300)\n\
             \x20   mapped[7] = 0xAA\n\
             \x20   mapped[4200] = 0xBB\n\
             \x20   mapped.flush()\n"
        );
        run_in(here, "python3", ["-c", &program]);
        (it.expected[7], it.expected[4200]) = (0xAA, 0xBB);
        it.check("writes to a mapped file");
        it.resize(&file, 0);
        it.check("a truncation to zero");
        it.write(&file, 0, &bytes[..20]);
        drop(file);

        // Copy within the file, and between two files. At least one of the files has inline bytes.
        let plain = here.join("plain");
        entry_json(&["create", "--pattern", "count=1"], &plain);
        files::write(&plain, &bytes[..20_000]);
        let (source, file) = (files::open(&plain), open(&it.paths[0]));
        let (mut from, mut to) = (5, 10);
        copy_all(&source, &mut from, &file, &mut to, 15_000);
        it.expected.resize(15_010, 0);
        it.expected[10..15_010].copy_from_slice(&bytes[5..15_005]);
        it.check("a copy from another file");
        let (mut from, mut to) = (0, 16_000);
        copy_all(&file, &mut from, &file, &mut to, 5000);
        it.expected.resize(21_000, 0);
        it.expected.copy_within(0..5000, 16_000);
        it.check("a copy within the file");
        it.resize(&file, 0);
        let (mut from, mut to) = (0, 0);
        copy_all(&source, &mut from, &file, &mut to, 100);
        it.expected = bytes[..100].to_vec();
        it.check("a small copy");
        drop((source, file));
        files::remove_file(&plain);
        beside_the_cache(&mut it);
        files::remove_file(&it.paths[0]);
    }
    let count = || cluster.chunk_files().len();
    wait_for("no chunk file is left", PATIENCE, || (count() == 0).then_some(()));
    end(cluster, second);
}

fn beside_the_cache(it: &mut Checked) {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let direct = files::open_with(&options, &it.paths[0]);
    let page = aligned(0x77);
    files::write_all_at(&direct, page.bytes(), 0);
    files::write_all_at(&direct, page.bytes(), 4096);
    it.expected = vec![0x77; 8192];
    it.check("direct writes");
    drop(direct);
}

fn copy_all(from: &File, at: &mut u64, to: &File, place: &mut u64, len: usize) {
    let mut left = len;
    while left > 0 {
        let copied = copy_file_range(from, Some(at), to, Some(place), left).expect("copied");
        assert!(copied > 0);
        left -= copied;
    }
}

/// Memory that is aligned to a page.
struct Page {
    memory: Vec<u8>,
    start: usize,
}

impl Page {
    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + 4096]
    }
}

fn aligned(byte: u8) -> Page {
    let memory = vec![byte; 8192];
    let start = memory.as_ptr().align_offset(4096);
    Page { memory, start }
}

/// Makes random changes near the end of a file's inline bytes. Each change happens on a random
/// mount, and closes the file before the next change opens this file.
#[test]
fn random_changes_from_two_mounts_match_a_plain_file() {
    let (cluster, second) = mounts();
    let seed = Random::seed_of_run();
    println!("SKEP_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    let mut it = Checked {
        paths: [cluster.path().join("file"), second.path().join("file")],
        expected: Vec::new(),
    };
    for round in 0..300 {
        let file = open(&it.paths[random.below(2)]);
        for _ in 0..1 + random.below(4) {
            let at = random.below(9000);
            let most = random.one_of(&[10, 700, 6000]);
            let len = 1 + random.below(most);
            match random.below(6) {
                0..3 => it.write(&file, at, &random.bytes(len)),
                3 => it.resize(&file, at),
                4 => {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    it.clear(&file, at..at + len, flags);
                }
                _ => files::sync_data(&file),
            }
        }
        drop(file);
        it.check(&format!("seed {seed}, round {round}"));
    }
    end(cluster, second);
}

/// docs/semantics.md 2.3 and 2.9, while both mounts have the file open.
#[test]
fn read_of_a_shared_inline_file_returns_the_last_write() {
    let (cluster, second) = mounts();
    let paths = [cluster.path().join("file"), second.path().join("file")];
    let files = paths.each_ref().map(|path| open(path));
    let mut random = Random::new(3);
    let mut expected = vec![0; 6000];
    files::write_all_at(&files[0], &expected, 0);
    for round in 0..200 {
        let (writer, reader) = (round % 2, (round + 1) % 2);
        let at = random.below(5000);
        let len = 1 + random.below(900);
        let bytes = random.bytes(len);
        files::write_all_at(&files[writer], &bytes, at as u64);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
        let mut found = vec![1; 6000];
        files::read_exact_at(&files[reader], &mut found, 0);
        assert!(found == expected, "round {round}");
    }
    drop(files);
    let append = |path: &Path| OpenOptions::new().append(true).create(true).open(path);
    let logs = paths.each_ref().map(|path| append(&path.with_file_name("log")).expect("opened"));
    let lines = std::thread::scope(|scope| {
        let threads: Vec<_> = logs
            .into_iter()
            .enumerate()
            .map(|(which, log)| {
                scope.spawn(move || {
                    for number in 0..100 {
                        let line = format!("{which} {number:03} {}\n", "x".repeat(40));
                        files::write_all(&log, line.as_bytes());
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("done"));
        files::read_to_string(paths[0].with_file_name("log"))
    });
    let mut lines: Vec<_> = lines.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 200);
    assert!(lines.iter().all(|line| line.len() == 46), "{lines:?}");
    end(cluster, second);
}

/// docs/semantics.md 2.1, 2.7 and 2.11. Command: skep entry info.
#[test]
fn repeated_syncs_move_inline_bytes_of_a_file_to_storage() {
    let (cluster, second) = mounts();
    let paths = [cluster.path().join("database"), second.path().join("database")];
    let mut it = Checked { paths, expected: Vec::new() };
    let bytes = Random::new(7).bytes(20_000);
    let file = open(&it.paths[0]);
    write_twice(&mut it, &file, &bytes);
    let reader = files::open(&it.paths[1]);
    for byte in 1..6 {
        commit(&mut it, &file, byte);
    }
    assert!(is_inline(&it.paths[0]), "another mount has the file open");
    it.check("syncs of a shared file");
    drop((reader, file));
    // The mounts report each close a moment after the program's call.
    wait_for("the inline bytes move to storage", PATIENCE, || {
        let file = open(&it.paths[0]);
        for byte in 6..10 {
            commit(&mut it, &file, byte);
        }
        (!is_inline(&it.paths[0])).then_some(())
    });
    it.check("the move");
    let info = entry_info(&it.paths[0]);
    let components = info.components();
    let starts: Vec<_> = components.iter().map(|component| component.start_byte()).collect();
    assert_eq!((starts, cluster.chunk_files().len()), (vec![0, 1 << 20], 1));
    let file = open(&it.paths[0]);
    it.write(&file, 0, &bytes[..3000]);
    it.resize(&file, 1000);
    it.resize(&file, 9000);
    it.check("a truncation below the former inline bytes and an extension");
    it.write(&file, 2000, &bytes[..5000]);
    it.clear(&file, 3000..6000, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
    it.check("a hole across the end of the former inline bytes");
    assert_eq!(seek(&file, SeekFrom::Data(2000)).expect("data"), 2000);
    drop(file);
    let other = open(&it.paths[1]);
    it.write(&other, 4000, &bytes[..200]);
    it.check("a write through the other mount");
    drop(other);
    files::remove_file(&it.paths[0]);
    let count = || cluster.chunk_files().len();
    wait_for("no chunk file is left", PATIENCE, || (count() == 0).then_some(()));
    end(cluster, second);
}

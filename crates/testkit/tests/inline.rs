//! Files whose first bytes (inline bytes) are stored in metadata. On every mount, these files must
//! behave like other files. The tests also check the number of their chunk files, their printed
//! patterns, and their contents after kills and power losses.

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, seek};
use rustix::process::Signal;
use serde_json::{Value, json};
use skep_testkit::files::{self, OrFail};
use skep_testkit::power::Disk;
use skep_testkit::program::{Finished, finish, run_in};
use skep_testkit::view::{EntryInfo, Typed};
use skep_testkit::{
    Cluster, Mounted, PATIENCE, Random, Scratch, Shape, Transport, cluster, wait_for,
};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const PATTERN: &str = "inline/from=4KiB,count=1,chunk-size=64KiB/from=1MiB,count=all";
const INLINE: usize = 4096;
const DISK_BYTES: u64 = 4 << 30;

fn entry(arguments: &[&str], path: &Path) -> Finished {
    let mut command = Command::new(cluster::program());
    command.arg("entry").args(arguments).args(["--output", "json"]).arg(path);
    finish(&mut command, PATIENCE)
}

fn entry_json(arguments: &[&str], path: &Path) -> Value {
    serde_json::from_str(&entry(arguments, path).expect_success()).expect("JSON")
}

fn entry_info(path: &Path) -> EntryInfo {
    EntryInfo(entry_json(&["info"], path))
}

fn open(path: &Path) -> File {
    files::open_with(OpenOptions::new().read(true).write(true).create(true).truncate(false), path)
}

/// A file, its paths on two mounts, and its expected contents.
struct Checked {
    paths: [PathBuf; 2],
    expected: Vec<u8>,
}

impl Checked {
    #[track_caller]
    fn check(&self, what: &str) {
        for path in &self.paths {
            // Open the file, because the other mount may show attributes that are up to a second
            // old. An open gets the current attributes.
            let found = files::read(path);
            let at = found.iter().zip(&self.expected).position(|(a, b)| a != b);
            let (len, right) = (found.len(), self.expected.len());
            assert!(
                found == self.expected,
                "{what}: {} has {len} bytes, right are {right}; byte {at:?} differs",
                path.display()
            );
        }
    }

    fn write(&mut self, file: &File, offset: usize, bytes: &[u8]) {
        files::write_all_at(file, bytes, offset as u64);
        let end = offset + bytes.len();
        self.expected.resize(self.expected.len().max(end), 0);
        self.expected[offset..end].copy_from_slice(bytes);
    }

    fn resize(&mut self, file: &File, len: usize) {
        files::set_len(file, len as u64);
        self.expected.resize(len, 0);
    }

    fn clear(&mut self, file: &File, range: std::ops::Range<usize>, flags: FallocateFlags) {
        let len = (range.end - range.start) as u64;
        files::fallocate(file, flags, range.start as u64, len);
        let end = range.end.min(self.expected.len());
        self.expected[range.start.min(end)..end].fill(0);
    }
}

/// Returns a cluster whose files have inline bytes, and a second mount of the cluster, with the
/// transport of `/dev/fuse`.
fn mounts() -> (Cluster, Mounted) {
    let mut cluster = Cluster::start(Shape::default());
    cluster.hand_down(cluster.path(), PATTERN);
    let second = cluster.mount(Transport::Device);
    (cluster, second)
}

fn end(cluster: Cluster, second: Mounted) {
    second.unmount();
    cluster.stop();
}

/// Commands: skep entry set, skep entry info, skep entry map.
#[test]
fn small_files_are_stored_inline_without_a_chunk_file() {
    let (cluster, second) = mounts();
    let count = || cluster.chunk_files().len();
    for number in 0..20 {
        let path = cluster.path().join(format!("file-{number}"));
        files::write(&path, vec![7; number * 200]);
        assert_eq!(files::read(second.path().join(format!("file-{number}"))).len(), number * 200);
    }
    assert_eq!(count(), 0);
    let path = cluster.path().join("file-19");
    assert_eq!(files::metadata(&path).blocks(), 8);
    let info = entry_info(&path);
    let components = info.components();
    assert_eq!((components[0].redundancy(), components[0].targets_wanted()), ("inline", 0));
    assert_eq!(components[1].start_byte(), INLINE as u64);
    let text =
        finish(Command::new(cluster::program()).args(["entry", "info"]).arg(&path), PATIENCE)
            .expect_success();
    assert!(text.contains("+ Type: inline") && text.contains("4.0KiB"), "{text}");
    let map = entry_json(&["map", "--offset", "0", "--length", "8KiB"], &path);
    let pieces = map["pieces"].list();
    assert_eq!(pieces.len(), 2);
    let metadata = info.0["metadata"]["target"].clone();
    assert_eq!((&pieces[0]["length"], &pieces[0]["target"]), (&json!(INLINE), &metadata));
    assert_ne!(pieces[1]["target"], metadata);
    // The owner of a file can also set the pattern of the file by an extended attribute.
    let other = cluster.path().join("other");
    files::write(&other, "");
    let wanted = b"inline/from=8KiB,count=1";
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&other, "user.skep.pattern", wanted, flags).or_fail("setxattr", &other);
    files::write_all_at(&open(&other), &[9], 8191);
    assert_eq!((count(), entry_info(&other).components()[1].start_byte()), (0, 8192));
    files::remove_file(&other);
    // A write beyond the inline bytes creates one chunk file.
    let file = open(&path);
    files::write_all_at(&file, &[8; 10], 4090);
    assert_eq!(count(), 1);
    drop(file);
    for number in 0..20 {
        files::remove_file(cluster.path().join(format!("file-{number}")));
    }
    wait_for("no chunk file is left", PATIENCE, || (count() == 0).then_some(()));
    end(cluster, second);
}

#[test]
fn invalid_inline_patterns_are_refused_with_the_reason() {
    let (cluster, second) = mounts();
    let directory = cluster.path().join("directory");
    files::create_dir(&directory);
    for (text, words) in [
        ("inline", "inline/from=4KiB"),
        ("inline/from=5000", "expected a multiple of 4 KiB up to 64 KiB"),
        ("inline/from=1MiB", "expected a multiple of 4 KiB up to 64 KiB"),
        ("inline,count=2/from=4KiB", "no count"),
        ("count=1/from=1MiB,inline/from=2MiB", "only the first can be"),
    ] {
        let failed = entry(&["set", "--pattern", text], &directory);
        assert!(!failed.status.success(), "{text}");
        assert!(failed.stderr.contains(words), "{text}: {}", failed.stderr);
    }
    end(cluster, second);
}

/// `skep config set inline-bytes` applies to all new files for whose pattern neither the request
/// nor the directory sets the number of inline bytes.
#[test]
fn cluster_setting_inline_bytes_applies_to_new_files() {
    let cluster = Cluster::start(Shape::default());
    let redundancy = |path: &Path| entry_info(path).first_component().redundancy().to_owned();
    let before = cluster.path().join("before");
    files::write(&before, "x");
    assert_eq!(redundancy(&before), "stripe", "the default");
    cluster.skep(&["config", "set", "inline-bytes", "8KiB"]);
    let mut number = 0;
    wait_for("new files follow the setting", PATIENCE, || {
        number += 1;
        let path = cluster.path().join(format!("new-{number}"));
        files::write(&path, "x");
        (redundancy(&path) == "inline").then_some(())
    });
    assert_eq!(redundancy(&before), "stripe", "the pattern of an existing file stays");
    let asked = cluster.path().join("asked");
    entry_json(&["create", "--pattern", "count=2"], &asked);
    assert_eq!(redundancy(&asked), "stripe");
    cluster.stop();
}

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

        // Copy within the file, and between two files. One of the files or both have inline bytes.
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
/// mount. It closes the file before the next change opens the file.
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
fn shared_inline_file_contains_the_last_write() {
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

/// docs/semantics.md 3.1. A program gets no error even if it had not synced its writes before the
/// kill.
#[test]
fn killed_metadata_service_loses_no_inline_bytes() {
    let (cluster, second) = mounts();
    for (round, mount) in [cluster.path(), second.path()].into_iter().enumerate() {
        let name = format!("file-{round}");
        let file = open(&mount.join(&name));
        files::write_all_at(&file, b"before", 0);
        cluster.processes("metadata").remove(0).kill();
        file.write_all_at(b"after", 10).expect("the write succeeds after the restart");
        file.sync_all().expect("no write was lost");
        let expected = b"before\0\0\0\0after";
        assert_eq!(files::read(cluster.path().join(&name)), expected);
        assert_eq!(files::read(second.path().join(&name)), expected);
    }
    end(cluster, second);
}

/// Changes bytes in the inline bytes and behind them, like a transaction of a database.
fn change_both(it: &mut Checked, file: &File, byte: u8) {
    it.write(file, 24, &[byte; 100]);
    it.write(file, 10_000, &[byte; 100]);
}

/// Writes a file in two steps. Its first write fits into the inline bytes, so that the file gets
/// inline bytes.
fn write_twice(it: &mut Checked, file: &File, bytes: &[u8]) {
    it.write(file, 0, &bytes[..1000]);
    it.write(file, 0, bytes);
}

fn commit(it: &mut Checked, file: &File, byte: u8) {
    change_both(it, file, byte);
    files::sync_all(file);
}

fn is_inline(path: &Path) -> bool {
    entry_info(path).first_component().redundancy() == "inline"
}

/// docs/semantics.md 2.1, 2.7 and 2.11. Commands: skep entry info.
#[test]
fn repeatedly_synced_file_becomes_an_ordinary_file() {
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
    // The mounts report their closes a moment later.
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

/// docs/semantics.md 2.1. Commands: skep entry info.
#[test]
fn file_with_a_large_first_write_has_no_inline_bytes() {
    let (cluster, second) = mounts();
    let paths = [cluster.path().join("large"), second.path().join("large")];
    let mut it = Checked { paths, expected: Vec::new() };
    let file = open(&it.paths[0]);
    it.write(&file, 0, &Random::new(11).bytes(100_000));
    it.check("a large write");
    assert!(!is_inline(&it.paths[0]));
    it.resize(&file, 10);
    it.resize(&file, 5000);
    it.check("a truncation and an extension");
    files::sync_all(&file);
    drop(file);
    files::remove_file(&it.paths[0]);
    let count = || cluster.chunk_files().len();
    wait_for("no chunk file is left", PATIENCE, || (count() == 0).then_some(()));
    end(cluster, second);
}

/// docs/semantics.md 3.1. The kill may come before, between or after the steps of the move of the
/// inline bytes.
#[test]
fn killed_service_during_a_move_loses_no_bytes() {
    let (cluster, second) = mounts();
    let mut moved = 0;
    for (round, role) in ["metadata", "storage"].into_iter().cycle().take(8).enumerate() {
        let name = format!("database-{round}");
        let paths = [cluster.path().join(&name), second.path().join(&name)];
        let mut it = Checked { paths, expected: Vec::new() };
        let file = open(&it.paths[0]);
        write_twice(&mut it, &file, &Random::new(round as u64).bytes(20_000));
        commit(&mut it, &file, 1);
        commit(&mut it, &file, 2);
        change_both(&mut it, &file, 3);
        let service =
            wait_for("a running service", PATIENCE, || cluster.processes(role).into_iter().next());
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| file.sync_all());
            service.kill();
            sync.join().expect("no panic").expect("no write was lost");
        });
        it.check(&format!("round {round}, a kill of {role}"));
        commit(&mut it, &file, 4);
        drop(file);
        it.check(&format!("round {round}, a transaction after the kill"));
        moved += usize::from(!is_inline(&it.paths[0]));
    }
    assert!(moved > 0, "no file has moved its inline bytes");
    end(cluster, second);
}

/// docs/semantics.md 3.3: after the inline bytes have been moved to storage, no byte of the file
/// depends on metadata.
#[test]
fn moved_bytes_survive_a_power_loss_of_metadata() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let cluster = with_metadata_on(disk.path());
    let path = cluster.path().join("database");
    let mut it = Checked { paths: [path.clone(), path.clone()], expected: Vec::new() };
    let file = open(&path);
    write_twice(&mut it, &file, &Random::new(9).bytes(20_000));
    for byte in 1..4 {
        commit(&mut it, &file, byte);
    }
    assert!(!is_inline(&path), "the third sync moves the inline bytes");
    disk.lose_power();
    it.write(&file, 24, &[4; 100]);
    lose_power(&cluster, &mut disk);
    files::sync_all(&file);
    it.check("a power loss of metadata");
    assert!(!is_inline(&path), "the move was durable");
    drop(file);
    cluster.stop();
}

/// Returns a cluster whose metadata service is on the separate disk at `disk`.
fn with_metadata_on(disk: &Path) -> Cluster {
    let shape = Shape { storage_services: 1, metadata_targets: 1, ..Shape::default() };
    let cluster = Cluster::start(shape);
    cluster.hand_down(cluster.path(), PATTERN);
    cluster.stop();
    let service = cluster.data().join("metadata-1");
    finish(Command::new("cp").arg("-a").arg(&service).arg(disk), PATIENCE).expect_success();
    files::remove_dir_all(&service);
    files::symlink(disk.join("metadata-1"), &service);
    files::syncfs(disk);
    cluster.up().expect_success();
    cluster
}

fn lose_power(cluster: &Cluster, disk: &mut Disk) {
    let supervisor = cluster.processes("up").remove(0);
    supervisor.signal(Signal::STOP);
    cluster.processes("metadata").remove(0).kill();
    disk.restore();
    supervisor.signal(Signal::CONT);
}

/// docs/semantics.md 3.3 and 3.5. Only a metadata host loses its power, while the mounts continue
/// to run. Some bytes that the host had acknowledged are lost.
#[test]
fn unsynced_inline_write_gets_one_error_after_a_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_metadata_on(disk.path());
    let other = cluster.mount(Transport::Device);
    for (mount, names) in [(cluster.path(), ["a", "b"]), (other.path(), ["c", "d"])] {
        let [untouched, hit] = names.map(|name| open(&mount.join(name)));
        for file in [&untouched, &hit] {
            files::write_all_at(file, &[1; 3000], 0);
            files::sync_all(file);
        }
        let second = open(&mount.join(names[1]));
        disk.lose_power();
        files::write_all_at(&hit, &[2; 2000], 500);
        lose_power(&cluster, &mut disk);
        for (which, file) in [&hit, &second].into_iter().enumerate() {
            let error = file.sync_all().expect_err("the unsynced write is lost");
            assert_eq!(error.raw_os_error(), Some(5), "handle {which}: {error}");
            file.sync_all()
                .unwrap_or_else(|error| panic!("a second sync reports the error again: {error}"));
        }
        untouched.sync_all().expect("no write to this file was lost");
        // After the program has written the same data again and has synced it, the data is durable.
        files::write_all_at(&hit, &[3; 2000], 500);
        files::sync_all(&hit);
        disk.lose_power();
        lose_power(&cluster, &mut disk);
        hit.sync_all().expect("the repeated write is durable");
        drop((untouched, hit, second));
        let expected = [vec![1; 500], vec![3; 2000], vec![1; 500]].concat();
        for mount in [cluster.path(), other.path()] {
            assert!(files::read(mount.join(names[0])) == [1; 3000]);
            assert!(files::read(mount.join(names[1])) == expected);
        }
    }
    other.unmount();
    cluster.stop();
}

/// docs/semantics.md 3.5. The power loss reverts the record that the bytes of an empty file, which
/// another mount has created, are on storage.
#[test]
fn unsynced_large_first_write_gets_one_error_after_a_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let mut cluster = with_metadata_on(disk.path());
    let creator = cluster.mount(Transport::Device);
    files::write(creator.path().join("large"), b"");
    creator.unmount();
    let path = cluster.path().join("large");
    let mut it = Checked { paths: [path.clone(), path.clone()], expected: Vec::new() };
    let file = open(&path);
    files::sync_all(&file);
    let bytes = Random::new(13).bytes(20_000);
    disk.lose_power();
    it.write(&file, 0, &bytes);
    assert!(!is_inline(&path));
    lose_power(&cluster, &mut disk);
    let error = file.sync_all().expect_err("the unsynced bytes are lost");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    file.sync_all().unwrap_or_else(|error| panic!("a second sync fails again: {error}"));
    it.write(&file, 0, &bytes);
    files::sync_all(&file);
    assert!(is_inline(&path), "the file has its inline component again");
    it.check("the repeated write");
    drop(file);
    it.check("a new open");
    cluster.stop();
}

/// docs/semantics.md 3.3 and 3.5. The power loss reverts the report of the first write to a new
/// file. The bytes are on storage, so the `fsync` only has to report them again.
#[test]
fn large_first_write_to_a_new_file_survives_a_power_loss() {
    let scratch = Scratch::new();
    let mut disk = Disk::new(&scratch, DISK_BYTES);
    let cluster = with_metadata_on(disk.path());
    let path = cluster.path().join("large");
    let mut it = Checked { paths: [path.clone(), path.clone()], expected: Vec::new() };
    let file = open(&path);
    files::sync_all(&file);
    disk.lose_power();
    it.write(&file, 0, &Random::new(17).bytes(20_000));
    assert!(!is_inline(&path), "the mount reports the write before it returns the pattern");
    lose_power(&cluster, &mut disk);
    file.sync_all().expect("storage has all bytes");
    assert!(!is_inline(&path));
    it.check("the first write");
    drop(file);
    it.check("a new open");
    cluster.stop();
}

/// docs/semantics.md 3.7. The mount dies before it has reported its write to a new file.
#[test]
fn large_first_write_of_a_killed_mount_is_not_lost() {
    let (cluster, second) = mounts();
    let bytes = Random::new(19).bytes(20_000);
    let file = open(&second.path().join("large"));
    files::write_all_at(&file, &bytes, 0);
    second.kill();
    let path = cluster.path().join("large");
    wait_for("the recovered size of the file", PATIENCE, || {
        (files::read(&path) == bytes).then_some(())
    });
    assert!(!is_inline(&path));
    drop(file);
    cluster.stop_except(&[]);
}

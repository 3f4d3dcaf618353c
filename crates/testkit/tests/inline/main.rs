//! Files whose first bytes (inline bytes) are stored in metadata. On every mount, these files must
//! behave like other files. The tests in this module check the number of chunk files and the
//! printed patterns. The submodules check the contents of files ([`contents`]), also after kills
//! and power losses ([`failures`]).

mod contents;
mod failures;

use rustix::fs::FallocateFlags;
use serde_json::{Value, json};
use skep_testkit::files::{self, OrFail};
use skep_testkit::program::{Finished, finish};
use skep_testkit::view::{EntryInfo, Typed};
use skep_testkit::{Cluster, Mounted, PATIENCE, Random, Shape, Transport, cluster, wait_for};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PATTERN: &str = "inline/from=4KiB,count=1,chunk-size=64KiB/from=1MiB,count=all";
const INLINE: usize = 4096;

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
                "{what}: {} has {len} bytes, expected {right}; byte {at:?} differs",
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

/// Command: skep entry set, skep entry info, skep entry map.
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
    // A write beyond the inline bytes creates a chunk file.
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
    let inline_bytes = |path: &Path| match &entry_info(path).components()[..] {
        [first, second, ..] if first.redundancy() == "inline" => second.start_byte(),
        _ => 0,
    };
    let before = cluster.path().join("before");
    files::write(&before, "x");
    assert_eq!(inline_bytes(&before), 16 << 10, "the default");
    cluster.skep(&["config", "set", "inline-bytes", "8KiB"]);
    let mut number = 0;
    wait_for("new files follow the setting", PATIENCE, || {
        number += 1;
        let path = cluster.path().join(format!("new-{number}"));
        files::write(&path, "x");
        (inline_bytes(&path) == 8 << 10).then_some(())
    });
    assert_eq!(inline_bytes(&before), 16 << 10, "the pattern of an existing file does not change");
    let asked = cluster.path().join("asked");
    entry_json(&["create", "--pattern", "count=2"], &asked);
    assert_eq!(inline_bytes(&asked), 0);
    cluster.stop();
}

/// Changes bytes within and after the inline bytes, like a transaction of a database.
fn change_both(it: &mut Checked, file: &File, byte: u8) {
    it.write(file, 24, &[byte; 100]);
    it.write(file, 10_000, &[byte; 100]);
}

/// Writes a file in two steps. The first write fits into the inline bytes, so that the file gets
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
    entry_info(path).components()[0].redundancy() == "inline"
}

/// docs/semantics.md 2.1. Command: skep entry info.
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

//! Large things: a file of 4 GiB, a directory of 200,000 files, a sparse file of 64 GiB.
//!
//! One cluster for all, one transport for each half of the work: files go through one mount, and
//! are looked at through another with the other transport.

use skep_testkit::{Cluster, Random, Shape, Transport};
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

const FILES: usize = 200_000;

/// Four threads do one thing to all files of a directory.
fn with_all(work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let work = &work;
            scope.spawn(move || (thread..FILES).step_by(4).for_each(work));
        }
    });
}

fn name(index: usize) -> String {
    format!("file-{index:06}")
}

/// Prints how long each step takes, for whoever wonders about the test's time.
struct Timer(Instant);

impl Default for Timer {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Timer {
    fn print(&mut self, what: &str) {
        println!("    {what} after {:.1} s", self.0.elapsed().as_secs_f64());
        self.0 = Instant::now();
    }
}

fn count(directory: &Path) -> usize {
    let mut seen = vec![false; FILES];
    for entry in fs::read_dir(directory).expect("listed") {
        let entry = entry.expect("an entry").file_name();
        let text = entry.to_string_lossy();
        let index: usize = text.strip_prefix("file-").and_then(|it| it.parse().ok()).expect("ours");
        assert!(!std::mem::replace(&mut seen[index], true), "{text} is listed twice");
    }
    seen.iter().filter(|seen| **seen).count()
}

#[test]
fn a_directory_of_200_000_files() {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let (here, there) = (cluster.path().join("many"), second.path().join("many"));
    fs::create_dir(&here).expect("made");
    let mut timer = Timer::default();
    with_all(|index| drop(File::create_new(here.join(name(index))).expect("made")));
    timer.print("created");
    assert_eq!(count(&here), FILES);
    assert_eq!(count(&there), FILES);
    timer.print("listed twice");
    with_all(|index| {
        let found = fs::symlink_metadata(there.join(name(index))).expect("there");
        assert!(found.is_file() && found.len() == 0 && found.nlink() == 1);
    });
    timer.print("looked at");
    with_all(|index| fs::remove_file(here.join(name(index))).expect("removed"));
    timer.print("removed");
    assert_eq!(count(&here), 0);
    fs::remove_dir(&here).expect("empty");
    second.unmount();
    cluster.stop();
}

#[test]
fn a_file_of_4_gib_from_another_mount() {
    const LEN: u64 = 4 << 30;
    const PIECE: usize = 4 << 20;
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    // The same bytes again and again would hide pieces that came to the wrong place.
    let mut timer = Timer::default();
    let mut bytes = Random::new(42).bytes(PIECE);
    let mut written = DefaultHasher::new();
    let mut file = File::create(cluster.path().join("large")).expect("made");
    for piece in 0..LEN / PIECE as u64 {
        bytes[..8].copy_from_slice(&piece.to_le_bytes());
        bytes[PIECE / 2..PIECE / 2 + 8].copy_from_slice(&(!piece).to_le_bytes());
        file.write_all(&bytes).expect("written");
        written.write(&bytes);
    }
    file.sync_all().expect("synced");
    drop(file);
    timer.print("written");
    let path = second.path().join("large");
    assert_eq!(fs::metadata(&path).expect("there").len(), LEN);
    let mut file = File::open(&path).expect("opened");
    let mut read = DefaultHasher::new();
    for _ in 0..LEN / PIECE as u64 {
        file.read_exact(&mut bytes).expect("read");
        read.write(&bytes);
    }
    assert_eq!(file.read(&mut bytes).expect("the end"), 0);
    timer.print("read");
    assert_eq!(read.finish(), written.finish());
    drop(file);
    fs::remove_file(&path).expect("removed");
    second.unmount();
    cluster.stop();
}

#[test]
fn a_sparse_file_of_64_gib_is_read_at_its_end() {
    const LEN: u64 = 64 << 30;
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let file = File::create(cluster.path().join("sparse")).expect("made");
    file.write_all_at(b"begin", 0).expect("written");
    file.write_all_at(b"end", LEN - 3).expect("written");
    drop(file);
    let path = second.path().join("sparse");
    let found = fs::metadata(&path).expect("there");
    assert_eq!(found.len(), LEN);
    assert!(found.blocks() * 512 < 16 << 20, "it takes {} blocks", found.blocks());
    let file = File::open(&path).expect("opened");
    let mut bytes = vec![1; 1 << 20];
    file.read_exact_at(&mut bytes, LEN - (1 << 20)).expect("read");
    assert_eq!(&bytes[(1 << 20) - 3..], b"end");
    assert!(bytes[..(1 << 20) - 3].iter().all(|byte| *byte == 0));
    file.read_exact_at(&mut bytes, LEN / 2).expect("read");
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(file.read_at(&mut bytes, LEN).expect("the end"), 0);
    drop(file);
    second.unmount();
    cluster.stop();
}

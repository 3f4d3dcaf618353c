//! Large files and directories: a file of 4 GiB, a directory with 70,000 files, and a sparse file
//! of 64 GiB. In `cargo xtask external --only large`, the directory has 200,000 files.
//!
//! Each test has its own cluster. A test creates files through one mount, and reads these files
//! through a second mount. The first mount uses FUSE over io_uring, the second uses `/dev/fuse`.

use skep_testkit::files;
use skep_testkit::{Cluster, Random, Shape, Transport};
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

/// Number of files in the directory, unless `SKEP_LARGE_DIRECTORY` sets it. More than
/// 65,536, so that the index of a file or an offset in the directory needs more than 16 bits.
const FILES: usize = 70_000;

fn number_of_files() -> usize {
    std::env::var("SKEP_LARGE_DIRECTORY").map_or(FILES, |it| it.parse().expect("a number"))
}

/// Runs `work` for all `count` files of a directory, on four threads.
fn with_all(count: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let work = &work;
            scope.spawn(move || (thread..count).step_by(4).for_each(work));
        }
    });
}

fn name(index: usize) -> String {
    format!("file-{index:06}")
}

/// Prints the duration of each step of a test. These lines explain the duration of the whole test.
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

/// Returns the number of files in a directory. The names of these files have numbers below `end`.
fn count(directory: &Path, end: usize) -> usize {
    let mut seen = vec![false; end];
    for entry in files::read_dir(directory) {
        let entry = entry.expect("an entry").file_name();
        let text = entry.to_string_lossy();
        let index: usize = text.strip_prefix("file-").and_then(|it| it.parse().ok()).expect("ours");
        assert!(!std::mem::replace(&mut seen[index], true), "{text} is listed twice");
    }
    seen.iter().filter(|seen| **seen).count()
}

#[test]
fn large_directory_can_be_listed_and_removed() {
    let total = number_of_files();
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let (here, there) = (cluster.path().join("many"), second.path().join("many"));
    files::create_dir(&here);
    let mut timer = Timer::default();
    with_all(total, |index| drop(files::create_new(here.join(name(index)))));
    timer.print("created");
    assert_eq!(count(&here, total), total);
    assert_eq!(count(&there, total), total);
    timer.print("listed twice");
    with_all(total, |index| {
        let found = files::symlink_metadata(there.join(name(index)));
        assert!(found.is_file() && found.len() == 0 && found.nlink() == 1);
    });
    timer.print("looked at");
    with_all(total, |index| files::remove_file(here.join(name(index))));
    timer.print("removed");
    assert_eq!(count(&here, total), 0);
    files::remove_dir(&here);
    second.unmount();
    cluster.stop();
}

#[test]
fn second_mount_reads_a_file_of_4_gib() {
    const LEN: u64 = 4 << 30;
    const PIECE: usize = 4 << 20;
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    // Each piece has different bytes. If all pieces were equal, the test could not find a piece at
    // a wrong offset.
    let mut timer = Timer::default();
    let mut bytes = Random::new(42).bytes(PIECE);
    let mut written = DefaultHasher::new();
    let file = files::create(cluster.path().join("large"));
    for piece in 0..LEN / PIECE as u64 {
        bytes[..8].copy_from_slice(&piece.to_le_bytes());
        bytes[PIECE / 2..PIECE / 2 + 8].copy_from_slice(&(!piece).to_le_bytes());
        files::write_all(&file, &bytes);
        written.write(&bytes);
    }
    files::sync_all(&file);
    drop(file);
    timer.print("written");
    let path = second.path().join("large");
    assert_eq!(files::metadata(&path).len(), LEN);
    let mut file = files::open(&path);
    let mut read = DefaultHasher::new();
    for _ in 0..LEN / PIECE as u64 {
        files::read_exact(&file, &mut bytes);
        read.write(&bytes);
    }
    assert_eq!(file.read(&mut bytes).expect("the end"), 0);
    timer.print("read");
    assert_eq!(read.finish(), written.finish());
    drop(file);
    files::remove_file(&path);
    second.unmount();
    cluster.stop();
}

#[test]
fn last_bytes_of_a_sparse_file_of_64_gib_can_be_read() {
    const LEN: u64 = 64 << 30;
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let file = files::create(cluster.path().join("sparse"));
    files::write_all_at(&file, b"begin", 0);
    files::write_all_at(&file, b"end", LEN - 3);
    drop(file);
    let path = second.path().join("sparse");
    let found = files::metadata(&path);
    assert_eq!(found.len(), LEN);
    assert!(found.blocks() * 512 < 16 << 20, "the sparse file has {} blocks", found.blocks());
    let file = files::open(&path);
    let mut bytes = vec![1; 1 << 20];
    files::read_exact_at(&file, &mut bytes, LEN - (1 << 20));
    assert_eq!(&bytes[(1 << 20) - 3..], b"end");
    assert!(bytes[..(1 << 20) - 3].iter().all(|byte| *byte == 0));
    files::read_exact_at(&file, &mut bytes, LEN / 2);
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(files::read_at(&file, &mut bytes, LEN), 0);
    drop(file);
    second.unmount();
    cluster.stop();
}

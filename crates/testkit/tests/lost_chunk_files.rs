//! Chunk files that an administrator or a repair of the file system has removed from the disk of a
//! storage target.

use skep_testkit::cluster::skep;
use skep_testkit::files;
use skep_testkit::{Cluster, Random, Shape};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Returns the sorted paths of the existing chunk files of a file, from `skep entry info`.
fn existing_paths_of_entry_info(cluster: &Cluster, file: &Path) -> Vec<PathBuf> {
    let info = cluster.skep_json(&["entry", "info", &file.display().to_string()]);
    let components = info["pattern"]["components"].as_array().expect("a file has a pattern");
    let targets = components.iter().filter_map(|it| it["targets"].as_array()).flatten();
    let paths = targets.map(|it| it["chunk_file_path"].as_str().expect("a file has chunk files"));
    let mut existing: Vec<_> = paths.map(PathBuf::from).filter(|path| path.exists()).collect();
    existing.sort();
    existing
}

/// docs/semantics.md 4.7. Command: skep entry info.
#[test]
fn read_fails_if_a_chunk_file_of_a_synced_file_is_missing() {
    let cluster = Cluster::start(Shape::small());
    let paths = ["lost", "whole", "sparse"].map(|name| cluster.path().join(name));
    let [lost, whole, sparse] = &paths;
    let bytes = Random::new(3).bytes(300_000);
    let before = cluster.chunk_files();
    files::write(lost, &bytes);
    // The close has already reported the file's size to metadata, so this sync reports only which
    // chunk files exist.
    files::sync_all(&files::open(lost));
    let mut removed = cluster.chunk_files();
    removed.retain(|path| !before.contains(path));
    removed.sort();
    assert_eq!(existing_paths_of_entry_info(&cluster, lost), removed);
    files::write(whole, &bytes);
    let file = files::create(sparse);
    files::write_all_at(&file, b"end", 10 << 20);
    files::sync_all(&file);
    drop(file);
    cluster.stop();
    assert!(!removed.is_empty(), "the bytes are in chunk files");
    removed.iter().for_each(|path| fs::remove_file(path).expect("the chunk file exists"));
    let data = cluster.data().display().to_string();
    let found = skep(["fsck", &data]);
    assert_eq!(found.status.code(), Some(1), "{}", found.stdout);
    let lines = found.stdout.lines().filter(|line| line.starts_with("- no-chunk-file: "));
    assert_eq!(lines.count(), removed.len(), "{}", found.stdout);
    cluster.up().expect_success();
    let error = fs::read(lost).expect_err("no zeros are returned in place of lost bytes");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let error = fs::copy(lost, cluster.path().join("copy")).expect_err("no zeros are copied");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let file = files::open_with(fs::OpenOptions::new().write(true), lost);
    let error = file.write_at(b"x", 100_000).expect_err("a write would hide the loss");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    drop(file);
    fs::read(lost).expect_err("the loss is still visible");
    assert!(files::read(whole) == bytes);
    let hole = files::read(sparse);
    assert!(hole[..10 << 20].iter().all(|byte| *byte == 0), "a hole is no loss");
    files::write(lost, &bytes);
    assert!(files::read(lost) == bytes, "a truncation removes the lost bytes");
    let log = files::read_to_string(cluster.data().join("logs").join("mount.log"));
    let line = log.lines().find(|line| line.contains("is lost")).expect("the mount logs the loss");
    assert!(line.contains("target t") && line.contains("lost+found"), "{line}");
    cluster.stop();
}

//! The state of a client that has died: the sizes of its files, its unlinked open files, and its
//! append rights.

use skep_testkit::files;
use skep_testkit::{Cluster, Random, Shape, Transport, wait_for};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::time::{Duration, Instant};

/// Time limit for the cluster to notice a dead client. Leases last 5 s, and on a busy machine the
/// cluster notices the end of a lease with a delay.
const PATIENCE: Duration = Duration::from_secs(30);

/// docs/semantics.md 3.7. After the writer of a file has died, only the storage targets have the
/// length of the file.
#[test]
fn file_size_of_a_dead_writer_is_recovered_after_its_lease() {
    for transport in [Transport::Uring, Transport::Device] {
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(transport);
        let mut random = Random::new(5);
        // No file has inline bytes, because the first write of each file is larger than the inline
        // bytes. The size of a file with inline bytes is known immediately.
        let lengths = [20_001, 40_960, 600_000, 5_000_001];
        let contents: Vec<_> = lengths.iter().map(|len| random.bytes(*len)).collect();
        let mut open = Vec::new();
        for (number, bytes) in contents.iter().enumerate() {
            let path = second.path().join(format!("file-{number}"));
            let file = files::open_with(OpenOptions::new().write(true).create_new(true), path);
            files::write_all_at(&file, bytes, 0);
            open.push(file);
        }
        let size = |number: usize| {
            let path = cluster.path().join(format!("file-{number}"));
            files::metadata(path).len()
        };
        assert!(
            (0..contents.len()).all(|number| size(number) == 0),
            "the mount has reported no size yet"
        );
        let died = Instant::now();
        second.kill();
        drop(open);
        for (number, bytes) in contents.iter().enumerate() {
            wait_for("the size of a dead client's file", PATIENCE, || {
                (size(number) == bytes.len() as u64).then_some(())
            });
            let found = files::read(cluster.path().join(format!("file-{number}")));
            assert!(found == *bytes, "file {number}");
        }
        println!("the sizes are known {:?} after the death of the client", died.elapsed());
        cluster.stop_except(&[]);
    }
}

/// docs/semantics.md 1.18 and 4.5. The program closes the first file before the client dies.
#[test]
fn unlinked_files_of_a_dead_client_are_removed() {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let mut open: Vec<_> = (0..4)
        .map(|_| {
            let file = rustix::fs::open(second.path(), flags, rustix::fs::Mode::RUSR);
            let file = fs::File::from(file.expect("made"));
            files::write_all_at(&file, &[7; 600_000], 0);
            files::sync_all(&file);
            file
        })
        .collect();
    let chunk_files = || cluster.chunk_files().len();
    let all = chunk_files();
    assert!(all >= 4, "{all} chunk files");
    drop(open.remove(0));
    wait_for("the chunk files of the closed file are removed", PATIENCE, || {
        (chunk_files() < all).then_some(())
    });
    assert!(chunk_files() >= 3, "the open files stay");
    second.kill();
    drop(open);
    wait_for("the chunk files are removed", PATIENCE, || (chunk_files() == 0).then_some(()));
    cluster.stop_except(&[]);
}

/// Appends `count` lines to a file, but stops at the first append that fails. Returns the
/// acknowledged lines.
fn append(path: &std::path::Path, name: &str, count: usize) -> Vec<String> {
    let mut acknowledged = Vec::new();
    let Ok(mut file) = OpenOptions::new().append(true).open(path) else { return acknowledged };
    for record in 0..count {
        let line = format!("{name} {record} {}.\n", "x".repeat(record * 91 % 5000));
        if file.write(line.as_bytes()).ok() != Some(line.len()) {
            break;
        }
        acknowledged.push(line);
    }
    acknowledged
}

/// docs/semantics.md 2.9 and 4.5. Appends continue after a kill of the metadata service, and after
/// the death of a client that has the append right.
#[test]
fn appends_of_two_mounts_survive_kills_of_metadata_and_a_mount() {
    const COUNT: usize = 400;
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let (here, there) = (cluster.path().join("log"), second.path().join("log"));
    files::write(&here, "");
    let survivors: Vec<_> = (0..2)
        .map(|number| {
            let path = here.clone();
            std::thread::spawn(move || append(&path, &format!("survivor-{number}"), COUNT))
        })
        .collect();
    let victims: Vec<_> = (0..2)
        .map(|number| {
            let path = there.clone();
            std::thread::spawn(move || append(&path, &format!("victim-{number}"), usize::MAX))
        })
        .collect();
    let len = || files::metadata(&here).len();
    let goes_on = || {
        let before = len();
        wait_for("the log grows", PATIENCE, || (len() > before + 50_000).then_some(()));
    };
    for _ in 0..3 {
        goes_on();
        cluster.processes("metadata").into_iter().for_each(|metadata| metadata.kill());
    }
    goes_on();
    second.kill();
    let join = |thread: std::thread::JoinHandle<Vec<String>>| thread.join().expect("no panic");
    let victims: Vec<_> = victims.into_iter().map(join).collect();
    let survivors: Vec<_> = survivors.into_iter().map(join).collect();
    assert!(
        survivors.iter().all(|lines| lines.len() == COUNT),
        "no operation of a survivor failed"
    );
    let text = fs::read_to_string(&here).expect("the log is UTF-8");
    assert!(!text.contains('\0'), "the log has no hole");
    for line in survivors.iter().chain(&victims).flatten() {
        assert_eq!(text.matches(line).count(), 1, "the log has {:?} once", &line[..20]);
    }
    println!(
        "    killed programs had written {:?} lines",
        victims.iter().map(Vec::len).collect::<Vec<_>>()
    );
    cluster.stop_except(&[]);
}

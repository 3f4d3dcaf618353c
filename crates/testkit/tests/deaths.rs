//! What a client that died leaves behind.

use skep_testkit::{Cluster, Random, Shape, Transport, wait_for};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Leases last 5 s; a busy machine finds out a little later.
const PATIENCE: Duration = Duration::from_secs(30);

/// Semantics 3.7: nobody but the storage targets knew how far it had come.
#[test]
fn what_a_dead_writer_wrote_has_its_size_when_the_lease_has_run_out() {
    for transport in [Transport::Uring, Transport::Device] {
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(transport);
        let mut random = Random::new(5);
        let lengths = [1, 4096, 600_000, 5_000_001];
        let contents: Vec<_> = lengths.iter().map(|len| random.bytes(*len)).collect();
        let mut open = Vec::new();
        for (number, bytes) in contents.iter().enumerate() {
            let path = second.path().join(format!("file-{number}"));
            let file = OpenOptions::new().write(true).create_new(true).open(path).expect("made");
            file.write_all_at(bytes, 0).expect("written");
            open.push(file);
        }
        let size = |number: usize| {
            let path = cluster.path().join(format!("file-{number}"));
            fs::metadata(path).expect("there").len()
        };
        assert!((0..contents.len()).all(|number| size(number) == 0), "nobody was told");
        let died = Instant::now();
        second.kill();
        drop(open);
        for (number, bytes) in contents.iter().enumerate() {
            wait_for("the size of what a dead client wrote", PATIENCE, || {
                (size(number) == bytes.len() as u64).then_some(())
            });
            let found = fs::read(cluster.path().join(format!("file-{number}"))).expect("read");
            assert!(found == *bytes, "file {number}");
        }
        println!("known {:?} after its death", died.elapsed());
        cluster.stop();
    }
}

/// Semantics 1.18 and 4.5.
#[test]
fn what_a_dead_client_had_without_a_name_is_gone() {
    let mut cluster = Cluster::start(Shape::default());
    let second = cluster.mount(Transport::Device);
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let open: Vec<_> = (0..4)
        .map(|_| {
            let file = rustix::fs::open(second.path(), flags, rustix::fs::Mode::RUSR);
            let file = fs::File::from(file.expect("made"));
            file.write_all_at(&[7; 600_000], 0).expect("written");
            file.sync_all().expect("synced");
            file
        })
        .collect();
    let chunk_files = || {
        let arguments = [".", "-path", "*/chunks/*", "-type", "f"];
        skep_testkit::program::run_in(cluster.data(), "find", arguments).lines().count()
    };
    assert!(chunk_files() >= 4, "{} chunk files", chunk_files());
    second.kill();
    drop(open);
    wait_for("the chunk files are removed", PATIENCE, || (chunk_files() == 0).then_some(()));
    cluster.stop();
}

//! Memory of the processes of a small cluster, compared with docs/operations/sizing.md#memory.

use skep_testkit::files;
use skep_testkit::{Cluster, Shape};

/// Number of files that the test writes before the measurement. The bytes of every second file are
/// in metadata, and the bytes of the other files are on storage.
const FILES: u32 = 500;

/// Command: skep management, skep metadata, skep storage, skep monitor, skep mount.
#[test]
fn processes_with_little_load_stay_within_documented_memory() {
    let cluster = Cluster::start(Shape { monitor: true, ..Shape::small() });
    for number in 0..FILES {
        let len = if number % 2 == 0 { 12 } else { 20_000 };
        files::write(cluster.path().join(format!("file-{number}")), vec![7; len]);
    }
    let processors = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    for (role, most) in [
        // The page about sizing has larger limits for larger clusters than this cluster.
        ("management", 64),
        ("monitor", 64),
        // The sum of the limits for the metadata cache, the tables in memory, and the newest
        // records of the log.
        ("metadata", 256 + 128 + 32),
        // Two targets.
        ("storage", 2 * (64 + 20)),
        ("mount", 100 + 16 * processors),
    ] {
        let processes = cluster.processes(role);
        assert!(!processes.is_empty(), "{role}");
        for process in &processes {
            // Pages of files, such as the program, do not count.
            let mib = process.memory("RssAnon") >> 20;
            println!("{role}: {mib} MiB");
            assert!(mib <= most, "{role} uses {mib} MiB: expected at most {most} MiB");
        }
    }
    cluster.stop();
}

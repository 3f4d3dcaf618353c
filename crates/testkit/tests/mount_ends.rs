//! Mounts as an administrator starts them, and how they end: by signals, by `umount`, with and
//! without a cluster.

use rustix::process::Signal;
use skep_testkit::cluster;
use skep_testkit::process::Process;
use skep_testkit::program::finish;
use skep_testkit::{Cluster, Scratch, Shape, Transport, wait_for};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longest time that `umount` may take when no server answers.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

fn small() -> Cluster {
    Cluster::start(Shape {
        metadata_targets: 1,
        storage_services: 1,
        targets_per_service: 1,
        ..Shape::default()
    })
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the kernel tells");
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Mounts behind the terminal. Gives the mount's process; nobody has looked at the mount yet.
fn detach(cluster: &Cluster, transport: Transport, path: &Path) -> Process {
    fs::create_dir_all(path).expect("a directory to mount on");
    let before: Vec<_> = cluster.processes("mount").iter().map(|it| it.pid).collect();
    let (data, shown) = (cluster.data().display().to_string(), path.display().to_string());
    let arguments = ["mount", "--cluster", &data, "--transport", transport.name(), "--detach"];
    cluster::skep([&arguments[..], &[&shown]].concat()).expect_success();
    let mut found = cluster.processes("mount");
    found.retain(|it| !before.contains(&it.pid));
    assert!(is_mounted(path));
    found.pop().expect("its process runs")
}

fn ends(process: &Process, path: &Path) {
    wait_for("the mount ends", PATIENCE, || (!process.runs() && !is_mounted(path)).then_some(()));
}

#[test]
fn signals_unmount() {
    let mut cluster = small();
    let scratch = Scratch::new();
    for transport in [Transport::Uring, Transport::Device] {
        for signal in [Signal::TERM, Signal::INT] {
            let mounted = cluster.mount(transport);
            let path = mounted.path().to_owned();
            mounted.signal(signal);
            mounted.wait_for_end();
            assert!(!is_mounted(&path));
            let path = scratch.join("mnt");
            let process = detach(&cluster, transport, &path);
            process.signal(signal);
            ends(&process, &path);
        }
    }
    cluster.stop();
}

/// Also one that nobody has looked at: what is shown of it must be known before.
/// Semantics 4.10.
#[test]
fn umount_ends_mounts_while_the_cluster_is_away() {
    for transport in [Transport::Uring, Transport::Device] {
        let cluster = small();
        let scratch = Scratch::new();
        let ways = ["fresh", "used", "told"].map(|name| scratch.join(name));
        let processes = ways.each_ref().map(|path| detach(&cluster, transport, path));
        fs::write(ways[1].join("file"), "text").expect("written");
        // The supervisor first, or it would start the others again.
        for role in ["up", "management", "metadata", "storage"] {
            cluster.processes(role).iter().for_each(Process::kill);
        }
        finish(Command::new("umount").arg(&ways[0]), UMOUNT_PATIENCE).expect_success();
        finish(Command::new(cluster::program()).arg("umount").arg(&ways[1]), UMOUNT_PATIENCE)
            .expect_success();
        processes[2].signal(Signal::TERM);
        for (process, path) in processes.iter().zip(&ways) {
            ends(process, path);
        }
        cluster.kill_all();
    }
}

/// The log has the mount point in its name, and names have 255 bytes at most.
#[test]
fn mount_points_may_have_any_name() {
    let cluster = small();
    let scratch = Scratch::new();
    let long: Vec<_> = (0..4).map(|it| it.to_string().repeat(200)).collect();
    for name in [&long.join("/")[..], "a blank, and more", "\u{e4}\u{65e5}"] {
        let path = scratch.join(name);
        fs::create_dir_all(&path).expect("made");
        let (data, shown) = (cluster.data().display().to_string(), path.display().to_string());
        cluster::skep(["mount", "--cluster", &data, "--detach", &shown]).expect_success();
        fs::write(path.join("file"), name).expect("written");
        assert_eq!(fs::read_to_string(cluster.path().join("file")).expect("seen"), name);
        cluster::skep(["umount", &shown]).expect_success();
    }
    cluster.stop();
}

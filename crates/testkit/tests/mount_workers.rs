//! The threads of a mount that serve programs, and the open files that these threads need.

use skep_testkit::{Cluster, Mounted, Shape, Transport, files};
use std::fs;
use std::thread;

/// Returns the number of threads of a mount that serve programs.
fn workers(mount: &Mounted) -> usize {
    let threads = fs::read_dir(format!("/proc/{}/task", mount.pid())).expect("a process");
    let names = threads.flatten().filter_map(|it| fs::read_to_string(it.path().join("comm")).ok());
    let is_worker = |name: &String| {
        let number = name.trim_end().strip_prefix("skep-fuse-");
        number.is_some_and(|number| number.parse::<usize>().is_ok())
    };
    names.filter(is_worker).count()
}

/// The kernel has a queue for each processor, and the only worker must serve all queues.
///
/// Command: skep mount.
#[test]
fn one_worker_serves_programs_on_all_processors() {
    let mut cluster = Cluster::start(Shape::small());
    for transport in [Transport::Uring, Transport::Device] {
        let mount = cluster.mount_with(transport, "workers=1");
        assert_eq!(workers(&mount), 1);
        let programs: Vec<_> = (0..16)
            .map(|number: u8| {
                let file = mount.path().join(format!("{}-{number}", transport.name()));
                thread::spawn(move || {
                    for round in 1..20 {
                        let bytes = vec![number; 10_000 * round];
                        files::write(&file, &bytes);
                        assert_eq!(files::read(&file), bytes);
                    }
                })
            })
            .collect();
        for program in programs {
            program.join().expect("the program reads the bytes that it has written");
        }
        mount.unmount();
    }
    cluster.stop_checked(&[]);
}

/// The usual soft limit of 1,024 open files is less than the connections of a large host.
///
/// Command: skep mount.
#[test]
fn mount_raises_its_limit_of_open_files() {
    let mut cluster = Cluster::start(Shape::small());
    let mount = cluster.mount(Transport::Device);
    let limits = fs::read_to_string(format!("/proc/{}/limits", mount.pid())).expect("a process");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a line");
    let values: Vec<_> = line.split_whitespace().collect();
    assert_eq!(values[0], values[1], "{line}");
}

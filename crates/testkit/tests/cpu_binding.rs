//! The CPUs on which services run: the settings `node.cpus` and `node.numa_node`.

use skep_testkit::cluster::{Cluster, skep};
use skep_testkit::process::Process;
use skep_testkit::shape::Shape;
use skep_types::cpu_list;
use std::collections::BTreeSet;
use std::path::Path;

/// Returns the CPUs on which a thread may run. `status` is the path of the thread's status file
/// below `/proc`. `None` means that the thread has ended.
fn allowed(status: &Path) -> Option<BTreeSet<usize>> {
    let text = std::fs::read_to_string(status).ok()?;
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Some(cpu_list::parse(list.expect("a list of CPUs").trim()).expect("a list of CPUs"))
}

/// Returns the CPUs of the main thread of a process. Fails if another thread of a bound process has
/// other CPUs. In a process that is not bound, the io_uring workers may have more CPUs than the
/// main thread.
fn of_process(process: &Process) -> BTreeSet<usize> {
    let main =
        allowed(Path::new(&format!("/proc/{}/status", process.pid))).expect("the process runs");
    if allowed(Path::new("/proc/self/status")).as_ref() == Some(&main) {
        return main;
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.pid)).expect("threads");
    let threads: Vec<_> = threads.flatten().map(|it| it.path().join("status")).collect();
    assert!(!threads.is_empty(), "a process has a thread");
    for status in &threads {
        let of_thread = allowed(status);
        assert!(of_thread.is_none_or(|cpus| cpus == main), "{}", status.display());
    }
    main
}

/// Command: skep storage, skep metadata, skep management.
#[test]
fn all_threads_of_a_service_run_on_the_cpus_of_its_settings() {
    let own = allowed(Path::new("/proc/self/status")).expect("the process runs");
    let last = *own.last().expect("a CPU");
    let mut more =
        vec!["--set".to_owned(), format!("storage-1:node.cpus={last}"), "--set".to_owned()];
    more.push(format!("management:node.cpus={last}"));
    // A kernel without support for NUMA shows no nodes.
    let of_node = std::fs::read_to_string("/sys/devices/system/node/node0/cpulist").ok();
    if of_node.is_some() {
        more.extend(["--set".to_owned(), "metadata:node.numa_node=0".to_owned()]);
    }
    let cluster = Cluster::start(Shape { storage_services: 2, more, ..Shape::small() });
    let mut found: Vec<_> = cluster.processes("storage").iter().map(of_process).collect();
    found.sort_by_key(BTreeSet::len);
    assert_eq!(found, [BTreeSet::from([last]), own.clone()]);
    let management = cluster.processes("management");
    assert_eq!(of_process(&management[0]), BTreeSet::from([last]));
    let Some(of_node) = of_node else { return };
    let of_node = cpu_list::parse(of_node.trim()).expect("a list of CPUs");
    let metadata = cluster.processes("metadata").remove(0);
    let expected: BTreeSet<usize> = of_node.intersection(&own).copied().collect();
    assert_eq!(of_process(&metadata), expected);
    // The kernel shows the memory policy of the main thread. All other threads inherit this policy.
    let maps = std::fs::read_to_string(format!("/proc/{}/numa_maps", metadata.pid));
    let maps = maps.expect("the policy of the memory");
    assert!(maps.contains(" prefer:0 "), "{maps}");
}

/// Command: skep storage.
#[test]
fn service_refuses_unusable_cpus_and_numa_nodes() {
    let check = |options: &[&str], words: &[&str]| {
        let start = ["storage", "--directory", "/none/d", "--target", "/none/t"];
        let text = skep([&start[..], options].concat()).expect_failure();
        for word in words {
            assert!(text.contains(word), "{options:?}: {word}: {text}");
        }
    };
    check(&["--cpus", "3-1"], &["node.cpus", "'3-1'", "0-7,16"]);
    check(&["--cpus", "65535"], &["cannot run on CPUs 65535", "may run on CPUs"]);
    check(&["--numa-node", "first"], &["node.numa_node", "'first'"]);
    check(&["--numa-node", "1023"], &["NUMA node 1023", "change `node.numa_node`"]);
    check(&["--numa-node", "0", "--cpus", "0"], &["--cpus", "cannot be used with"]);
    let both = ["--set", "node.cpus=0", "--set", "node.numa_node=0"];
    check(&both, &["`node.cpus` and `node.numa_node` are both set"]);
}

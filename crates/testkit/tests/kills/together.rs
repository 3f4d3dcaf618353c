//! Kills of several processes at the same moment, and long suspensions of services. Workers on two
//! mounts run the workload, and writers on both mounts share pages of one file.
//!
//! In CI, each test has a few rounds, and a suspension takes seconds. `cargo xtask external --only
//! kills` has 40 kills of all processes and 100 kills of two services. `cargo xtask external --only
//! stops` has suspensions of minutes.

use crate::pages::SharedPages;
use crate::{
    BETWEEN, LONGEST_PAUSE, WORKERS, nothing_is_orphaned, number, only_dead_mounts, under_load,
    verify, victim_of,
};
use rustix::process::Signal;
use skep_testkit::process::{Process, Suspended};
use skep_testkit::workload::{Crash, Worker};
use skep_testkit::{Cluster, Mounted, PATIENCE, Random, Shape, Transport, wait_for};
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of kills of all processes. If `SKEP_KILLS` is set, the number of kills of all processes
/// is two fifths of `SKEP_KILLS`.
const KILLS_OF_ALL: usize = 2;
/// Number of kills of two services. `SKEP_KILLS` overrides this number.
const KILLS_OF_PAIRS: usize = 5;
/// Length of a suspension in seconds. The suspension is longer than the lease. `SKEP_STOP_SECONDS`
/// overrides this length.
const STOP_SECONDS: u64 = 7;
/// Number of writers of shared pages on each mount.
const PAGE_WRITERS: usize = 2;
/// Minimum number of operations that the workload completes after the return of the killed
/// services.
const AFTERWARDS: usize = 50;

/// A cluster with two mounts, and its load.
struct Site {
    // The second mount must be dropped before its cluster, and Rust drops fields in the order of
    // their declaration.
    workers: Vec<Worker>,
    second: Mounted,
    cluster: Cluster,
    pages: SharedPages,
    random: Random,
}

impl Site {
    fn new() -> Self {
        let seed = Random::seed_of_run();
        println!("seed {seed} (SKEP_TEST_SEED={seed} repeats it)");
        let mut cluster = Cluster::start(Shape::default());
        let second = cluster.mount(Transport::Device);
        let on =
            |number: u64| if number.is_multiple_of(2) { cluster.path() } else { second.path() };
        let workers = (0..WORKERS).map(|number| Worker::new(on(number), number, seed)).collect();
        let pages = SharedPages::new(cluster.path());
        Self { workers, second, cluster, pages, random: Random::new(seed) }
    }

    /// Runs the load while `violence` acts, and returns the failures of the load.
    fn under_load(
        &mut self,
        violence: impl FnOnce(&Cluster, &mut Random, &mut dyn FnMut(usize)),
    ) -> Vec<String> {
        let Self { workers, second, cluster, pages, random } = self;
        let (cluster, pages) = (&*cluster, &*pages);
        let mounts = [cluster.path(), second.path()];
        let writers = mounts.into_iter().flat_map(|mount| [mount; PAGE_WRITERS]);
        let writers = writers.map(|mount| (pages, mount, Random::new(random.number()))).collect();
        under_load(workers, writers, |go_on| violence(cluster, random, go_on))
    }

    fn mounts(&self) -> [&Path; 2] {
        [self.cluster.path(), self.second.path()]
    }

    fn verify(&mut self, crash: &Crash, round: &str) {
        verify(&mut self.workers, crash, round);
        let problems = self.pages.check(&self.mounts());
        assert!(problems.is_empty(), "{round}:\n{}", problems.join("\n"));
    }

    fn end(mut self) {
        self.workers.iter_mut().for_each(Worker::close);
        self.pages.remove(self.cluster.path());
        nothing_is_orphaned(&self.cluster, &mut self.workers);
        self.second.unmount();
        self.cluster.stop_except(&[]);
    }
}

/// docs/semantics.md 3.1 and 2.5. The test kills the services, the mounts and the supervisor.
#[test]
fn kills_of_all_processes_lose_no_acknowledged_operation() {
    let mut site = Site::new();
    for round in 1..=number("SKEP_KILLS").map_or(KILLS_OF_ALL, |it| it * 2 / 5) {
        let failures = site.under_load(|cluster, random, go_on| {
            go_on(1 + random.below(BETWEEN));
            cluster.kill_processes();
        });
        only_dead_mounts(failures);
        site.workers.iter_mut().for_each(Worker::close);
        let Site { mut workers, second, mut cluster, pages, random } = site;
        second.kill();
        cluster.up().expect_success();
        let second = cluster.mount(Transport::Device);
        for (number, worker) in workers.iter_mut().enumerate() {
            worker.moved_to(if number % 2 == 0 { cluster.path() } else { second.path() });
        }
        site = Site { workers, second, cluster, pages, random };
        site.verify(&Crash::of_client(), &format!("after kill {round} of all processes"));
        println!("{round} kills of all processes");
    }
    site.end();
}

/// docs/semantics.md 3.1 and 4.1.
#[test]
fn concurrent_kills_of_storage_and_metadata_lose_no_operation() {
    let mut site = Site::new();
    let kills = number("SKEP_KILLS").unwrap_or(KILLS_OF_PAIRS);
    let failures = site.under_load(|cluster, random, go_on| {
        for _ in 0..kills {
            go_on(1 + random.below(BETWEEN));
            let pair = ["metadata", "storage"].map(|role| victim_of(cluster, role, random));
            let start = Instant::now();
            pair.iter().for_each(|it| it.signal(Signal::KILL));
            pair.iter().for_each(Process::kill);
            go_on(1);
            let pause = start.elapsed();
            assert!(
                pause <= LONGEST_PAUSE,
                "no progress for {pause:?} after a kill of two services"
            );
        }
        go_on(AFTERWARDS);
    });
    assert!(failures.is_empty(), "operations wait for killed services:\n{}", failures.join("\n"));
    site.verify(&Crash::of_services(), &format!("after {kills} kills of two services"));
    site.end();
}

/// docs/semantics.md 4.1. The suspended services neither reply nor close their connections.
#[test]
fn long_suspensions_of_services_cause_no_error() {
    let mut site = Site::new();
    let seconds = number("SKEP_STOP_SECONDS").map_or(STOP_SECONDS, |it| it as u64);
    let stop = Duration::from_secs(seconds);
    for roles in [&["storage"][..], &["metadata"], &["storage", "metadata"]] {
        let failures = site.under_load(|cluster, random, go_on| {
            go_on(1 + random.below(BETWEEN));
            let victims = roles.iter().map(|role| victim_of(cluster, role, random)).collect();
            let (suspended, start) = (Suspended::of(victims), Instant::now());
            wait_for("the end of the suspension", stop + PATIENCE, || {
                (start.elapsed() >= stop).then_some(())
            });
            drop(suspended);
            go_on(AFTERWARDS);
        });
        let failures = failures.join("\n");
        assert!(failures.is_empty(), "operations wait for suspended {roles:?}:\n{failures}");
        site.verify(&Crash::of_services(), &format!("after a suspension of {roles:?}"));
        println!("{roles:?} suspended for {stop:?}");
    }
    site.end();
}

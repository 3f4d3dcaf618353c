//! Many random faults of management and metadata. In the cluster of this test, both have several
//! members: 3 management nodes, 2 groups of 2 metadata targets, and 1 group of 3 metadata targets.
//! Each node runs on a host of its own, in a network namespace. Two mounts create, rename and
//! remove files. They also use the same names in shared directories of all groups.
//!
//! No acknowledged operation may be lost, and no program may get an error. The operations on shared
//! names must be linearizable, and no pause of a program may be longer than the limits in this
//! file. The test prints a table of the pauses. The environment variable `SKEP_FAULTS` sets the
//! number of faults, `SKEP_FAULT_PLAN` their kind ([`Plan`]), and `SKEP_TEST_SEED` the seed that
//! determines them.

mod fault;
mod histories;
mod site;

use fault::{Fault, Plan};
use histories::{Histories, SHARING};
use site::{MOUNTS, Site, kind};
use skep_testkit::Random;
use skep_testkit::program::run;
use skep_testkit::workload::{Crash, Worker};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum pause of a program.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Maximum pause of a program if management may have lost its leader.
const LONGEST_WITHOUT_LEADER: Duration = Duration::from_secs(8);
/// Maximum number of take-overs of all groups while [`Plan::FrozenDisk`] freezes disks five times.
const MOST_TAKE_OVERS: usize = 2;

/// The faults of each kind of node, with the pauses that they caused.
#[derive(Default)]
struct Pauses(BTreeMap<(Fault, String), Vec<Duration>>);

impl Pauses {
    fn table(&self) -> String {
        let mut text =
            "| fault | of | times | longest pause | median |\n|---|---|---|---|---|\n".to_owned();
        for ((fault, of), pauses) in &self.0 {
            let mut pauses = pauses.clone();
            pauses.sort();
            let (longest, median) = (pauses[pauses.len() - 1], pauses[pauses.len() / 2]);
            text += &format!(
                "| {fault:?} | {of} | {} | {:.2} s | {:.2} s |\n",
                pauses.len(),
                longest.as_secs_f64(),
                median.as_secs_f64()
            );
        }
        text
    }
}

/// Causes the faults one after the other. Returns the pauses that they caused, and the faults whose
/// pauses exceed the limits.
fn suffer_all(
    plan: Plan,
    site: &mut Site,
    histories: &Histories,
    random: &mut Random,
) -> (Pauses, Vec<String>) {
    let count = std::env::var("SKEP_FAULTS").map_or(20, |it| it.parse().expect("a number"));
    let (mut pauses, mut long) = (Pauses::default(), Vec::new());
    let mut take_overs = Vec::new();
    for number in 1..=count {
        let (fault, name, time) = plan.choose(random, site);
        histories.take_pause();
        let before = site.primaries();
        site.suffer(fault, name, time);
        site.wait_until_all_serve(histories);
        let pause = histories.take_pause();
        let after = site.primaries();
        take_overs
            .push(before.iter().zip(&after).filter(|(before, after)| before != after).count());
        let until = run("date", ["-u", "+%T"]);
        let until = until.trim();
        eprintln!("{number}: {fault:?} of {name} for {time:?}, until {until}: pause {pause:?}");
        let of_management = kind(name) == "management";
        let limit = if of_management { LONGEST_WITHOUT_LEADER } else { LONGEST_PAUSE };
        if pause > limit {
            long.push(format!("{fault:?} of {name} for {time:?}, until {until}: pause {pause:?}"));
        }
        pauses.0.entry((fault, kind(name).to_owned())).or_default().push(pause);
    }
    let total: usize = take_overs.iter().sum();
    eprintln!("{total} groups had another primary after a fault");
    if plan == Plan::FrozenDisk {
        let most = take_overs.windows(5).map(|five| five.iter().sum::<usize>()).max();
        assert!(most.unwrap_or(total) <= MOST_TAKE_OVERS, "take-overs: {take_overs:?}");
    }
    (pauses, long)
}

#[test]
fn many_faults_lose_no_data_and_pause_operations_for_seconds() {
    let seed = Random::seed_of_run();
    eprintln!("seed {seed}");
    let mut site = Site::new();
    let roots = MOUNTS.map(|name| site.scratch.join(name));
    let paths = site.make_directories().iter().map(|it| Path::new(it).join("name")).collect();
    let numbered = (0..).zip(&roots);
    let mut workers: Vec<_> =
        numbered.map(|(number, root)| Worker::new(root, number, seed)).collect();
    let (stop, histories) = (AtomicBool::new(false), Histories::of(paths));
    let mut results = None;
    std::thread::scope(|scope| {
        let (histories, stop) = (&histories, &stop);
        for program in 0..MOUNTS.len() * SHARING {
            let mount = &roots[program / SHARING];
            scope.spawn(move || histories.record(mount, program, stop));
        }
        let running: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(|| worker.run(stop))).collect();
        // The programs must end even if an assertion about the faults fails.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            suffer_all(Plan::of_run(), &mut site, histories, &mut Random::new(seed))
        }));
        stop.store(true, Ordering::Relaxed);
        results = Some(ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        for worker in running {
            worker.join().expect("no panic").expect("no program sees an error");
        }
    });
    let (pauses, long) = results.expect("the faults have ended");
    eprintln!("{}", pauses.table());
    for worker in &mut workers {
        let problems = worker.check(&Crash::of_services());
        assert_eq!(problems, Vec::<String>::new(), "no acknowledged change is lost");
        worker.close();
    }
    eprintln!("{} operations on shared names are linearizable", histories.check());
    assert_eq!(long, Vec::<String>::new(), "pauses above the limits");
}

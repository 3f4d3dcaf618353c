//! Many random faults of management and metadata. The cluster of this test has 3 management nodes,
//! 2 groups of 2 metadata targets, and 1 group of 3 metadata targets. Each node runs on its own
//! host, in a network namespace. Two mounts create, rename and remove files. The mounts also share
//! objects in directories of all groups: names, pairs of names, and registers. Programs rename
//! files between the names of a pair, and read and overwrite registers under locks. A third mount
//! has its own host, which a fault disconnects for longer than the lease of this mount.
//!
//! No acknowledged operation may be lost, and only a program on the third mount may get an error.
//! The operations on shared objects must be linearizable, and no two programs may hold conflicting
//! locks. No pause of a program on the two mounts may be longer than [`Fault::longest_pause`]. The
//! test prints a table of the pauses. The environment variable `SKEP_FAULTS` sets the number of
//! faults of management and metadata, `SKEP_FAULT_PLAN` their kind ([`Plan`]), and `SKEP_TEST_SEED`
//! the seed that determines the faults.

mod cut_off;
mod fault;
mod histories;
mod objects;
mod site;

use cut_off::CutOffProgram;
use fault::{Fault, Plan};
use histories::Histories;
use objects::SHARING;
use site::{CUT_OFF, MOUNTS, Site, kind};
use skep_testkit::Random;
use skep_testkit::program::run;
use skep_testkit::workload::{Crash, Worker};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum number of take-overs of all groups while [`Plan::FrozenDisk`] freezes disks five times.
const MOST_TAKE_OVERS: usize = 2;

/// The faults of each kind of node, with the pauses that these faults caused.
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

/// Causes one fault at a time, until `SKEP_FAULTS` faults have hit management or metadata.
/// Disconnections of the third mount do not count as such faults. Returns the pauses that the
/// faults caused, and the faults whose pauses exceed the limits.
fn suffer_all(
    plan: Plan,
    site: &mut Site,
    (histories, cut_off): (&Histories, &CutOffProgram),
    random: &mut Random,
) -> (Pauses, Vec<String>) {
    let count: u64 = std::env::var("SKEP_FAULTS").map_or(20, |it| it.parse().expect("a number"));
    let (mut pauses, mut long) = (Pauses::default(), Vec::new());
    let mut take_overs = Vec::new();
    let mut number = 0;
    while number < count {
        let (fault, name, time) = plan.choose(random, site);
        number += u64::from(fault != Fault::CutMount);
        histories.take_pause();
        let before = site.primaries();
        site.suffer(fault, name, time);
        site.wait_until_all_serve(histories);
        cut_off.wait_until_it_goes_on();
        let pause = histories.take_pause();
        let after = site.primaries();
        take_overs
            .push(before.iter().zip(&after).filter(|(before, after)| before != after).count());
        let until = run("date", ["-u", "+%T"]);
        let until = until.trim();
        eprintln!("{number}: {fault:?} of {name} for {time:?}, until {until}: pause {pause:?}");
        if pause > fault.longest_pause() {
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
fn many_faults_lose_no_data_and_pause_programs_only_briefly() {
    let seed = Random::seed_of_run();
    eprintln!("seed {seed}");
    let mut site = Site::new();
    let roots = MOUNTS.map(|name| site.scratch.join(name));
    let numbered = (0..).zip(&roots);
    let mut workers: Vec<_> =
        numbered.map(|(number, root)| Worker::new(root, number, seed)).collect();
    let histories = Histories::new(&roots[0], &site.make_directories(), &workers);
    let (stop, cut_off) = (AtomicBool::new(false), CutOffProgram::new(&roots[0]));
    let cut_off_root = site.scratch.join(CUT_OFF);
    let mut results = None;
    std::thread::scope(|scope| {
        let (histories, cut_off, stop) = (&histories, &cut_off, &stop);
        let cut_off_root = &cut_off_root;
        scope.spawn(move || cut_off.run(cut_off_root, stop));
        for program in 0..MOUNTS.len() * SHARING {
            let mount = &roots[program / SHARING];
            scope.spawn(move || histories.record(mount, program, stop));
        }
        let running: Vec<_> =
            workers.iter_mut().map(|worker| scope.spawn(|| worker.run(stop))).collect();
        // The programs must end even if an assertion about the faults fails.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let programs = (histories, cut_off);
            suffer_all(Plan::of_run(), &mut site, programs, &mut Random::new(seed))
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
    eprintln!("{} errors on the disconnected mount", cut_off.check(&roots[0]));
    eprintln!("{} operations on shared objects are linearizable", histories.check());
    assert_eq!(long, Vec::<String>::new(), "pauses above the limits");
}

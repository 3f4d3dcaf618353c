//! Trials with two mounts. On each mount, two threads make calls, and all four threads work at the
//! same time.
//!
//! A trial has rounds. In each round, every thread first makes calls in its own directory. Then all
//! threads make some bursts of calls on a few shared names. All threads begin a burst at the same
//! moment. After a burst, an order of its calls must explain their results and the names that both
//! mounts show ([`crate::order`]). Each round has new shared names, and each burst begins with the
//! names that the previous burst has left.

use crate::kills::Kill;
use crate::operation::{self, Operation, User};
use crate::order;
use crate::own_tree::OwnTree;
use crate::shared_call::{NAMES, Recorded, SharedCall, SharedNames, SharedPath, any_byte};
use crate::shared_tree::SharedTree;
use crate::watch::Watch;
use skep_testkit::{Cluster, Random, Scratch};
use std::fmt;
use std::path::PathBuf;
use std::sync::Barrier;

/// Number of threads of both mounts.
const THREADS: usize = 4;
/// Number of calls of each thread in its own directory in each round.
const OWN_CALLS: usize = 10;
/// Number of bursts in each round.
const BURSTS: usize = 5;
/// Numbers of calls of a thread in a burst.
const BURST_CALLS: &[usize] = &[3, 4];
/// Number of rounds after which the trial compares the directories of the threads.
const ROUNDS_BETWEEN_COMPARISONS: usize = 5;
/// Average number of bursts, and of the calls in own directories, between two kills.
const KILL_EVERY: usize = 15;
/// Offsets at which calls write. The inline bytes of a file end at byte 16,384, so a mount stores
/// the bytes of a write at the second offset on storage.
const OFFSETS: &[u64] = &[0, 20_480];

/// Returns the number of a thread's mount.
fn mount_of(thread: usize) -> usize {
    thread % 2
}

/// A cluster with two mounts.
pub(crate) struct ConcurrentTrial {
    cluster: Cluster,
    mounts: [PathBuf; 2],
    scratch: Scratch,
    watch: Watch,
    runs: u32,
}

/// The numbers of the bursts and calls of a trial.
#[derive(Default)]
pub(crate) struct Figures {
    bursts: usize,
    /// The number of calls on shared names.
    calls: usize,
    /// The number of these calls that ran at the same time as a call of another thread.
    pub(crate) concurrent: usize,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bursts, calls, concurrent } = self;
        write!(
            f,
            "{bursts} bursts with {calls} calls, {concurrent} of these calls overlap other calls"
        )
    }
}

impl Figures {
    fn add(&mut self, threads: &[Vec<Recorded>]) {
        self.bursts += 1;
        for (thread, calls) in threads.iter().enumerate() {
            let others = threads.iter().enumerate().filter(|(other, _)| *other != thread);
            let others: Vec<&Recorded> = others.flat_map(|(_, calls)| calls).collect();
            let is_concurrent = |call: &&Recorded| others.iter().any(|it| it.overlaps(call));
            self.calls += calls.len();
            self.concurrent += calls.iter().filter(is_concurrent).count();
        }
    }
}

impl ConcurrentTrial {
    /// Creates a trial. The mounts must not cache names and attributes.
    pub(crate) fn new(cluster: Cluster, mounts: [PathBuf; 2]) -> Self {
        let watch = Watch::new(cluster.data());
        Self { cluster, mounts, scratch: Scratch::new(), watch, runs: 0 }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Makes about `calls` calls. The seed determines the calls of each thread, but not which calls
    /// run at the same time.
    ///
    /// # Errors
    /// Describes the first wrong result or tree, with the calls of its burst.
    pub(crate) fn run(&mut self, calls: usize, seed: u64) -> Result<Figures, String> {
        self.runs += 1;
        let mut random = Random::new(seed);
        let mut own: Vec<_> = (0..THREADS).map(|thread| self.own_tree(thread)).collect();
        let mut figures = Figures::default();
        for round in 1_usize.. {
            let in_round = |what: String| format!("round {round}: {what}");
            self.own_calls(&mut own, &mut random).map_err(in_round)?;
            self.bursts(round, &mut random, &mut figures).map_err(in_round)?;
            let is_last = round * THREADS * OWN_CALLS + figures.calls >= calls;
            if is_last || round.is_multiple_of(ROUNDS_BETWEEN_COMPARISONS) {
                self.watch.begins(&"comparison of the threads' own directories");
                own.iter().try_for_each(OwnTree::compare).map_err(in_round)?;
            }
            if is_last {
                break;
            }
        }
        self.watch.ends();
        own.into_iter().for_each(OwnTree::remove);
        Ok(figures)
    }

    fn own_tree(&self, thread: usize) -> OwnTree {
        let name = format!("own-{}-{thread}", self.runs);
        let places = self.mounts.each_ref().map(|root| root.join(&name));
        OwnTree::new(self.scratch.directory(&name), places, mount_of(thread))
    }

    /// Lets each thread make calls in its own directory.
    fn own_calls(&self, own: &mut [OwnTree], random: &mut Random) -> Result<(), String> {
        let mut calls: Vec<Vec<(User, Operation)>> = Vec::new();
        for _ in 0..own.len() {
            let call = |_| (operation::user(random), operation::operation(random));
            calls.push((0..OWN_CALLS).map(call).collect());
        }
        self.watch.begins(&calls);
        self.may_kill(random);
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let threads = own.iter_mut().zip(&calls);
            let threads = threads.map(|(tree, calls)| scope.spawn(move || tree.calls(calls)));
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|it| it.join().expect("no panic")).collect()
        });
        results.into_iter().collect()
    }

    /// Lets all threads make bursts of calls on new shared names, and then removes these names.
    fn bursts(
        &self,
        round: usize,
        random: &mut Random,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let prefix = format!("shared-{}-{round}-", self.runs);
        let offset = random.one_of(OFFSETS);
        let names = self.mounts.each_ref().map(|root| SharedNames::new(root, &prefix, offset));
        self.watch.begins(&prefix);
        make_names(&names[0], random)?;
        let mut before = read_on_both(&names)?;
        for burst in 1..=BURSTS {
            let calls = random_calls(random);
            self.watch.begins(&calls);
            self.may_kill(random);
            let threads = make_calls(&names, &calls);
            figures.add(&threads);
            let described = |what: String| {
                let history = history(&threads);
                format!(
                    "burst {burst} on {prefix}*:\n{history}\n{what}\nbefore the burst:\n{before}"
                )
            };
            let after = read_on_both(&names).map_err(described)?;
            order::check(&before, &threads, &after)
                .map_err(|what| described(format!("{what}\nafter the burst:\n{after}")))?;
            before = after;
        }
        remove_names(&names[0]);
        match read_on_both(&names)? {
            tree if tree == SharedTree::empty() => Ok(()),
            tree => Err(format!("some names of {prefix}* are left after their removal:\n{tree}")),
        }
    }

    /// Kills a service while the next calls run, with a probability of one in [`KILL_EVERY`].
    fn may_kill(&self, random: &mut Random) {
        let kill = Kill::random(random);
        if random.below(KILL_EVERY) == 0 {
            kill.start(&self.cluster);
        }
    }
}

/// Returns the calls of each thread for a burst.
fn random_calls(random: &mut Random) -> Vec<Vec<SharedCall>> {
    let (exchanges, mut threads) = (random.below(2) == 0, Vec::new());
    for _ in 0..THREADS {
        let len = random.one_of(BURST_CALLS);
        threads.push((0..len).map(|_| SharedCall::random(random, exchanges)).collect());
    }
    threads
}

/// Makes the calls of all threads at the same time.
fn make_calls(names: &[SharedNames; 2], calls: &[Vec<SharedCall>]) -> Vec<Vec<Recorded>> {
    let starts = Barrier::new(calls.len());
    std::thread::scope(|scope| {
        let threads = calls.iter().enumerate().map(|(thread, calls)| {
            let (starts, names) = (&starts, &names[mount_of(thread)]);
            scope.spawn(move || {
                starts.wait();
                calls.iter().map(|call| names.record(*call)).collect::<Vec<_>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|it| it.join().expect("no panic")).collect()
    })
}

/// Reads the shared names on both mounts, while no call runs.
fn read_on_both(names: &[SharedNames; 2]) -> Result<SharedTree, String> {
    let [first, second] = names.each_ref().map(SharedTree::read);
    let (first, second) = (first?, second?);
    if first != second {
        return Err(format!("the mounts show different trees:\n{first}\n{second}"));
    }
    Ok(first)
}

/// Creates a random part of the shared names.
fn make_names(names: &SharedNames, random: &mut Random) -> Result<(), String> {
    let mut calls = Vec::new();
    for name in 0..NAMES {
        match random.below(4) {
            0 => {}
            1 => calls.extend(new_file(SharedPath { directory: None, name }, random)),
            _ => {
                calls.push(SharedCall::MakeDirectory(name));
                let path = SharedPath { directory: Some(name), name: random.below(NAMES) };
                if random.below(2) == 0 {
                    calls.extend(new_file(path, random));
                }
            }
        }
    }
    for call in calls {
        names.call(call).map_err(|error| format!("{call:?}: {error}"))?;
    }
    Ok(())
}

/// Returns the calls that create a file with bytes.
fn new_file(path: SharedPath, random: &mut Random) -> [SharedCall; 2] {
    [SharedCall::Create(path), SharedCall::Write(path, any_byte(random))]
}

/// Removes all shared names. The caller checks that none is left.
fn remove_names(names: &SharedNames) {
    for name in 0..NAMES {
        for child in 0..NAMES {
            names.call(SharedCall::Unlink(SharedPath { directory: Some(name), name: child })).ok();
        }
        names.call(SharedCall::Unlink(SharedPath { directory: None, name })).ok();
        names.call(SharedCall::RemoveDirectory(name)).ok();
    }
}

/// Lists calls in the order of their begin.
fn history(threads: &[Vec<Recorded>]) -> String {
    let threads = threads.iter().enumerate();
    let mut all: Vec<(usize, &Recorded)> =
        threads.flat_map(|(thread, calls)| calls.iter().map(move |it| (thread, it))).collect();
    all.sort_by_key(|(_, it)| it.began);
    let line = |(thread, it): &(usize, &Recorded)| {
        let [began, ended] = [it.began, it.ended].map(|at| (at - all[0].1.began).as_micros());
        let (call, result, mount) = (it.call, it.result, mount_of(*thread));
        format!("    {began}..{ended} us, thread {thread}, mount {mount}: {call:?} -> {result:?}")
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

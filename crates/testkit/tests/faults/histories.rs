//! Programs that use the same objects through two mounts, and their pauses.

use crate::objects::{LockCall, LongestCall, Name, Pair, Register, SHARING, SharedObject};
use crate::site::MOUNTS;
use skep_testkit::workload::Worker;
use skep_testkit::{PATIENCE, Random, wait_for};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Number of operations after which a program has very probably used objects of all groups.
const ROUNDS: u64 = 30;

/// A shared directory, with the metadata group that has its names.
pub(crate) struct SharedDirectory {
    /// The name of the directory below a mount point.
    pub(crate) name: String,
    /// Id of the group.
    pub(crate) group: u64,
}

/// The shared objects, and the pauses of all programs.
pub(crate) struct Histories {
    objects: Vec<Box<dyn SharedObject>>,
    longest: LongestCall,
    /// Number of finished operations of each program that uses shared objects.
    rounds: [AtomicU64; MOUNTS.len() * SHARING],
    /// Number of finished operations of each [`Worker`], and the time of its longest operation in
    /// microseconds.
    workers: Vec<(Arc<AtomicU64>, Arc<AtomicU64>)>,
}

impl Histories {
    /// Creates the shared objects in these directories below the mount point `mount`.
    pub(crate) fn new(mount: &Path, directories: &[SharedDirectory], workers: &[Worker]) -> Self {
        let mut objects: Vec<Box<dyn SharedObject>> = Vec::new();
        for (number, SharedDirectory { name, group }) in directories.iter().enumerate() {
            let place = Path::new(name);
            objects.push(Box::new(Name::new(place.join("name"))));
            for (name, call) in [("flock", LockCall::Flock), ("fcntl", LockCall::Fcntl)] {
                objects.push(Box::new(Register::new(mount, place.join(name), call)));
            }
            let mut later = directories[number + 1..].iter();
            if let Some(other) = later.find(|other| other.group != *group) {
                let [from, to] = [place, Path::new(&other.name)]
                    .map(|directory| directory.join(format!("moved-{number}")));
                objects.push(Box::new(Pair::new([from, to])));
            }
        }
        Self {
            objects,
            longest: LongestCall::default(),
            rounds: Default::default(),
            workers: workers.iter().map(|it| (it.operations(), it.longest_us())).collect(),
        }
    }

    /// Uses the shared objects through the mount `mount` until `stop` is set.
    pub(crate) fn record(&self, mount: &Path, program: usize, stop: &AtomicBool) {
        let mut random = Random::new(program as u64);
        while !stop.load(Ordering::Relaxed) {
            let object = &self.objects[random.below(self.objects.len())];
            if object.is_used_by(program) {
                object.operate(mount, &mut random, &self.longest);
                self.rounds[program].fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Waits until each program has performed operations on objects of all groups.
    pub(crate) fn wait_until_all_go_on(&self) {
        let counters: Vec<&AtomicU64> =
            self.rounds.iter().chain(self.workers.iter().map(|(count, _)| &**count)).collect();
        let before: Vec<_> = counters.iter().map(|it| it.load(Ordering::SeqCst)).collect();
        wait_for("all programs go on", PATIENCE, || {
            let mut rounds = counters.iter().zip(&before);
            rounds.all(|(now, before)| now.load(Ordering::SeqCst) > before + ROUNDS).then_some(())
        });
    }

    /// Waits until each program has made progress. After that, returns the longest pause since the
    /// previous call of this function. A pause is the duration of a single call on a shared object,
    /// or of a single operation of a [`Worker`].
    pub(crate) fn take_pause(&self) -> Duration {
        self.wait_until_all_go_on();
        let of_workers = self.workers.iter().map(|(_, longest)| longest.swap(0, Ordering::SeqCst));
        Duration::from_micros(of_workers.fold(self.longest.take_us(), u64::max))
    }

    /// Checks the operations on all objects. Returns the number of operations.
    pub(crate) fn check(&self) -> usize {
        self.objects.iter().map(|it| it.check()).sum()
    }
}

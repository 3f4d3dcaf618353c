//! Programs that use the same names through two mounts, and the record of their operations.

use crate::site::{GROUPS, MOUNTS};
use skep_testkit::linearizable::{self, Operation, Outcome};
use skep_testkit::{PATIENCE, Random, wait_for};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of shared names. Each name is in a directory of its own, and each group has directories.
pub(crate) const NAMES: usize = 3 * GROUPS.len();
/// Number of programs on each mount that use the shared names.
pub(crate) const SHARING: usize = 2;
/// Number of operations after which a program has very probably used names of all groups.
pub(crate) const ROUNDS: u64 = 30;

/// The operations on each shared name, and the pauses of the programs that perform them.
#[derive(Default)]
pub(crate) struct Histories {
    /// The paths of the shared names, relative to a mount point.
    paths: Vec<PathBuf>,
    names: [Mutex<Vec<Operation>>; NAMES],
    longest_us: AtomicU64,
    rounds: [AtomicU64; MOUNTS.len() * SHARING],
}

fn file_of(file: std::io::Result<std::fs::Metadata>, path: &Path) -> Option<u64> {
    match file {
        Ok(found) => Some(found.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("lookup of {}: {error}", path.display()),
    }
}

/// Performs one operation on a name.
fn operate(path: &Path, choice: usize) -> Outcome {
    match choice {
        0 | 1 => match File::create_new(path) {
            Ok(file) => Outcome::Created(file.metadata().expect("an open file").ino()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Outcome::Exists,
            Err(error) => panic!("creation of {}: {error}", path.display()),
        },
        2 => match std::fs::remove_file(path) {
            Ok(()) => Outcome::Removed,
            Err(error) if error.kind() == ErrorKind::NotFound => Outcome::Absent,
            Err(error) => panic!("removal of {}: {error}", path.display()),
        },
        _ => file_of(std::fs::symlink_metadata(path), path).map_or(Outcome::Absent, Outcome::Found),
    }
}

impl Histories {
    /// Begins the histories of the names with these paths, relative to a mount point.
    pub(crate) fn of(paths: Vec<PathBuf>) -> Self {
        Self { paths, ..Self::default() }
    }

    /// Uses the shared names through one mount until `stop` is set.
    pub(crate) fn record(&self, mount: &Path, program: usize, stop: &AtomicBool) {
        let mut random = Random::new(program as u64);
        while !stop.load(Ordering::Relaxed) {
            let name = random.below(NAMES);
            let path = mount.join(&self.paths[name]);
            let began = Instant::now();
            let outcome = operate(&path, random.below(4));
            let ended = Instant::now();
            self.names[name].lock().expect("no panic").push(Operation { began, ended, outcome });
            let took = u64::try_from((ended - began).as_micros()).expect("a short time");
            self.longest_us.fetch_max(took, Ordering::SeqCst);
            self.rounds[program].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits until each program has performed operations on names of all groups.
    pub(crate) fn wait_until_all_go_on(&self) {
        let before: Vec<_> = self.rounds.iter().map(|it| it.load(Ordering::SeqCst)).collect();
        wait_for("all programs go on", PATIENCE, || {
            let mut rounds = self.rounds.iter().zip(&before);
            rounds.all(|(now, before)| now.load(Ordering::SeqCst) > before + ROUNDS).then_some(())
        });
    }

    /// Waits until each program has made progress. Then returns the longest pause since the last
    /// call.
    pub(crate) fn take_pause(&self) -> Duration {
        self.wait_until_all_go_on();
        Duration::from_micros(self.longest_us.swap(0, Ordering::SeqCst))
    }

    /// Checks the operations on all names. Returns the number of operations.
    pub(crate) fn check(&self) -> usize {
        let mut count = 0;
        for (name, operations) in self.names.iter().enumerate() {
            let operations = operations.lock().expect("no panic");
            let path = self.paths[name].display();
            linearizable::check(&operations).unwrap_or_else(|why| panic!("{path}: {why}"));
            count += operations.len();
        }
        count
    }
}

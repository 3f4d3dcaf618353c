//! Kills of single services while calls run.

use rustix::process::Signal;
use skep_testkit::{Cluster, PATIENCE, Random, wait_for};
use std::time::{Duration, Instant};

/// Roles of the services that the tests kill. Metadata and storage occur more often than
/// management.
const ROLES: &[&str] = &["management", "metadata", "metadata", "storage", "storage"];
/// Maximum delay between the begin of a call and the kill of a service, in microseconds.
const LONGEST_DELAY_US: usize = 3000;

/// The kill of a single service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kill {
    role: &'static str,
    delay_us: u64,
}

impl Kill {
    /// Returns a random kill.
    pub(crate) fn random(random: &mut Random) -> Self {
        let delay_us = random.below(LONGEST_DELAY_US) as u64;
        Self { role: random.one_of(ROLES), delay_us }
    }

    /// Lets a thread kill a single service by SIGKILL after the delay.
    pub(crate) fn start(self, cluster: &Cluster) {
        let victims = wait_for("a service to kill", PATIENCE, || {
            let found = cluster.processes(self.role);
            (!found.is_empty()).then_some(found)
        });
        // Kill only one service with this role. The choice of the service depends on the delay,
        // which is random.
        let victim = victims[self.delay_us as usize % victims.len()].clone();
        std::thread::spawn(move || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(self.delay_us) {
                std::hint::spin_loop();
            }
            victim.signal(Signal::KILL);
        });
    }
}

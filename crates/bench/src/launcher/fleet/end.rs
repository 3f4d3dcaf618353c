//! Ends a run: removes the files if the run has failed, and stops all agents.

use super::{Fleet, Turn};
use crate::launcher::link::Link;
use crate::launcher::protocol::{Answer, Order, WorkerMessage};
use crate::limits::END_PATIENCE;
use crate::progress::is_interrupted;
use skep_types::Result;
use std::collections::BTreeSet;
use std::time::Duration;

impl Fleet {
    /// Ends a run with the result `result`. If the run failed after its first measured result,
    /// returns the reason.
    ///
    /// # Errors
    /// The error of the run, if it failed before its first measured result.
    pub(crate) fn conclude(
        &mut self,
        result: Result<()>,
        was_measured: bool,
    ) -> Result<Option<String>> {
        let Err(error) = result else {
            // After this order, the workers do not remove files.
            self.send_all(&Order::Finish);
            return Ok(None);
        };
        self.clean_after_failure();
        match was_measured {
            true => Ok(Some(error.context().to_owned())),
            false => Err(error),
        }
    }

    /// Makes the workers that still run remove the files of all workers, including the files of
    /// dead workers.
    fn clean_after_failure(&mut self) {
        if !self.has_begun || is_interrupted() {
            // Send no order: a worker that has not received `Finish` removes its files when its
            // input ends.
            return;
        }
        let hosts = self.hosts;
        let is_lost = |rank: &u32| self.dead.contains(rank) || self.hung.contains(rank);
        let living: BTreeSet<u32> = (0..self.processes).filter(|rank| !is_lost(rank)).collect();
        let mut missing = living.clone();
        let Some(first) = living.first().map(|rank| *rank as usize % hosts) else { return };
        let dead: Vec<u32> = self.dead.iter().copied().collect();
        for (number, link) in self.links[..hosts].iter_mut().enumerate() {
            let dead = if number == first { dead.clone() } else { Vec::new() };
            link.send(&Order::Clean { dead });
        }
        // This function ignores an error of the clean-up, because that error would hide the reason
        // for the failure of the run.
        let _ = self.wait("cleaning up", END_PATIENCE, |fleet, _, answer| {
            match answer {
                Answer::Worker { rank, message: WorkerMessage::Cleaned } => {
                    missing.remove(&rank);
                }
                Answer::Died { rank, .. } => {
                    fleet.dead.insert(rank);
                    missing.remove(&rank);
                }
                _ => {}
            }
            Ok(if missing.is_empty() { Turn::Complete } else { Turn::Other })
        });
    }
}

impl Drop for Fleet {
    /// Waits until all agents have exited, but at most for [`END_PATIENCE`].
    fn drop(&mut self) {
        self.links.iter_mut().for_each(Link::dismiss);
        let deadline = skep_env::now() + END_PATIENCE;
        while !self.links.iter_mut().all(Link::has_ended) && skep_env::now() < deadline {
            // Reads answers while it waits. If the output pipe of an agent were full, the agent
            // would block and not exit.
            if self.inbox.recv_timeout(Duration::from_millis(20)).is_err() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    }
}

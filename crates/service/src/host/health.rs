//! The health of running targets: probes through the mailboxes of their threads.
//!
//! A target answers a probe after a small read of its device, so the target does not answer if its
//! thread or its device hangs. This module contains only the probes. The module `targets` reports
//! the results to management.

use skep_types::map::{Condition, TargetHealth};
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time without an answer after which a target counts as hung. A busy device answers within a
/// second. A device that resets itself needs some seconds.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// The newest answer of a target to a probe, and its time.
#[derive(Debug, Default)]
struct Answer {
    number: u64,
    health: TargetHealth,
}

/// A request to a target's thread to report its health.
#[derive(Debug)]
pub struct Probe {
    number: u64,
    /// The mutex protects the answer, which two threads use. A thread that has locked this mutex
    /// locks no other mutex.
    answer: Arc<Mutex<Answer>>,
}

impl Probe {
    /// Reports the health of the target to the main thread.
    pub fn answer(self, health: TargetHealth) {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        *answer = Answer { number: self.number, health };
    }
}

/// The probes of one target.
#[derive(Debug, Default)]
pub(super) struct Probes {
    answer: Arc<Mutex<Answer>>,
    sent: Cell<u64>,
    sent_at: Cell<Duration>,
}

impl Probes {
    /// Returns the health of the target. If the target has answered the last probe, the method
    /// calls `send` to send the next probe.
    pub(super) fn health(&self, now: Duration, send: impl FnOnce(Probe)) -> TargetHealth {
        let (number, health) = {
            let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
            (answer.number, answer.health.clone())
        };
        if number == self.sent.get() {
            self.sent.set(number + 1);
            self.sent_at.set(now);
            send(Probe { number: number + 1, answer: Arc::clone(&self.answer) });
        } else if now.saturating_sub(self.sent_at.get()) > HUNG_AFTER {
            let problem = "the target does not answer the service that runs it, so its device may \
                           hang";
            return TargetHealth::new(Condition::Hung, problem);
        }
        health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_without_a_probe_reply_counts_as_hung() {
        let probes = Probes::default();
        let mut sent = None;
        let mut at = |seconds| {
            probes.health(Duration::from_secs(seconds), |probe| sent = Some(probe)).condition
        };
        assert_eq!(at(1), Condition::Serving);
        assert_eq!(at(10), Condition::Serving);
        assert_eq!(at(12), Condition::Hung);
        sent.take().unwrap().answer(TargetHealth::new(Condition::ReadOnly, "failed"));
        let mut at = |seconds| {
            probes.health(Duration::from_secs(seconds), |probe| sent = Some(probe)).condition
        };
        assert_eq!(at(13), Condition::ReadOnly);
        sent.take().unwrap().answer(TargetHealth::default());
        let health = probes.health(Duration::from_secs(14), |_| {});
        assert_eq!(health, TargetHealth::default());
    }
}

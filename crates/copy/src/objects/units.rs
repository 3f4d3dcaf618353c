//! The units of work that copy one large object or file. A unit takes one index after another,
//! until no index is left or a unit has failed. So all threads can work on the same object.
//!
//! The modules [`super::parts`] and [`super::pieces`] define the part of the object or file for
//! which an index stands.

use crate::failure::Failure;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The state that all units of one object share.
#[derive(Debug, Default)]
pub(super) struct Units {
    next: AtomicU64,
    /// Number of units that have not ended yet.
    running: AtomicU64,
    has_failed: AtomicBool,
}

/// The state of a unit after one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The unit has more to do.
    GoesOn,
    /// The unit has ended, and other units still run or a unit has failed.
    Ended,
    /// All other units have ended before this unit, and no unit has failed.
    AllDone,
}

impl Units {
    /// Creates the state for `count` units.
    pub(super) fn new(count: u64) -> Self {
        Self { running: AtomicU64::new(count), ..Self::default() }
    }

    /// Sets the number of units that the caller will run.
    pub(super) fn set(&self, count: u64) {
        self.running.store(count, Ordering::Relaxed);
    }

    /// Returns the number of units that have not ended yet.
    pub(super) fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Takes the next index below `end` for which `has_work` returns true, and calls `work` with
    /// it.
    ///
    /// # Errors
    /// The failure that `work` has returned. All units then end.
    pub(super) fn step(
        &self,
        end: u64,
        has_work: impl Fn(u64) -> bool,
        work: impl FnOnce(u64) -> Result<(), Failure>,
    ) -> Result<Step, Failure> {
        while !self.has_failed.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= end {
                break;
            }
            if !has_work(index) {
                continue;
            }
            if let Err(failure) = work(index) {
                self.has_failed.store(true, Ordering::Relaxed);
                self.running.fetch_sub(1, Ordering::AcqRel);
                return Err(failure);
            }
            return Ok(Step::GoesOn);
        }
        let is_last = self.running.fetch_sub(1, Ordering::AcqRel) == 1;
        let is_done = is_last && !self.has_failed.load(Ordering::Relaxed);
        Ok(if is_done { Step::AllDone } else { Step::Ended })
    }
}

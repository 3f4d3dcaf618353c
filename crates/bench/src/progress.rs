//! Progress reports of a run, and its interruption.

use crate::launcher::PhaseRecord;
use crate::net::outcome::{Pair, Sample as LinkSample, Total};
use crate::storage::outcome::Sample as TargetSample;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// A progress report.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// A phase begins.
    Phase {
        /// Its name.
        phase: String,
        /// The repetition, from 1.
        repetition: u32,
    },
    /// A phase has moved on.
    Moved {
        /// Bytes or operations of all processes until now.
        done: u64,
        /// Bytes or operations of the whole phase.
        total: u64,
    },
    /// A condition that does not stop the run, but may matter for its results.
    Note(String),
    /// A result, as soon as it is there.
    Measured(Box<Measurement>),
}

/// One result of a run. The outcome of the run has all of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Measurement {
    /// A phase of [`crate::io`] or [`crate::metadata`], also one that only compared data.
    Phase(PhaseRecord),
    /// A pair of [`crate::net`].
    Link {
        /// The two ends of the link.
        between: Pair,
        /// The measurement; its `pair` is the index of the pair in the whole result.
        #[serde(flatten)]
        sample: LinkSample,
    },
    /// All pairs of [`crate::net`] at the same time.
    Total(Total),
    /// A target of [`crate::storage`].
    Target(TargetSample),
}

impl Progress {
    pub(crate) fn measured(measurement: Measurement) -> Self {
        Self::Measured(Box::new(measurement))
    }
}

/// Set by a signal handler, read by every run of this process.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends all runs of this process soon; each returns the results that it has.
pub fn interrupt() {
    IS_INTERRUPTED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Ordering::Relaxed)
}

//! The progress reports of a run, and the flag that interrupts runs.

use crate::launcher::PhaseRecord;
use crate::net::outcome::{Pair, Sample as LinkSample, Total};
use crate::storage::outcome::Sample as TargetSample;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// A progress report.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// The run begins, and its number of phases is known.
    Planned {
        /// Number of phases in all repetitions together.
        phases: u64,
    },
    /// A phase begins.
    Phase {
        /// Name of the phase.
        phase: String,
        /// The repetition, counted from 1.
        repetition: u32,
    },
    /// A phase has made progress.
    Moved {
        /// Number of bytes or operations that all processes have finished so far.
        done: u64,
        /// Number of bytes or operations of all processes in the whole phase.
        total: u64,
    },
    /// A condition that does not stop the run, but may affect its results.
    Note(String),
    /// A result, which the run reports immediately after the measurement.
    Measured(Box<Measurement>),
}

/// One result of a run. The outcome of the run also contains this result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Measurement {
    /// A phase of [`crate::io`] or [`crate::metadata`], including phases that only compare data.
    Phase(PhaseRecord),
    /// One measurement of a link of [`crate::net`].
    Link {
        /// The two ends of the link.
        between: Pair,
        /// The measurement. The field `pair` of the sample is the index of the pair in the outcome.
        #[serde(flatten)]
        sample: LinkSample,
    },
    /// A measurement of all pairs of [`crate::net`] at the same time.
    Total(Total),
    /// A measurement of one target of [`crate::storage`].
    Target(TargetSample),
}

impl Progress {
    pub(crate) fn measured(measurement: Measurement) -> Self {
        Self::Measured(Box::new(measurement))
    }
}

/// Whether the user has interrupted this process. All runs in this process read this flag.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes all runs of this process end soon. Each interrupted run returns the results that it has
/// measured so far.
pub fn interrupt() {
    IS_INTERRUPTED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_interrupted() -> bool {
    IS_INTERRUPTED.load(Ordering::Relaxed)
}

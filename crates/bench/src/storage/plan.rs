//! The plan of a benchmark of storage targets, and the check of a plan.

use crate::limits::{DEFAULT_PATIENCE_S, MAX_REPETITIONS};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// The work of each target in a benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// Whether to measure writing. Targets write in any case, because reading needs the data. If
    /// `write` is false, the run drops the results of writing.
    pub write: bool,
    /// Whether to measure reading.
    pub read: bool,
    /// Number of files of each target. The target writes or reads all its files at the same time,
    /// with one thread for each file.
    pub threads: u16,
    /// Size of each file in bytes.
    pub size_bytes: u64,
    /// Number of bytes of one transfer.
    pub block_bytes: u32,
    /// Number of repetitions.
    pub repetitions: u32,
    /// Whether one target works at a time, instead of all targets at the same time.
    pub one_by_one: bool,
    /// Seconds without progress of any target after which the run fails.
    pub patience_s: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            write: true,
            read: true,
            threads: 4,
            size_bytes: 256 << 20,
            block_bytes: 1 << 20,
            repetitions: 1,
            one_by_one: false,
            patience_s: DEFAULT_PATIENCE_S,
        }
    }
}

impl Plan {
    /// Checks all values of the plan that can be checked without contacting the targets.
    ///
    /// # Errors
    /// `InvalidArgument`, with a text that lists every mistake in the plan.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        must(self.write || self.read, "the plan measures nothing: enable writing or reading");
        must(
            self.threads > 0,
            "invalid number of files per target (--threads): expected at least 1",
        );
        must(self.block_bytes > 0, "invalid --block-size 0: expected a multiple of 4 KiB");
        must(
            self.size_bytes > 0 && self.size_bytes.is_multiple_of(self.block_bytes.max(1).into()),
            "the size of a file (--size) must be a multiple of the block size (--block-size)",
        );
        must(
            (1..=MAX_REPETITIONS).contains(&self.repetitions),
            &format!(
                "invalid number of repetitions (--repetitions): expected 1 to {MAX_REPETITIONS}"
            ),
        );
        must(
            self.patience_s > 0,
            "invalid limit of 0 s for the time without progress: expected at least 1 s",
        );
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }
}

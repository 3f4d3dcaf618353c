//! The plan of a benchmark of storage targets, and its check.

use crate::limits::{DEFAULT_PATIENCE_S, MAX_REPETITIONS};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// The work of each target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// Measure writing. Targets write in any case, since they need the data for reading; without
    /// this the result is dropped.
    pub write: bool,
    /// Measure reading.
    pub read: bool,
    /// Files of each target, which it writes and reads at the same time.
    pub threads: u16,
    /// Bytes of each file.
    pub size_bytes: u64,
    /// Bytes of one transfer.
    pub block_bytes: u32,
    /// Number of repetitions.
    pub repetitions: u32,
    /// Targets work one after the other, instead of all at the same time.
    pub one_by_one: bool,
    /// Longest time without progress of the targets, in seconds.
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
    /// Checks everything that needs no knowledge of the targets.
    ///
    /// # Errors
    /// `InvalidArgument` with everything that is wrong.
    pub fn check(&self) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        must(self.write || self.read, "the plan measures nothing: enable writing or reading");
        must(self.threads > 0, "at least one thread is needed");
        must(self.block_bytes > 0, "the block size must not be 0");
        must(
            self.size_bytes > 0 && self.size_bytes.is_multiple_of(self.block_bytes.max(1).into()),
            "the size must be a multiple of the block size",
        );
        must(
            (1..=MAX_REPETITIONS).contains(&self.repetitions),
            &format!("repetitions are 1 to {MAX_REPETITIONS}"),
        );
        must(self.patience_s > 0, "patience must not be 0");
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }
}

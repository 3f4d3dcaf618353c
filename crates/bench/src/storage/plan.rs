//! The plan of a benchmark of storage targets, and its check.

use crate::limits::{DEFAULT_PATIENCE_S, MAX_REPETITIONS};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// What targets are to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// Files are written. They always are, since what is read must have been written; without this
    /// it isn't measured.
    pub write: bool,
    /// Files are read.
    pub read: bool,
    /// Files of each target, written and read at the same time.
    pub threads: u16,
    /// Bytes of each file.
    pub size_bytes: u64,
    /// Bytes moved at once.
    pub block_bytes: u32,
    /// How often all is done.
    pub repetitions: u32,
    /// One target after the other, instead of all at the same time.
    pub one_by_one: bool,
    /// How long targets may stand still.
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
    /// Checks what doesn't need a target to be known.
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
        must(self.write || self.read, "nothing is to be measured: neither writing nor reading");
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

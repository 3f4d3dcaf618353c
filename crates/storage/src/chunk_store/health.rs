//! The health of a target. A target is healthy if its device answers, and if the target accepts
//! writes.

use super::{ChunkStore, STATE_FILE};
use skep_env::{Buf, File};
use skep_types::map::{Condition, TargetHealth};
use skep_types::{Error, ErrorCode};
use std::fs::OpenOptions;

/// Length of the read that shows that the device answers. This length is the smallest length that
/// direct I/O permits on all devices.
const PROBED_BYTES: usize = 4096;

/// Returns the reason in the text of a failure. Leaves out the target and the statement that the
/// target refuses writes, because management and the commands add these parts.
fn reason_of(failure: &str) -> &str {
    failure.split_once(", since ").map_or(failure, |(_, reason)| reason)
}

impl ChunkStore {
    /// Returns the health of the target after a small read that bypasses the page cache. If the
    /// device hangs, this function never returns.
    pub(crate) async fn health(&self) -> TargetHealth {
        self.log_end_of_full();
        let read = self.read_device().await;
        if let Some(failure) = self.failure() {
            return TargetHealth::new(Condition::ReadOnly, reason_of(failure.context()));
        }
        match read {
            Err(error) if error.code() != ErrorCode::LimitReached => {
                TargetHealth::new(Condition::ReadOnly, &error.to_string())
            }
            _ => TargetHealth::new(Condition::Serving, &self.problems.warning.borrow()),
        }
    }

    /// If the target was full and now has space, logs the end of this state.
    fn log_end_of_full(&self) {
        let Some((full_for, free)) = self.space.end_of_full(skep_env::now()) else { return };
        tracing::info!(
            "target {} has space again: {} MiB are free; it was full for {} s",
            self.target,
            free >> 20,
            full_for.as_secs()
        );
    }

    async fn read_device(&self) -> Result<(), Error> {
        let path = self.directory.join(STATE_FILE);
        let failed = |error: std::io::Error| Error::from(error).within(path.display());
        let (file, _) = File::open_direct(&path, OpenOptions::new().read(true)).map_err(failed)?;
        file.read_at(Buf::new(PROBED_BYTES), 0).await.map_err(failed)?;
        Ok(())
    }
}

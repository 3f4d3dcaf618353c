//! Bytes that storage does not have: a hole, or the bytes of a file that was removed or truncated
//! meanwhile. Only metadata knows which.

use crate::client::Client;
use crate::inode_state::{FileEnd, InodeState};
use skep_types::Result;
use std::sync::Arc;

/// The reason why storage does not have bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// They are a hole, and read as zeros.
    Hole,
    /// Another client has truncated the file, so the caller must look again.
    Truncated,
}

impl Client {
    /// Finds out why storage does not have bytes that lie before `end`.
    ///
    /// # Errors
    /// Returns `Stale` if the file was removed.
    pub(crate) async fn explain_missing(
        &self,
        state: &Arc<InodeState>,
        end: FileEnd,
    ) -> Result<Missing> {
        self.attributes_after_truncation(state).await?;
        match state.end().truncate_generation == end.truncate_generation {
            true => Ok(Missing::Hole),
            false => Ok(Missing::Truncated),
        }
    }
}

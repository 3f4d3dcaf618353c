//! Ends the inline component of a new file whose first write is larger than this component
//! (docs/design/0009-first-bytes-in-metadata.md, "Files that are large from the first write").
//!
//! The client that has created the file sends no request for this. It writes all bytes to storage,
//! and its next report to metadata contains the end of the component. Before another client can
//! open the file, metadata notifies this client (0008), which then sends the report before it
//! acknowledges the notification. If this client dies first, metadata ends the component when it
//! closes the file of the dead client.

use crate::client::Client;
use crate::files::open_file::OpenFile;
use crate::inode_state::InodeState;
use crate::session::request::ModifyOptions;
use skep_cluster::striping;
use skep_types::Result;
use std::ops::Range;
use std::sync::Arc;

impl Client {
    /// Decides where the first bytes of a file are, before a write of `range`. If the write begins
    /// at byte 0 of an empty file and ends beyond the inline component, the component ends. The
    /// caller reads the pattern of the file after this call.
    pub(crate) async fn place_first_bytes(&self, file: &OpenFile, range: Range<u64>) {
        let pattern = file.pattern();
        let inline = pattern.inline_bytes();
        if inline == 0 || range.start >= inline {
            return;
        }
        let is_large = range.start == 0 && range.end > inline;
        let may_end = is_large && striping::without_inline(pattern).is_some();
        let ending = may_end.then_some(pattern.generation);
        if !file.inode.place_first_bytes(ending, range.end) {
            // Another client may have written to a file that this mount has not created, so
            // metadata decides.
            self.end_inline_of_new(file, range).await;
        }
    }

    /// Waits until the end of an inline component is durable at metadata, if this mount has ended
    /// it or does not know that it is durable. See [`Self::confirm_move`].
    pub(crate) async fn confirm_inline_end(&self, state: &Arc<InodeState>) -> Result<()> {
        if state.has_unreported_end() {
            let durable = ModifyOptions { is_durable: true, ..ModifyOptions::default() };
            self.report_written(state, durable).await?;
        }
        self.confirm_move(state).await
    }

    /// Handles the refusal of a report that contains the end of the inline component. Only a power
    /// loss of metadata can be the reason: another client has opened the file after metadata had
    /// lost the open of this mount. The bytes of this mount then count as lost.
    pub(crate) async fn follow_refused_end(&self, state: &Arc<InodeState>) {
        if let Err(error) = self.confirm_move(state).await {
            tracing::debug!("file {}: cannot request its pattern: {error:#}", state.id);
        }
    }
}

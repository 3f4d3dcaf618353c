//! Ends the inline component of a new file whose first write is larger than this component
//! (docs/design/0009-first-bytes-in-metadata.md, "Files that are large from the first write").
//!
//! In this module, the end of a component is this change of the stripe pattern, not an offset. The
//! client that has created the file sends no request for it. The client writes all bytes to
//! storage, and its next report about the file contains the end. Before another client can open the
//! file, metadata notifies this client (docs/design/0008-shared-files.md), which then sends the
//! report before it acknowledges the notification. If this client dies first, metadata ends the
//! component when it closes the file of the dead client.

use crate::client::Client;
use crate::files::open_file::OpenFile;
use crate::files::sync::is_gone;
use crate::inode_state::InodeState;
use crate::session::request::ModifyOptions;
use skep_cluster::striping;
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::metadata::GetEntryInfo;
use std::ops::Range;
use std::sync::Arc;

impl Client {
    /// Decides, before a write of `range`, whether metadata or storage stores the first bytes of a
    /// file. If the write begins at byte 0 of an empty file and ends beyond the inline component,
    /// the component ends. The caller reads the pattern of the file after this call.
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

    /// If this mount has ended the inline component, waits until metadata has durably recorded this
    /// end. Does nothing if metadata has already confirmed that the record is durable. See
    /// [`Self::confirm_move`].
    pub(crate) async fn confirm_inline_end(&self, state: &Arc<InodeState>) -> Result<()> {
        if state.ending_inline().is_some()
            && let Err(error) = self.confirm_reported_end(state).await
        {
            let may_be_removed = is_gone(&error) && state.life().is_none();
            if !may_be_removed || !self.is_removed(state.id).await {
                return Err(error);
            }
            // The closed file was removed, so none of its bytes can be lost.
            state.compare_end(None);
        }
        self.confirm_move(state).await
    }

    /// Waits until the end of the inline component is durable. If a power loss of metadata has
    /// reverted the report of the end, reports it again.
    async fn confirm_reported_end(&self, state: &Arc<InodeState>) -> Result<()> {
        self.sync_metadata(state, None).await?;
        let Some(generation) = state.ending_inline() else { return Ok(()) };
        // The size of the file may not show whether metadata has recorded the end, for example
        // after a failed write, but the pattern shows it. No other client can have ended the
        // component after a power loss, because metadata lets no other client use the component
        // before the end is recorded.
        let how = CallOptions { durable: true, ..CallOptions::default() };
        let info = self.ask_with(state.id, &GetEntryInfo { inode: state.id }, how).await?;
        let named = info.pattern.filter(|pattern| pattern.generation == generation);
        if state.compare_end(named.map(|pattern| pattern.has_moved_inline())) {
            let durable = ModifyOptions { is_durable: true, ..ModifyOptions::default() };
            self.report_written(state, durable).await?;
        }
        Ok(())
    }

    /// Finds out whether metadata has refused a report because the report ended the inline
    /// component. `ends_inline` is the generation of the pattern with this component. Returns the
    /// error for the caller: `refusal`, or `Io` if the file still has its inline component. `Io`
    /// means that metadata has lost this mount's open in a power loss, and another client has used
    /// the file since. The first bytes that this mount has written are then lost.
    pub(crate) async fn explain_refused_end(
        &self,
        state: &Arc<InodeState>,
        ends_inline: Option<u32>,
        refusal: Error,
    ) -> Error {
        let Some(generation) = ends_inline else { return refusal };
        let info = self.ask(state.id, &GetEntryInfo { inode: state.id }).await;
        let current = info.ok().and_then(|info| info.pattern);
        let has_inline = current
            .is_some_and(|pattern| pattern.generation == generation && pattern.inline_bytes() > 0);
        if !has_inline || !state.end_refused(generation) {
            return refusal;
        }
        let text = format!(
            "file {}: the first bytes that programs on this mount have written to the new file are \
             lost, because metadata has lost the record of this open, and another client has used \
             the file since; write the data again",
            state.id
        );
        Error::new(ErrorCode::Io, text)
    }
}

//! The last step of a write. Checks whether a truncation by another client has removed bytes of the
//! write, or removes the bytes of a failed write.
//!
//! # Writes to a shared file
//! Another client may truncate a shared file at any moment, so the size and the truncate generation
//! that this mount has recorded may be out of date. After storage has acknowledged all pieces of a
//! write, the client asks metadata before it acknowledges the write to the program. For a write
//! beyond the recorded size, the client reports the new size. For any other write, it requests the
//! attributes. Metadata replies to both requests only after the end of a truncation in progress. If
//! the truncate generation in the reply is newer than the generation of the write, the truncation
//! may have removed some bytes of the write. The client then writes all bytes again, at the new end
//! of the file if the write is an append.
//!
//! # Writes that arrive late
//! Each write request contains the truncate generation in which the write began. Storage and
//! metadata refuse the write with `EndMoved` if they have executed a newer truncation of the file.
//! The client then asks metadata for the size of the file, and writes all bytes again.
//!
//! `write`, `copy` and `allocate` send the requests to storage. `files::report` reports the sizes
//! of files that are not shared.

use crate::client::Client;
use crate::inode_state::guards::WriteGuard;
use crate::inode_state::{FileEnd, InodeState};
use crate::session::request::ModifyOptions;
use skep_types::{Attributes, Error, ErrorCode, InodeId, Result};
use skep_wire::metadata::{AwaitTruncation, AwaitTruncationReply, TrimFile};
use std::ops::Range;
use std::sync::Arc;

/// A write that storage has not acknowledged yet. If the client cancels the write, the requests of
/// the write may still arrive at storage. So a drop of this value records in the inode that chunk
/// files may reach up to the end of the write. A later truncation then includes these chunk files.
#[derive(Debug)]
pub(crate) struct UnfinishedWrite<'a> {
    writing: &'a WriteGuard,
    /// Offset at which the write ends. `None` means that storage has answered all requests of the
    /// write.
    end: Option<u64>,
}

impl<'a> UnfinishedWrite<'a> {
    /// Begins a write that ends at the offset `end`.
    pub(crate) fn new(writing: &'a WriteGuard, end: u64) -> Self {
        Self { writing, end: Some(end) }
    }

    /// Ends the write after storage has answered all its requests.
    pub(crate) fn end(mut self) {
        self.end = None;
    }
}

impl Drop for UnfinishedWrite<'_> {
    fn drop(&mut self) {
        if let Some(end) = self.end {
            self.writing.note_reach(end);
        }
    }
}

impl Client {
    /// Completes a write of `range` after storage has acknowledged all its pieces.
    /// `truncate_generation` is the generation that this mount had recorded when the write began.
    /// Returns `false` if another client has truncated the file after the write had begun; the
    /// caller must then write the bytes again.
    pub(crate) async fn complete_write(
        &self,
        state: &Arc<InodeState>,
        writing: &WriteGuard,
        range: Range<u64>,
        truncate_generation: u64,
    ) -> Result<bool> {
        if writing.note_write_unless_shared(&range, truncate_generation) {
            return Ok(true);
        }
        let end = state.end();
        if end.truncate_generation != truncate_generation {
            return Ok(false);
        }
        if range.end <= end.size {
            let attributes = self.attributes_after_truncation(state).await?;
            let size = attributes.size;
            if attributes.truncate_generation > truncate_generation {
                return Ok(false);
            }
            if range.end <= size {
                writing.note_confirmed_write(range.end);
                return Ok(true);
            }
            // Metadata has lost the reported file size in a power loss, so the client reports the
            // size again.
        }
        let mut report = writing.report_with(&range);
        if report.extent.truncate_generation != truncate_generation {
            return Ok(false);
        }
        if report.must_measure {
            report.extent.end = report.extent.end.max(self.measure(state).await?);
            report.extent.may_leave_holes = true;
        }
        let attributes =
            self.send_report(state, Some(report.extent), ModifyOptions::default()).await?;
        state.reported(&report, &attributes, false, skep_env::now());
        // A lower truncate generation in the reply means that metadata has lost a truncation in a
        // power loss. `fsync` reports that loss.
        Ok(attributes.truncate_generation <= truncate_generation)
    }

    /// Requests the size of a file from metadata again, after a server has refused a write with
    /// `EndMoved`. `before` is the size that this mount had recorded when the write began.
    ///
    /// # Errors
    /// Returns `Io` if the size is still `before`.
    pub(crate) async fn follow_end(
        &self,
        state: &Arc<InodeState>,
        before: FileEnd,
        refusal: Error,
    ) -> Result<()> {
        self.attributes_after_truncation(state).await?;
        if state.end() != before {
            return Ok(());
        }
        // Return an error, because the size has not changed, so the client would repeat the refused
        // write for ever.
        let text = format!(
            "cannot write to file {}: storage has recorded a truncation that metadata does not \
             have; if metadata was restored from an older copy, restart the storage services: \
             {refusal}",
            state.id
        );
        tracing::error!("{text}");
        Err(Error::new(ErrorCode::Io, text))
    }

    /// Finds out why storage has refused a write with `Corrupt`. Returns without an error if the
    /// file was truncated after the write had begun; the caller then repeats the write. `before` is
    /// the size that this mount had recorded when the write began.
    ///
    /// # Errors
    /// - `Stale` if the file was removed.
    /// - `refusal`, the error of storage, if a chunk file is lost or damaged.
    pub(crate) async fn explain_lost(
        &self,
        state: &Arc<InodeState>,
        before: FileEnd,
        refusal: Error,
    ) -> Result<()> {
        self.attributes_after_truncation(state).await?;
        if state.end().truncate_generation != before.truncate_generation {
            return Ok(());
        }
        tracing::error!("cannot write to file {}: {refusal}", state.id);
        Err(refusal)
    }

    /// Waits for the end of a truncation in progress, and returns the attributes that metadata then
    /// has.
    ///
    /// # Errors
    /// Returns `Stale` if the file was removed.
    pub(crate) async fn attributes_after_truncation(
        &self,
        state: &Arc<InodeState>,
    ) -> Result<Attributes> {
        self.await_truncation(state).await.map(|reply| reply.attributes)
    }

    /// Like [`Self::attributes_after_truncation`], but also returns the chunk files that clients
    /// have reported as synced.
    pub(crate) async fn await_truncation(
        &self,
        state: &Arc<InodeState>,
    ) -> Result<AwaitTruncationReply> {
        let (inode, sent) = (state.id, skep_env::now());
        match self.ask(inode, &AwaitTruncation { inode }).await {
            Ok(reply) => {
                self.note_attributes(&mut reply.attributes.clone(), sent);
                Ok(reply)
            }
            Err(error) if error.code() == ErrorCode::NotFound => {
                let text = format!(
                    "cannot use file {inode}: a power loss of metadata lost the record that this \
                     client had the file open, and another client then removed the file"
                );
                Err(Error::new(ErrorCode::Stale, text))
            }
            Err(error) => {
                Err(error.within(format_args!("cannot get the attributes of file {inode}")))
            }
        }
    }

    /// Removes the bytes that a failed write left beyond the end of a shared file. Metadata
    /// truncates the chunk files and makes all other clients repeat their writes in progress, so no
    /// acknowledged byte of these writes is lost. If metadata refuses the request, the bytes stay,
    /// and this function only logs the error.
    pub(crate) async fn trim(&self, inode: InodeId) {
        let how = ModifyOptions { truncates: true, ..ModifyOptions::default() };
        let sent = skep_env::now();
        match self.modify(inode, TrimFile { inode }, how, |_, _| ()).await {
            Ok(mut reply) => {
                let version = reply.attributes.change_counter;
                self.mount().caches.changed_by_us(inode, version);
                self.note_attributes(&mut reply.attributes, sent);
            }
            Err(error) => tracing::debug!(
                "file {inode}: cannot remove the bytes of a failed operation: {error}"
            ),
        }
    }
}

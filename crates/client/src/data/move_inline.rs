//! Moves the inline bytes of a file to storage, ends the inline component of an empty file, and
//! adopts the new pattern after a move by another client
//! (docs/design/0009-first-bytes-in-metadata.md, "Moving the bytes").
//!
//! # Order of a move
//! Storage has synced the copy before metadata removes its bytes, and the removal is durable before
//! this mount writes to the chunk file. So after any power loss, the bytes are where the stripe
//! pattern in metadata places them.
//!
//! # Hazard: a late copy
//! A stopped storage target may execute a copy much later. If another client had moved the inline
//! bytes meanwhile, and had written to the chunk file, the late copy would overwrite its bytes. So
//! a mount sends a copy only after metadata has durably recorded the mount's open of the file. The
//! mount sends no close before storage has replied to the copy. Until then, no other client can use
//! the file, unless this client was evicted. Storage refuses the requests of an evicted client
//! (docs/design/0006-fencing.md).

use crate::client::Client;
use crate::data::plan::plan;
use crate::data::write_piece::{Acknowledged, PieceWrite, write_piece};
use crate::driven::drive;
use crate::files::open_file::OpenFile;
use crate::inode_state::guards::TruncationClaim;
use crate::inode_state::{FileEnd, InodeState, UnconfirmedMove};
use crate::limits::MAX_PIECE_BYTES;
use crate::session::request::ModifyOptions;
use skep_cluster::striping;
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::codec::crc32c;
use skep_types::{ChunkFileKey, Error, ErrorCode, Result, StripePattern};
use skep_wire::inline::{ReadInline, ReadInlineReply, RemoveInline, SyncInline};
use skep_wire::metadata::{CompareOpens, GetEntryInfo, OpenMode, OpenedFile};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

impl Client {
    /// Moves the inline bytes of a file to storage if several syncs have had to sync both metadata
    /// and storage. The caller is a sync of the file. If the move fails, the bytes stay where they
    /// are, and the sync continues.
    pub(crate) async fn move_inline_if_due(&self, file: &Arc<OpenFile>) {
        let inline = file.pattern().inline_bytes();
        let may_move = inline > 0 && file.mode == OpenMode::Write;
        if !may_move || !file.inode.count_sync_of_both(inline, file.was_grown) {
            return;
        }
        let (client, of) = (self.clone(), Arc::clone(file));
        // Complete the move even if the caller drops the future. If the move ended early, writes of
        // this mount could begin while metadata removes the inline bytes.
        let moving = async move { client.move_inline(&of).await };
        let id = file.inode.id;
        match drive(moving, |_| ()).await {
            Ok(true) => {
                tracing::debug!("file {id}: the mount moved its {inline} inline bytes to storage")
            }
            Ok(false) => tracing::debug!("file {id}: its inline bytes stay at metadata"),
            Err(error) => tracing::debug!("file {id}: cannot move its inline bytes: {error:#}"),
        }
    }

    /// Moves the inline bytes of a file to storage. Returns `false` if this is not possible at the
    /// moment.
    async fn move_inline(&self, file: &Arc<OpenFile>) -> Result<bool> {
        let state = &file.inode;
        // If a truncation has claimed the file, do not wait. The next sync starts the move again.
        let Some(claim) = state.try_truncate() else { return Ok(false) };
        let Some(_alone) = state.try_alone() else { return Ok(false) };
        claim.wait_until_alone().await;
        let Some(moving) = claim.begin_move() else { return Ok(false) };
        let moved = self.move_claimed(file, &claim).await;
        moving.end();
        moved
    }

    /// Moves the inline bytes of a file. The caller has claimed the file for a truncation
    /// (`claim`), and no other client uses the file.
    async fn move_claimed(&self, file: &Arc<OpenFile>, claim: &TruncationClaim) -> Result<bool> {
        let state = &file.inode;
        // From now on, a close waits for the end of the move, and an unmount closes no session. If
        // a close or an unmount has begun earlier, its requests may be on their way, so begin no
        // move.
        if file.is_closing() || self.mount().is_ending() {
            return Ok(false);
        }
        let pattern = file.pattern();
        let Some(moved) = striping::without_inline(pattern) else { return Ok(false) };
        let how = ModifyOptions { is_driven: true, ..ModifyOptions::default() };
        self.report_written(state, how).await?;
        if !self.is_open_durably(state).await? {
            return Ok(false);
        }
        let (generation, inline) = (pattern.generation, pattern.inline_bytes());
        let truncate_generation = state.end().truncate_generation;
        let request = ReadInline { inode: state.id, generation, offset: 0, length: inline as u32 };
        let read = self.ask(state.id, &request).await?;
        let is_whole = crc32c(&read.bytes) == read.checksum && read.bytes.len() as u64 <= inline;
        if !is_whole || read.truncate_generation != truncate_generation {
            return Ok(false);
        }
        let chunk_file = self.copy_inline(file, &moved, &read, claim).await?;
        let written = state.unsynced_inline();
        let request = Arc::new(RemoveInline {
            inode: state.id,
            generation,
            truncate_generation,
            checksum: read.checksum,
            written,
        });
        let durable = ModifyOptions { is_durable: true, ..ModifyOptions::default() };
        let removed = self.modify_through(file, &request, durable).await?;
        if removed.is_removed {
            state.inline_moved(generation);
            // The target has recorded the chunk file as synced.
            state.recorded(&[chunk_file], truncate_generation);
            state.inline_synced(&request.written, removed.is_lost);
        }
        Ok(removed.is_removed)
    }

    /// Returns whether metadata has durably recorded all opens of the file for writing by this
    /// mount. After the reply, no power loss can revert these opens. So no other client can use the
    /// file before this mount has acknowledged a notification.
    async fn is_open_durably(&self, state: &Arc<InodeState>) -> Result<bool> {
        // Also count handles whose close has begun, even stale handles. If metadata has executed
        // such a close already, this function returns `false`, and a later sync moves the bytes. If
        // the client did not count these handles, the open of a closing handle could hide that
        // metadata has lost the open of another handle. The close would then remove the last open
        // at metadata. An open whose reply has not arrived is harmless, because its close waits for
        // the end of the move.
        let of_file = |file: &OpenFile| {
            let is_of_file = file.inode.id == state.id && file.mode == OpenMode::Write;
            is_of_file && (file.is_closing() || !file.is_stale())
        };
        let handles = self.mount().handles.select(of_file).len();
        let files = vec![OpenedFile { inode: state.id, open: OpenMode::Write }];
        let how = CallOptions { durable: true, ..CallOptions::default() };
        let compared = self.ask_with(state.id, &CompareOpens { files }, how).await?;
        Ok(compared.counts.first().is_some_and(|count| *count as usize >= handles))
    }

    /// Writes the inline bytes to the chunk file that stores them after the move, and fills the
    /// rest of the inline component with zeros. Waits until storage has synced the bytes. Returns
    /// the key of the chunk file. `moved` is the pattern after the move.
    async fn copy_inline(
        &self,
        file: &Arc<OpenFile>,
        moved: &StripePattern,
        read: &ReadInlineReply,
        claim: &TruncationClaim,
    ) -> Result<ChunkFileKey> {
        let inline = file.pattern().inline_bytes();
        let plan = plan(moved, 0..inline, MAX_PIECE_BYTES)?;
        let [piece] = plan[..] else {
            let what = "cannot copy inline bytes to storage: the stripe pattern divides them over \
                        several ranges";
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        };
        let data = Buf::new(inline as usize);
        data.write(0, &read.bytes);
        data.zero(read.bytes.len()..data.len());
        let copy = PieceWrite::new(file, piece, data, read.truncate_generation);
        let copy = PieceWrite { is_durable: true, ..copy };
        let acknowledged = write_piece(Rc::clone(&self.0), copy).await?;
        if let Acknowledged::DurableChunk(key, group, incarnation, start) = acknowledged {
            claim.inline_copied(key, group, incarnation, start);
        }
        Ok(file.key_of(&piece))
    }

    /// Ends the inline component of a new file before a write of `range`, if the range begins at
    /// byte 0 and ends beyond this component. Storage then gets all bytes of the write. Does
    /// nothing before other writes. If metadata refuses the request, the file keeps its inline
    /// component. A power loss of metadata can revert the change until [`Self::confirm_move`] has
    /// returned.
    pub(crate) async fn end_inline_of_new(&self, file: &OpenFile, range: Range<u64>) {
        let (state, pattern) = (&file.inode, file.pattern());
        let inline = pattern.inline_bytes();
        if inline == 0 || range.start > 0 || range.end <= inline {
            return;
        }
        // Metadata refuses to end the component while a truncation is not durable, so send no
        // request for a file that was truncated.
        let FileEnd { size, truncate_generation } = state.end();
        if size > 0 || truncate_generation > 0 {
            return;
        }
        let Some(_alone) = state.try_alone() else { return };
        if striping::without_inline(pattern).is_none() || !state.begin_first_move() {
            return;
        }
        let generation = pattern.generation;
        let request = Arc::new(RemoveInline {
            inode: state.id,
            generation,
            truncate_generation,
            checksum: crc32c(&[]),
            written: Vec::new(),
        });
        match self.modify_through(file, &request, ModifyOptions::default()).await {
            Ok(removed) if removed.is_removed => state.empty_inline_ended(generation, removed.mark),
            Ok(_) => tracing::debug!("file {} keeps its inline component", state.id),
            // The error is only logged, because the write returns an error if its own requests fail
            // too.
            Err(error) => {
                tracing::debug!("file {}: cannot remove the inline component: {error:#}", state.id);
            }
        }
    }

    /// Waits until metadata has durably recorded the end of an inline component that
    /// [`Self::end_inline_of_new`] has ended. Does nothing if metadata has confirmed that this
    /// record is durable. If a power loss of metadata has reverted the end, the bytes that this
    /// mount has since written to the beginning of the file are lost. The mount counts this loss,
    /// and uses the inline component again. Another client may have moved inline bytes of the file
    /// meanwhile. Then metadata refuses this mount's next request for inline bytes, and the mount
    /// adopts the new pattern ([`Self::follow_move`]).
    pub(crate) async fn confirm_move(&self, state: &Arc<InodeState>) -> Result<()> {
        let Some(UnconfirmedMove { generation, mark }) = state.unconfirmed_move() else {
            return Ok(());
        };
        let how = CallOptions { durable: true, ..CallOptions::default() };
        let request = SyncInline { inode: state.id, written: vec![mark] };
        let synced = self.ask_with(state.id, &request, how).await;
        let synced = synced.map_err(|error| {
            error.within(format_args!(
                "cannot confirm the move of the inline bytes of file {}",
                state.id
            ))
        })?;
        if synced.attributes.is_none() {
            // The file was removed, so none of its bytes can be lost.
            return Ok(());
        }
        if !synced.is_lost {
            state.move_confirmed(generation);
            return Ok(());
        }
        tracing::error!(
            "file {}: a power loss of metadata has reverted the move of its first bytes to \
             storage; bytes that programs have written to this range since the move are lost",
            state.id
        );
        state.move_reverted();
        Ok(())
    }

    /// Finds out whether a target has refused a request for inline bytes with `Stale` because the
    /// bytes were moved to storage. If the bytes were moved, returns without an error, and the
    /// caller repeats its operation with the new pattern. `used` is the pattern that the operation
    /// has used.
    ///
    /// # Errors
    /// `refusal`, unless it is `Stale` and the inline bytes were moved.
    pub(crate) async fn follow_move(
        &self,
        file: &OpenFile,
        used: &StripePattern,
        refusal: Error,
    ) -> Result<()> {
        if refusal.code() != ErrorCode::Stale || striping::without_inline(used).is_none() {
            return Err(refusal);
        }
        if file.pattern().inline_bytes() == 0 {
            return Ok(());
        }
        // With the durable flag, no power loss can revert a move that the reply shows.
        let how = CallOptions { durable: true, ..CallOptions::default() };
        let request = GetEntryInfo { inode: file.inode.id };
        let Ok(info) = self.ask_with(file.inode.id, &request, how).await else {
            return Err(refusal);
        };
        let is_moved =
            |it: &StripePattern| it.generation == used.generation && it.has_moved_inline();
        if !info.pattern.as_ref().is_some_and(is_moved) {
            return Err(refusal);
        }
        file.inode.inline_moved(used.generation);
        Ok(())
    }
}

//! Writing file data. The client sends pieces to all groups in parallel, directly from the caller's
//! buffer, with checksums. A write is complete when servers have acknowledged all its pieces; the
//! client does not buffer writes.

use crate::client::{Client, Worker};
use crate::data::complete::UnfinishedWrite;
use crate::data::locked::drive_change;
use crate::data::plan::plan;
use crate::data::write_piece::{Acknowledged, PieceWrite, write_piece};
use crate::driven::{drive, drive_for};
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::inode_state::guards::WriteGuard;
use crate::inode_state::{FileEnd, InodeState};
use crate::limits::{MAX_PIECE_BYTES, WRITE_GRACE};
use skep_cluster::striping::Piece;
use skep_env::Buf;
use skep_types::{Error, ErrorCode, MAX_FILE_BYTES, Result};
use skep_wire::metadata::OpenMode;
use skep_wire::storage::StripeHint;
use std::rc::Rc;
use std::sync::Arc;

/// Writes the bytes of files.
pub trait Writes {
    /// Writes all of `data` at `offset` (in bytes), or returns an error. After an error, the size
    /// of the file is unchanged, and any part of `data` within this size may have been written.
    ///
    /// The caller must not change the bytes before the future completes. If the caller drops the
    /// future, the write continues for up to `WRITE_GRACE` and still reads the buffer. If the write
    /// ended at once, servers could execute a later truncation before the write. If servers do not
    /// reply within `WRITE_GRACE`, the client cancels the write. A write to a file that programs of
    /// this mount have locked is not cancelled, and has its own copy of the bytes.
    ///
    /// # Errors
    /// - `Stale` if the handle is not open or its file was removed.
    /// - `InvalidArgument` if the handle is not open for writing.
    /// - `FileTooLarge` if the write ends beyond the maximum file size.
    /// - `NoSpace` if a storage target is full.
    /// - `DeviceFailed` if a storage target cannot write.
    fn write(&self, handle: HandleId, offset: u64, data: Buf) -> impl Future<Output = Result<()>>;

    /// Writes all of `data` at the end of the file. `expected` is the size of the file according to
    /// the caller's cache. If `expected` is the end of another append in progress, this append
    /// waits for the end of the other append. So the parts of one large append stay in order. An
    /// append also waits for an earlier append whose caller has dropped the future. The kernel
    /// serializes all other appends of one mount. If several mounts share the file, their clients
    /// serialize appends by a lock at metadata.
    ///
    /// If the caller drops the future, the append continues until all servers have replied. The
    /// append has its own copy of the bytes.
    ///
    /// # Errors
    /// - The errors of [`Self::write`].
    /// - `Io` if the append before this one failed.
    fn append(
        &self,
        handle: HandleId,
        expected: u64,
        data: Buf,
    ) -> impl Future<Output = Result<()>>;
}

impl Writes for Client {
    async fn write(&self, handle: HandleId, offset: u64, data: Buf) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        self.note_kernel_request(&file);
        let to = WritePosition::Offset(offset);
        if !file.inode.is_locked() {
            return self.write_to(file, to, data).await;
        }
        // If the program is killed, the write continues, and does not need the buffer of the
        // caller, as in `append`.
        let data = Buf::copy_of(&data.bytes());
        file.inode.await_orphaned_changes().await;
        let Some(writing) = self.begin_write_to(&file, to, &data).await? else { return Ok(()) };
        let (client, inode) = (self.clone(), Arc::clone(&file.inode));
        let work = async move { client.write_begun(file, to, data, writing).await };
        drive_change(self, inode, work).await
    }

    async fn append(&self, handle: HandleId, expected: u64, data: Buf) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        self.note_kernel_request(&file);
        // If the program is killed, the append continues. The append has its own copy of the bytes,
        // because the program cannot end while the append uses the program's buffer.
        let data = Buf::copy_of(&data.bytes());
        let expected_end = expected.saturating_add(data.len() as u64);
        let part = file.inode.begin_append(expected..expected_end);
        let _caller = part.caller();
        part.wait_for_turn().await?;
        // Begin the write before `try_alone` (see the order of guards in `inode_state::guards`).
        let Some(writing) = self.begin_write_to(&file, WritePosition::End, &data).await? else {
            part.end(true);
            return Ok(());
        };
        let Some(alone) = file.inode.try_alone() else {
            drop(writing);
            return self.append_under_lock(file, handle, data, part).await;
        };
        let client = self.clone();
        // Complete the append even if the caller drops the future, because its requests could
        // otherwise arrive after another client has changed the size of the file.
        let work = async move {
            let _alone = alone;
            part.complete(client.write_begun(file, WritePosition::End, data, writing)).await
        };
        drive(work, |_| ()).await
    }
}

/// Where a write begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum WritePosition {
    /// At this offset of the file.
    Offset(u64),
    /// At the end of the file. A truncation before the write moves this end, so the client
    /// determines the end only after the write has begun.
    End,
}

impl Client {
    /// Writes all of `data`, and repeats the write if another client truncates the file meanwhile.
    pub(super) async fn write_to(
        &self,
        file: Arc<OpenFile>,
        to: WritePosition,
        data: Buf,
    ) -> Result<()> {
        match self.begin_write_to(&file, to, &data).await? {
            Some(writing) => self.write_begun(file, to, data, writing).await,
            None => Ok(()),
        }
    }

    /// Checks that a program may write `data` through the handle, and begins the write. Returns
    /// `None` if `data` is empty.
    async fn begin_write_to(
        &self,
        file: &OpenFile,
        to: WritePosition,
        data: &Buf,
    ) -> Result<Option<WriteGuard>> {
        let offset = if let WritePosition::Offset(offset) = to { offset } else { 0 };
        file.check_writable(offset.checked_add(data.len() as u64))?;
        if data.is_empty() {
            return Ok(None);
        }
        self.confirm_locks(file).await?;
        if let WritePosition::Offset(offset) = to {
            await_appends(&file.inode, offset + data.len() as u64).await;
        }
        Ok(Some(begin_write(&file.inode).await))
    }

    /// Completes a write that [`Self::begin_write_to`] has begun.
    async fn write_begun(
        &self,
        file: Arc<OpenFile>,
        to: WritePosition,
        data: Buf,
        writing: WriteGuard,
    ) -> Result<()> {
        let client = self.clone();
        let work = async move {
            while !client.try_to_write(&file, to, &data, &writing).await? {}
            Ok(())
        };
        drive_for(WRITE_GRACE, work).await
    }

    /// Makes one attempt to write all of `data`. Returns `false` if another client truncated the
    /// file meanwhile, or if the first bytes of the file have been moved from metadata to storage
    /// or back. The caller must then write the bytes again.
    async fn try_to_write(
        &self,
        file: &Arc<OpenFile>,
        to: WritePosition,
        data: &Buf,
        writing: &WriteGuard,
    ) -> Result<bool> {
        let before = file.inode.end();
        let offset = if let WritePosition::Offset(offset) = to { offset } else { before.size };
        let end = file.check_writable(offset.checked_add(data.len() as u64))?;
        self.place_first_bytes(file, offset..end).await;
        let pattern = file.pattern();
        let plan = plan(pattern, offset..end, MAX_PIECE_BYTES)?;
        let is_inline = matches!(&plan[..], [Piece { group: None, .. }]);
        let generation = before.truncate_generation;
        let appends = matches!(to, WritePosition::End);
        let write = Write { file, offset, generation, data, writing, is_inline, appends };
        let unfinished = UnfinishedWrite::new(writing, end);
        let (written, result) = write.pieces(&self.0, &plan).await;
        unfinished.end();
        let result = match result {
            Err(error) if error.code() == ErrorCode::EndMoved => {
                self.follow_end(&file.inode, before, error).await.map(|()| false)
            }
            Err(error) if error.code() == ErrorCode::Corrupt => {
                self.explain_lost(&file.inode, before, error).await.map(|()| false)
            }
            Err(error) => self.follow_move(file, pattern, error).await.map(|()| false),
            Ok(()) => Ok(!file.is_move_reverted(pattern)),
        };
        if is_inline {
            // Metadata has executed either the whole write with the change of the size, or nothing.
            // So there are no bytes to remove.
            return result;
        }
        if result.is_err() {
            writing.note_reach(end);
            write.clear_beyond_end(self, written).await;
            return result;
        }
        let is_complete =
            result? && self.complete_write(&file.inode, writing, offset..end, generation).await?;
        if !is_complete && appends {
            // The caller repeats the append at another offset, so the bytes at this offset must not
            // stay.
            writing.note_reach(end);
            write.clear_beyond_end(self, written).await;
        }
        Ok(is_complete)
    }
}

/// Waits for earlier appends of this mount, if a write up to `end` extends the file. Storage could
/// otherwise execute such an append after the write, at the same offset.
pub(super) async fn await_appends(inode: &Arc<InodeState>, end: u64) {
    if end > inode.size() {
        inode.await_appends().await;
    }
}

/// Waits until no truncation is in progress, and begins a write.
pub(crate) async fn begin_write(inode: &Arc<InodeState>) -> WriteGuard {
    // Most writes need not wait.
    match inode.try_write() {
        Some(writing) => writing,
        None => inode.wait_until(|| inode.try_write()).await,
    }
}

/// Clears bytes that a failed operation left beyond the end of a file. The future that `clear`
/// returns sends the requests. If a server refuses a request, the bytes stay, and this function
/// only logs the error.
///
/// A clearing would remove bytes that other clients have written beyond the end but not reported
/// yet. So if other clients use the file, metadata removes the bytes instead.
pub(super) async fn clear_if_alone<F: Future<Output = Result<()>> + 'static>(
    client: &Client,
    inode: &Arc<InodeState>,
    writing: &WriteGuard,
    clear: impl FnOnce(WriteGuard) -> F,
) {
    let Some(alone) = inode.try_alone() else {
        return client.trim(inode.id).await;
    };
    // `turn` makes later appends and extending writes of this mount wait for the end of the
    // clearing, since the clearing could otherwise remove their bytes. So the clearing must be
    // complete even if the caller drops the future.
    let turn = inode.begin_awaited_change();
    let (id, clearing) = (inode.id, clear(writing.begin_another()));
    let work = async move {
        let _alone = alone;
        if let Err(error) = turn.complete(clearing).await {
            tracing::debug!("file {id}: cannot clear the bytes of a failed operation: {error:#}");
        }
    };
    drive(work, |()| ()).await;
}

/// A write in progress.
struct Write<'a> {
    file: &'a Arc<OpenFile>,
    offset: u64,
    /// Truncate generation of the file when the write began.
    generation: u64,
    data: &'a Buf,
    writing: &'a WriteGuard,
    /// Whether metadata stores all bytes of the write.
    is_inline: bool,
    /// Whether the write begins at the end of the file.
    appends: bool,
}

impl Write<'_> {
    /// Writes all pieces. Waits for all of them even after one has failed, since the caller may
    /// reuse the buffer afterwards. Returns the pieces that were written, and the first error.
    async fn pieces(&self, worker: &Rc<Worker>, plan: &[Piece]) -> (Vec<Piece>, Result<()>) {
        let data_of = |piece: &Piece| {
            let start = piece.offset_in_range as usize;
            self.data.slice(start..start + piece.length as usize)
        };
        let send = |piece: &Piece| {
            let what = PieceWrite::new(self.file, *piece, data_of(piece), self.generation);
            let (extends, appends) = (self.is_inline, self.is_inline && self.appends);
            let is_durable = self.file.is_synced();
            let what = PieceWrite { extends, appends, is_durable, ..what };
            write_piece(Rc::clone(worker), what)
        };
        let mut written = Vec::new();
        let mut result = Ok(());
        let mut note = |piece: &Piece, outcome: Result<Acknowledged>| match outcome {
            Ok(acknowledged) => {
                acknowledged.note(self.writing);
                written.push(*piece);
            }
            Err(error) if result.is_ok() => {
                result =
                    Err(error.within(format_args!("cannot write to file {}", self.file.inode.id)));
            }
            Err(_) => {}
        };
        if let [piece] = plan {
            note(piece, send(piece).await);
        } else {
            let tasks: Vec<_> = plan.iter().map(|piece| skep_env::spawn(send(piece))).collect();
            for (piece, task) in plan.iter().zip(tasks) {
                note(piece, task.await);
            }
        }
        (written, result)
    }

    /// Removes the bytes that a failed write left beyond the end of the file. If these bytes
    /// stayed, programs would read them after the file has grown.
    async fn clear_beyond_end(&self, client: &Client, written: Vec<Piece>) {
        if written.is_empty() {
            return;
        }
        let (worker, file, offset) = (Rc::clone(&client.0), Arc::clone(self.file), self.offset);
        clear_if_alone(client, &self.file.inode, self.writing, move |writing| async move {
            overwrite_beyond_end(&worker, &file, offset, written, &writing).await
        })
        .await;
    }
}

/// Overwrites the bytes beyond the end of the file with zeros. `offset` is the offset at which the
/// failed write began, and `written` are its acknowledged pieces. Storage needs no more space for
/// the zeros, since the bytes are allocated already. Continues after an error, and returns the
/// first error.
async fn overwrite_beyond_end(
    worker: &Rc<Worker>,
    file: &Arc<OpenFile>,
    offset: u64,
    written: Vec<Piece>,
    writing: &WriteGuard,
) -> Result<()> {
    let mut result = Ok(());
    let FileEnd { size, truncate_generation } = file.inode.end();
    for piece in written {
        let skipped = size.saturating_sub(offset + piece.offset_in_range);
        if skipped >= piece.length {
            continue;
        }
        let beyond = Piece {
            offset_in_chunk_file: piece.offset_in_chunk_file + skipped,
            length: piece.length - skipped,
            ..piece
        };
        let zeros = Buf::new(beyond.length as usize);
        zeros.zero(0..zeros.len());
        let zeros = PieceWrite::new(file, beyond, zeros, truncate_generation);
        match write_piece(Rc::clone(worker), zeros).await {
            Ok(acknowledged) => acknowledged.note(writing),
            Err(error) => result = result.and(Err(error)),
        }
    }
    result
}

impl OpenFile {
    /// Returns the stripe hint for a write request. The hint describes the stripe pattern of the
    /// chunk file that contains the piece.
    pub(crate) fn stripe_of(&self, piece: &Piece) -> StripeHint {
        let component = &self.pattern().components[usize::from(piece.component)];
        StripeHint {
            chunk_bytes: component.chunk_bytes,
            width: component.groups.len() as u16,
            component_start: component.start,
        }
    }

    /// Checks that a program may write bytes up to `end` through the handle, and returns `end`.
    /// `None` means that the end overflows `u64`.
    pub(crate) fn check_writable(&self, end: Option<u64>) -> Result<u64> {
        let id = self.inode.id;
        if self.mode != OpenMode::Write {
            let text = format!("cannot write to file {id}: the handle is not open for writing");
            return Err(Error::new(ErrorCode::InvalidArgument, text));
        }
        end.filter(|end| *end <= MAX_FILE_BYTES).ok_or_else(|| {
            let text = format!(
                "cannot write to file {id}: the range ends beyond the maximum size of a file"
            );
            Error::new(ErrorCode::FileTooLarge, text)
        })
    }
}

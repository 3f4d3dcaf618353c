//! Writing: pieces to all groups in parallel, straight from the caller's buffer, with checksums. A
//! write is done when all its pieces are acknowledged; there is no write-behind.

use crate::client::{Client, Worker};
use crate::data::granules;
use crate::data::inline;
use crate::data::plan::plan;
use crate::data::size::newest_size;
use crate::driven::{drive, drive_for};
use crate::files::handles::HandleId;
use crate::files::open_file::OpenFile;
use crate::inode_state::InodeState;
use crate::inode_state::guards::WriteGuard;
use crate::limits::{CONTENTION_PAUSE, MAX_PIECE_BYTES, WRITE_GRACE};
use crate::locks::file_locks::{FileLock, Locked, Locks};
use skep_cluster::striping::Piece;
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::{
    ChunkFileKey, Error, ErrorCode, GroupId, HostIncarnation, MAX_FILE_BYTES, Result,
};
use skep_wire::file_locks::{LockKind, LockMode};
use skep_wire::inline::{InlineMark, WriteInlineReply};
use skep_wire::limits::LOCK_END;
use skep_wire::metadata::OpenMode;
use skep_wire::storage::{StripeHint, WriteChunk};
use std::rc::Rc;
use std::sync::Arc;

/// Writing the bytes of files.
pub trait Writes {
    /// Writes all of `data`, or gives an error; after an error any part of it that lies within the
    /// file as it was may have been written, and the file's end hasn't moved.
    ///
    /// The bytes must not change until this is done. A write whose future is dropped goes on for a
    /// moment, so that a truncation which comes next doesn't overtake it, and reads the buffer
    /// still; it is given up when servers don't answer.
    ///
    /// # Errors
    /// `Stale` for a handle that isn't open or whose file is gone, `InvalidArgument` for one that
    /// isn't open for writing, `FileTooLarge`, `NoSpace`, `DeviceFailed`.
    fn write(&self, handle: HandleId, offset: u64, data: Buf) -> impl Future<Output = Result<()>>;

    /// Writes all of `data` at the end of the file. Callers of one mount take turns (the kernel
    /// does); those of several do by a lock, while they have the file open at once.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn append(&self, handle: HandleId, data: Buf) -> impl Future<Output = Result<()>>;
}

impl Writes for Client {
    async fn write(&self, handle: HandleId, offset: u64, data: Buf) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        let end = file.check_writable(offset.checked_add(data.len() as u64))?;
        if data.is_empty() {
            return Ok(());
        }
        self.confirm_locks(&file).await?;
        let plan = plan(&file.pattern, offset..end, MAX_PIECE_BYTES)?;
        let writing = begin_write(&file.inode).await;
        let worker = Rc::clone(&self.0);
        let work = async move {
            let is_inline = matches!(&plan[..], [Piece { group: None, .. }]);
            let what = Write { file: &file, offset, data: &data, writing: &writing, is_inline };
            let (written, result) = what.pieces(&worker, &plan).await;
            match result {
                // Metadata has done all or nothing of it, its end included.
                _ if is_inline => {}
                Ok(()) => writing.wrote(offset..end),
                Err(_) => {
                    writing.reached(end);
                    what.blank(&worker, written).await;
                }
            }
            drop(writing);
            result?;
            Client(worker).report_size(&file.inode).await
        };
        drive_for(WRITE_GRACE, work).await
    }

    async fn append(&self, handle: HandleId, data: Buf) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        let Some(alone) = file.inode.try_append_alone() else {
            return self.append_in_turn(file, handle, data).await;
        };
        let client = self.clone();
        // Never given up: it must not arrive after others have moved the end.
        let work = async move {
            let _alone = alone;
            client.write(handle, file.inode.size(), data).await
        };
        drive(work, |_| ()).await
    }
}

impl Client {
    /// Appends to a file that others may append to, under a lock that no program sees.
    async fn append_in_turn(&self, file: Arc<OpenFile>, handle: HandleId, data: Buf) -> Result<()> {
        // As if each append were a process.
        let wait = self.new_lock_wait();
        let (kind, mode) = (LockKind::Append, Some(LockMode::Exclusive));
        let lock = FileLock { kind, owner: wait, mode, range: 0..LOCK_END, pid: 0 };
        let unlocked = FileLock { mode: None, ..lock.clone() };
        let turn = AppendTurn { client: self.clone(), handle, unlocked: Some(unlocked) };
        while self.set_lock(handle, lock.clone(), wait).await? == Locked::Refused {
            self.wait_for_lock(handle, &lock, wait).await?;
        }
        let client = self.clone();
        let work = async move {
            // What the lock's answer told of the end is right until it is given back.
            let result = client.write(handle, file.inode.size(), data).await;
            result.and(turn.give_back().await)
        };
        drive(work, |_| ()).await
    }
}

/// The right to append, or the wait for it; given back when it is dropped.
struct AppendTurn {
    client: Client,
    handle: HandleId,
    unlocked: Option<FileLock>,
}

impl AppendTurn {
    async fn give_back(mut self) -> Result<()> {
        let Some(unlocked) = self.unlocked.take() else { return Ok(()) };
        self.client.set_lock(self.handle, unlocked, 0).await.map(|_| ())
    }
}

impl Drop for AppendTurn {
    fn drop(&mut self) {
        let Some(unlocked) = self.unlocked.take().filter(|_| skep_env::is_running()) else {
            return;
        };
        let (client, handle) = (self.client.clone(), self.handle);
        skep_env::spawn(async move {
            // Otherwise it ends with the handle.
            if let Err(error) = client.set_lock(handle, unlocked, 0).await {
                tracing::debug!("the right to append was not given back: {error}");
            }
        })
        .detach();
    }
}

/// Begins a write as soon as no truncation is under way.
pub(crate) async fn begin_write(inode: &Arc<InodeState>) -> WriteGuard {
    loop {
        match inode.try_write() {
            Some(writing) => return writing,
            None => skep_env::sleep(CONTENTION_PAUSE).await,
        }
    }
}

/// A write under way.
struct Write<'a> {
    file: &'a Arc<OpenFile>,
    offset: u64,
    data: &'a Buf,
    writing: &'a WriteGuard,
    /// All of it lies in metadata.
    is_inline: bool,
}

impl Write<'_> {
    /// Writes all pieces and waits for all, also after one has failed: the buffer is the caller's
    /// again afterwards. Gives those that were written, and the first error.
    async fn pieces(&self, worker: &Rc<Worker>, plan: &[Piece]) -> (Vec<Piece>, Result<()>) {
        let data_of = |piece: &Piece| {
            let start = piece.offset_in_range as usize;
            self.data.slice(start..start + piece.length as usize)
        };
        let send = |piece: &Piece| {
            let what = self.piece(*piece, data_of(piece));
            write_piece(Rc::clone(worker), PieceWrite { extends: self.is_inline, ..what })
        };
        let mut written = Vec::new();
        let mut result = Ok(());
        let mut note = |piece: &Piece, outcome: Result<Acknowledged>| match outcome {
            Ok(acknowledged) => {
                acknowledged.note(self.writing);
                written.push(*piece);
            }
            Err(error) if result.is_ok() => {
                result = Err(error.within(format_args!("file {}", self.file.inode.id)));
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

    /// Puts zeros over what a failed write left beyond the end of the file: it would show when the
    /// file grows. Room is there, since it was just written. If this fails too, it stays: whoever
    /// keeps storage from answering has worse to tell.
    async fn blank(&self, worker: &Rc<Worker>, written: Vec<Piece>) {
        let size = newest_size(worker, self.file).await;
        for piece in written {
            let start = self.offset + piece.offset_in_range;
            let skipped = size.saturating_sub(start);
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
            match write_piece(Rc::clone(worker), self.piece(beyond, zeros)).await {
                Ok(acknowledged) => acknowledged.note(self.writing),
                Err(error) => tracing::debug!("a failed write was not blanked: {error}"),
            }
        }
    }

    fn piece(&self, piece: Piece, data: Buf) -> PieceWrite {
        PieceWrite { file: Arc::clone(self.file), piece, data, extends: false }
    }
}

impl OpenFile {
    /// What the chunk file of a piece is told of its stripe.
    pub(crate) fn stripe_of(&self, piece: &Piece) -> StripeHint {
        let component = &self.pattern.components[usize::from(piece.component)];
        StripeHint {
            chunk_bytes: component.chunk_bytes,
            width: component.groups.len() as u16,
            component_start: component.start,
        }
    }

    /// Checks that bytes may be written through it, up to `end`; none: that is more than there can
    /// be.
    pub(crate) fn check_writable(&self, end: Option<u64>) -> Result<u64> {
        let id = self.inode.id;
        if self.mode != OpenMode::Write {
            let text = format!("file {id}: the handle isn't open for writing");
            return Err(Error::new(ErrorCode::InvalidArgument, text));
        }
        end.filter(|end| *end <= MAX_FILE_BYTES).ok_or_else(|| {
            let text = format!("file {id}: the range ends beyond the longest file");
            Error::new(ErrorCode::FileTooLarge, text)
        })
    }
}

/// A piece to write.
pub(crate) struct PieceWrite {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) piece: Piece,
    pub(crate) data: Buf,
    /// In metadata: it is all of a write.
    pub(crate) extends: bool,
}

/// How a piece was acknowledged.
#[derive(Debug)]
pub(crate) enum Acknowledged {
    /// By storage, on a host of this incarnation.
    Chunk(ChunkFileKey, GroupId, HostIncarnation),
    /// By metadata, as a part of a write.
    Inline(InlineMark),
    /// By metadata, as all of a write, which has this end.
    Extended(u64, Box<WriteInlineReply>),
}

impl Acknowledged {
    /// Notes it.
    pub(crate) fn note(self, writing: &WriteGuard) {
        match self {
            Self::Chunk(key, group, incarnation) => writing.piece_written(key, group, incarnation),
            Self::Inline(mark) => writing.inline_written(mark),
            Self::Extended(end, written) => {
                let WriteInlineReply { mark, attributes } = &*written;
                writing.wrote_inline(end, *mark, attributes, skep_env::now());
            }
        }
    }
}

/// Writes one piece.
pub(crate) async fn write_piece(worker: Rc<Worker>, what: PieceWrite) -> Result<Acknowledged> {
    let _place = worker.pieces.acquire().await;
    let PieceWrite { file, piece, data, extends } = what;
    let offset = piece.offset_in_chunk_file;
    let Some(group) = piece.group else {
        let written = inline::write(&worker, &file, (offset, &data), extends).await?;
        return Ok(match extends {
            true => Acknowledged::Extended(offset + data.len() as u64, Box::new(written)),
            false => Acknowledged::Inline(written.mark),
        });
    };
    let (key, stripe) = (file.key_of(&piece), file.stripe_of(&piece));
    let checksums = granules::checksums(offset, data.bytes());
    let request = WriteChunk { key, stripe, offset, checksums };
    let mut has_failed = false;
    loop {
        let options = CallOptions {
            data: vec![data.clone()],
            trace: worker.next_trace(),
            ..CallOptions::default()
        };
        match worker.change_storage(&file, group, &request, options).await {
            Ok(written) => return Ok(Acknowledged::Chunk(key, group, written.incarnation)),
            // Damaged on its way (`Protocol`): once more.
            Err(error) if error.code() == ErrorCode::Protocol && !has_failed => has_failed = true,
            Err(error) => return Err(error.within(format_args!("chunk file {key}"))),
        }
    }
}

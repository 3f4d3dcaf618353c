//! Writing: pieces to all groups in parallel, straight from the caller's buffer, with checksums. A
//! write is done when all its pieces are acknowledged; there is no write-behind.

use crate::client::{Client, Worker};
use crate::driven::drive;
use crate::granules;
use crate::inode_state::{InodeState, Writing};
use crate::limits::{CONTENTION_PAUSE, MAX_PIECE_BYTES};
use crate::plan::plan;
use crate::tables::{HandleId, OpenFile};
use skep_cluster::striping::Piece;
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::{ChunkFileKey, Error, ErrorCode, GroupId, MAX_FILE_BYTES, Result};
use skep_wire::metadata::OpenMode;
use skep_wire::storage::{StripeHint, WriteChunk};
use std::rc::Rc;
use std::sync::Arc;

impl Client {
    /// Writes all of `data`, or gives an error; after an error any part of it may have been written,
    /// but the file's end hasn't moved.
    ///
    /// The bytes must not change until this is done: a write whose future is dropped goes on by
    /// itself, since it can't be taken back, and reads the buffer still.
    ///
    /// # Errors
    /// `Stale` for a handle that isn't open or whose file is gone, `InvalidArgument` for one that isn't
    /// open for writing, `FileTooLarge`, `NoSpace`, `DeviceFailed`.
    pub async fn write(&self, handle: HandleId, offset: u64, data: Buf) -> Result<()> {
        let file = self.mount().handles.get_live(handle)?;
        let id = file.inode.id;
        if file.mode != OpenMode::Write {
            let text = format!("file {id}: the handle isn't open for writing");
            return Err(Error::new(ErrorCode::InvalidArgument, text));
        }
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_BYTES);
        let Some(end) = end else {
            let text = format!("file {id}: a write at {offset} ends beyond the longest file");
            return Err(Error::new(ErrorCode::FileTooLarge, text));
        };
        let plan = plan(&file.pattern, offset..end, MAX_PIECE_BYTES)?;
        let writing = begin_write(&file.inode).await;
        let worker = Rc::clone(&self.0);
        let work = async move {
            write_pieces(&worker, &file, &plan, &data, &writing).await?;
            writing.reached(end);
            Ok(())
        };
        drive(work, |_| ()).await
    }
}

/// Begins a write as soon as no truncation is under way.
async fn begin_write(inode: &Arc<InodeState>) -> Writing {
    loop {
        match inode.try_write() {
            Some(writing) => return writing,
            None => skep_env::sleep(CONTENTION_PAUSE).await,
        }
    }
}

/// Writes all pieces and waits for all, also after one has failed: the buffer is the caller's again
/// afterwards. Gives the first error.
async fn write_pieces(
    worker: &Rc<Worker>,
    file: &OpenFile,
    plan: &[Piece],
    data: &Buf,
    writing: &Writing,
) -> Result<()> {
    let chunk_write = |piece: &Piece| {
        let component = &file.pattern.components[usize::from(piece.component)];
        let start = piece.offset_in_range as usize;
        ChunkWrite {
            key: file.key_of(piece),
            stripe: StripeHint {
                chunk_bytes: component.chunk_bytes,
                width: component.groups.len() as u16,
                component_start: component.start,
            },
            group: piece.group,
            offset: piece.offset_in_chunk_file,
            data: data.slice(start..start + piece.length as usize),
        }
    };
    let mut result = Ok(());
    let mut note = |piece: &Piece, written: Result<skep_types::HostIncarnation>| match written {
        Ok(incarnation) => writing.piece_written(file.key_of(piece), piece.group, incarnation),
        Err(error) if result.is_ok() => {
            result = Err(error.within(format_args!("file {}", file.inode.id)));
        }
        Err(_) => {}
    };
    if let [piece] = plan {
        note(piece, write_chunk(Rc::clone(worker), chunk_write(piece)).await);
    } else {
        let tasks: Vec<_> = plan
            .iter()
            .map(|piece| skep_env::spawn(write_chunk(Rc::clone(worker), chunk_write(piece))))
            .collect();
        for (piece, task) in plan.iter().zip(tasks) {
            note(piece, task.await);
        }
    }
    result
}

struct ChunkWrite {
    key: ChunkFileKey,
    stripe: StripeHint,
    group: GroupId,
    offset: u64,
    data: Buf,
}

/// Writes one piece; gives the incarnation of the host that has it.
async fn write_chunk(worker: Rc<Worker>, what: ChunkWrite) -> Result<skep_types::HostIncarnation> {
    let _place = worker.pieces.acquire().await;
    let ChunkWrite { key, stripe, group, offset, data } = what;
    let checksums = granules::checksums(offset, data.bytes());
    let request = WriteChunk { key, stripe, offset, checksums };
    let mut has_failed = false;
    loop {
        let options = CallOptions {
            data: vec![data.clone()],
            trace: worker.next_trace(),
            ..CallOptions::default()
        };
        match worker.router.call(group, &request, options).await {
            Ok((written, _)) => return Ok(written.incarnation),
            // Damaged on its way: once more.
            Err(error) if error.code() == ErrorCode::Corrupt && !has_failed => has_failed = true,
            Err(error) => return Err(error.within(format_args!("chunk file {key}"))),
        }
    }
}

//! One piece of a write: the request to its server, its repetition after damage in transit, and its
//! acknowledgement.

use crate::client::Worker;
use crate::data::granules;
use crate::data::inline::{self, InlineWrite};
use crate::files::open_file::OpenFile;
use crate::inode_state::guards::{RequestStart, WriteGuard};
use skep_cluster::striping::Piece;
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::{Attributes, ChunkFileKey, ErrorCode, GroupId, HostIncarnation, Result};
use skep_wire::storage::WriteChunk;
use std::rc::Rc;
use std::sync::Arc;

/// One piece to write.
pub(crate) struct PieceWrite {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) piece: Piece,
    pub(crate) data: Buf,
    /// Truncate generation of the file when the write began. Storage and metadata refuse the piece
    /// with `EndMoved` if the file was truncated since.
    pub(crate) truncate_generation: u64,
    /// Only for a piece in metadata: whether the piece is a whole write of a program, and not only
    /// its first part. Metadata then also updates the size of the file.
    pub(crate) extends: bool,
    /// Only together with `extends`: whether metadata refuses the piece with `EndMoved` unless the
    /// piece begins at the end of the file.
    pub(crate) appends: bool,
    /// Only for a piece in a chunk file: whether storage syncs the chunk file before it replies.
    pub(crate) is_durable: bool,
}

impl PieceWrite {
    /// Returns a write of one piece of a larger change. Storage need not sync the piece.
    pub(crate) fn new(
        file: &Arc<OpenFile>,
        piece: Piece,
        data: Buf,
        truncate_generation: u64,
    ) -> Self {
        let file = Arc::clone(file);
        let (extends, appends, is_durable) = (false, false, false);
        Self { file, piece, data, truncate_generation, extends, appends, is_durable }
    }
}

/// The acknowledgement of one written piece.
#[derive(Debug)]
pub(crate) enum Acknowledged {
    /// A storage host of this incarnation acknowledged the piece.
    Chunk(ChunkFileKey, GroupId, HostIncarnation),
    /// A storage host of this incarnation acknowledged a change after which the chunk file may
    /// still not exist, such as the clearing of a range.
    Change(ChunkFileKey, GroupId, HostIncarnation),
    /// A storage host of this incarnation acknowledged the piece, and has synced the chunk file.
    DurableChunk(ChunkFileKey, GroupId, HostIncarnation, RequestStart),
    /// The metadata target acknowledged inline bytes that are a part of a larger write.
    Inline,
    /// The metadata target acknowledged a write of inline bytes only, and has updated the size of
    /// the file. The first field is the end offset of the write in the file.
    Extended(u64, Box<Attributes>),
}

impl Acknowledged {
    /// Records the acknowledgement in the state of the inode.
    pub(crate) fn note(self, writing: &WriteGuard) {
        match self {
            Self::Chunk(key, group, incarnation) => writing.piece_written(key, group, incarnation),
            Self::Change(key, group, incarnation) => writing.piece_changed(key, group, incarnation),
            Self::DurableChunk(key, group, incarnation, start) => {
                writing.durable_piece_written(key, group, incarnation, start);
            }
            // `inline::write` has already recorded the mark of the write in the state of the inode.
            // The client reports the new size after servers have acknowledged all pieces.
            Self::Inline => {}
            Self::Extended(end, attributes) => {
                writing.note_inline_write(end, &attributes, skep_env::now());
            }
        }
    }
}

/// Writes one piece, and returns its acknowledgement.
pub(crate) async fn write_piece(worker: Rc<Worker>, what: PieceWrite) -> Result<Acknowledged> {
    let _place = worker.pieces.acquire().await;
    let PieceWrite { file, piece, data, truncate_generation, extends, appends, is_durable } = what;
    let offset = piece.offset_in_chunk_file;
    let Some(group) = piece.group else {
        let how = InlineWrite { truncate_generation, extends, appends };
        let written = inline::write(&worker, &file, (offset, &data), how).await?;
        return Ok(match extends {
            true => {
                let end = offset + data.len() as u64;
                Acknowledged::Extended(end, Box::new(written.attributes))
            }
            false => Acknowledged::Inline,
        });
    };
    let (key, stripe) = (file.key_of(&piece), file.stripe_of(&piece));
    let checksums = granules::checksums(offset, &data.bytes());
    let must_exist = file.inode.was_synced(&key);
    let request = WriteChunk { key, stripe, offset, truncate_generation, must_exist, checksums };
    let start = RequestStart { last_write: file.inode.last_write(), truncate_generation };
    let mut has_failed = false;
    loop {
        let options = CallOptions {
            data: vec![data.clone()],
            durable: is_durable,
            trace: worker.next_trace(),
            ..CallOptions::default()
        };
        match worker.change_storage(&file, group, &request, options).await {
            Ok(written) if is_durable => {
                return Ok(Acknowledged::DurableChunk(key, group, written.incarnation, start));
            }
            Ok(written) => return Ok(Acknowledged::Chunk(key, group, written.incarnation)),
            // `Protocol` means that the data was damaged in transit, so the client sends the data
            // once more.
            Err(error) if error.code() == ErrorCode::Protocol && !has_failed => has_failed = true,
            Err(error) => {
                return Err(error.within(format_args!("cannot write chunk file {key}")));
            }
        }
    }
}

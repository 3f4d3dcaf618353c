//! Reading file data. The client requests pieces from all groups in parallel, receives them
//! directly into the caller's buffer, and verifies the checksums of each piece.

use crate::client::{Client, Worker};
use crate::data::granules;
use crate::data::holes::{Missing, MissingBytes};
use crate::data::inline;
use crate::data::plan::plan;
use crate::files::handles::HandleId;
use crate::files::open_file::{FirstRead, OpenFile};
use crate::files::opened_bytes::FileState;
use crate::inode_state::FileEnd;
use crate::limits::MAX_PIECE_BYTES;
use skep_cluster::striping::Piece;
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::{ChunkFileKey, Error, ErrorCode, GroupId, InodeId, Result};
use skep_wire::storage::ReadChunk;
use std::rc::Rc;

/// Reads the bytes of files, and records the files that the kernel may have in its page cache.
pub trait Reads {
    /// Reads `into.len()` bytes from `offset` of the file into `into`. Returns the number of bytes
    /// read, which is less than `into.len()` only at the end of the file. The caller may drop the
    /// future at any await; the buffer then has arbitrary contents.
    ///
    /// # Errors
    /// - `Stale` if the handle is not open or its file was removed.
    /// - `Corrupt` if the data does not match its checksums.
    fn read(&self, handle: HandleId, offset: u64, into: Buf)
    -> impl Future<Output = Result<usize>>;

    /// Records that the kernel's page cache may keep the bytes of the caller's next read.
    fn note_cached(&self, _handle: HandleId) {}

    /// Records that the caller's next write does not use the kernel's page cache.
    fn note_direct_write(&self, _handle: HandleId) {}

    /// Returns whether the kernel may have cached pages of a file since the file was opened.
    fn is_cached(&self, _inode: InodeId) -> bool {
        true
    }

    /// Returns whether a file is shared: this mount and other mounts have the file open, and at
    /// least one mount has it open for writing.
    fn is_shared(&self, inode: InodeId) -> bool;
}

impl Reads for Client {
    async fn read(&self, handle: HandleId, offset: u64, into: Buf) -> Result<usize> {
        let file = self.mount().handles.get_live(handle)?;
        self.note_kernel_request(&file);
        self.confirm_locks(&file).await?;
        let length = into.len() as u64;
        let end = offset.saturating_add(length);
        loop {
            let file_end = self.end_for_read(&file, end).await?;
            if offset >= file_end.size || length == 0 {
                return Ok(0);
            }
            let length = (end.min(file_end.size) - offset) as usize;
            if self.read_opened(&file, offset, &into.slice(0..length), file_end) {
                file.check_live()?;
                return Ok(length);
            }
            let pattern = file.pattern();
            let read = self.read_range(&file, offset, into.slice(0..length), file_end).await;
            let missing = match read {
                Ok(missing) => missing,
                Err(error) => {
                    self.follow_move(&file, pattern, error).await?;
                    continue;
                }
            };
            if missing.has_any
                && self.explain_missing(&file, file_end, &missing.absent).await? == Missing::Changed
            {
                continue;
            }
            // While the read was in progress, metadata may have notified this mount that the file
            // was removed. The read then fails.
            file.check_live()?;
            return Ok(length);
        }
    }

    fn note_cached(&self, handle: HandleId) {
        // If the handle is not open, record nothing, because the following read returns the error.
        if let Ok(file) = self.mount().handles.get_live(handle) {
            file.inode.set_cached();
        }
    }

    fn note_direct_write(&self, handle: HandleId) {
        // If the handle is not open, record nothing, because the following write returns the error.
        if let Ok(file) = self.mount().handles.get_live(handle) {
            file.inode.must_compare();
        }
    }

    fn is_cached(&self, inode: InodeId) -> bool {
        self.mount().inodes.get(inode).is_some_and(|state| state.is_cached())
    }

    fn is_shared(&self, inode: InodeId) -> bool {
        // Skip the lookup in the table of inodes if no file of the mount was ever shared, as on
        // almost all mounts.
        self.mount().notifications.has_shared()
            && self.mount().inodes.get(inode).is_some_and(|state| state.is_shared())
    }
}

impl Client {
    /// Fills `into` from the bytes that metadata sent in the reply to the open of the file.
    /// `false` means that the client has no such bytes, or that they may be out of date. `end` is
    /// the end of the file.
    fn read_opened(&self, file: &OpenFile, offset: u64, into: &Buf, end: FileEnd) -> bool {
        if file.is_first_read_done() {
            return false;
        }
        let (inode, now) = (&file.inode, skep_env::now());
        // After a lease has run out, other clients may change the file without a notification.
        let has_lease = self
            .group_of(inode.id)
            .is_ok_and(|group| self.mount().sessions.doubtful(group, now).is_none());
        let state = FileState {
            version: inode.version(),
            size: end.size,
            changes: self.mount().inodes.data_changes(inode.id),
            now,
        };
        let is_read = has_lease
            && !inode.is_shared()
            && file.with_opened_bytes(&state, |bytes| {
                let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let found = &bytes[index(offset)..index(offset + into.len() as u64)];
                into.write(0, found);
                into.zero(found.len()..into.len());
            });
        self.meter().opened_bytes.note(is_read);
        let is_last = offset + into.len() as u64 >= end.size;
        if (is_last || !is_read)
            && let FirstRead::Unlikely = file.take_first_read()
        {
            self.mount().handles.opened_bytes.note_dropped_pages(true);
        }
        is_read
    }

    /// Reads a range of a file. `end` is the end of the file. Sets missing bytes to zero, and
    /// returns a record of the missing bytes.
    async fn read_range(
        &self,
        file: &OpenFile,
        offset: u64,
        into: Buf,
        end: FileEnd,
    ) -> Result<MissingBytes> {
        let range = offset..offset + into.len() as u64;
        let plan = plan(file.pattern(), range, MAX_PIECE_BYTES)?;
        let piece_read = |piece: &Piece| {
            let start = piece.offset_in_range as usize;
            PieceRead {
                key: file.key_of(piece),
                group: piece.group,
                offset: piece.offset_in_chunk_file,
                truncate_generation: end.truncate_generation,
                into: into.slice(start..start + piece.length as usize),
            }
        };
        let mut missing = MissingBytes::default();
        if let [piece] = &plan[..] {
            missing = read_piece(Rc::clone(&self.0), piece_read(piece)).await?;
        } else {
            let tasks: Vec<_> = plan
                .iter()
                .map(|piece| skep_env::spawn(read_piece(Rc::clone(&self.0), piece_read(piece))))
                .collect();
            for task in tasks {
                missing.add(task.await?);
            }
        }
        Ok(missing)
    }
}

impl OpenFile {
    /// Returns the key of the chunk file that contains a piece.
    pub(crate) fn key_of(&self, piece: &Piece) -> ChunkFileKey {
        ChunkFileKey {
            inode: self.inode.id,
            generation: self.pattern().generation,
            component: piece.component,
            index: piece.index,
        }
    }
}

/// One piece to read.
pub(crate) struct PieceRead {
    pub(crate) key: ChunkFileKey,
    /// `None` means that metadata stores the piece.
    pub(crate) group: Option<GroupId>,
    /// Offset of the first byte in the chunk file, or in the file if metadata stores the piece.
    pub(crate) offset: u64,
    /// Truncate generation of the file when the client recorded the size of the file.
    pub(crate) truncate_generation: u64,
    pub(crate) into: Buf,
}

/// Reads one piece, and sets missing bytes to zero. Returns a record of the missing bytes. Bytes
/// are missing if storage had fewer bytes than requested, or if metadata read the inline bytes in
/// another truncate generation. [`Client::explain_missing`] finds out the reason.
pub(crate) async fn read_piece(worker: Rc<Worker>, what: PieceRead) -> Result<MissingBytes> {
    let _place = worker.pieces.acquire().await;
    let PieceRead { key, group, offset, truncate_generation, into } = what;
    let Some(group) = group else {
        let of = (key.inode, key.generation);
        let found = inline::read(Rc::clone(&worker), of, offset, &into).await?;
        let has_any = found != truncate_generation;
        return Ok(MissingBytes { has_any, absent: Vec::new() });
    };
    let mut has_failed = false;
    loop {
        let error = match read_once(&worker, key, group, offset, &into).await {
            Ok((read, exists)) => {
                into.zero(read..into.len());
                let absent = if exists { Vec::new() } else { vec![key] };
                return Ok(MissingBytes { has_any: read < into.len(), absent });
            }
            Err(error) => error,
        };
        if error.code() != ErrorCode::Corrupt {
            return Err(error.within(format_args!("cannot read file {}", key.inode)));
        }
        // The first mismatch of a checksum may be damage in transit, or a write that changed the
        // data during the read. So the client reads once more.
        if std::mem::replace(&mut has_failed, true) {
            let map = worker.router.map();
            let target = map.primary(group).map(|target| target.id.to_string());
            let target = target.unwrap_or_else(|| group.to_string());
            let text = format!(
                "cannot read file {}: {} bytes at {offset} of chunk file {key} on target {target}",
                key.inode,
                into.len()
            );
            let error = error.within(text);
            tracing::error!("{error}; if the next read fails too, restore the file from a backup");
            return Err(error);
        }
    }
}

/// Makes one attempt to read a piece from storage. Returns the number of bytes that storage had,
/// and whether the chunk file exists.
async fn read_once(
    worker: &Rc<Worker>,
    key: ChunkFileKey,
    group: GroupId,
    offset: u64,
    into: &Buf,
) -> Result<(usize, bool)> {
    let request = ReadChunk { key, offset, length: into.len() as u32 };
    let options = CallOptions {
        into: Some(into.clone()),
        trace: worker.next_trace(),
        ..CallOptions::default()
    };
    let (reply, read) = worker.call_storage(group, &request, options).await?;
    if granules::matches(offset, &into.bytes()[..read], &reply.checksums) {
        return Ok((read, reply.exists));
    }
    Err(Error::new(ErrorCode::Corrupt, "the data does not match its checksums"))
}

//! Reads, writes and syncs the inline bytes of files: the first bytes of a file, which metadata
//! stores (docs/design/0009-first-bytes-in-metadata.md). `data::read` and `data::write` divide a
//! range into pieces, and define the guarantees of a write of several pieces.

use crate::client::{Client, Worker};
use crate::files::open_file::OpenFile;
use crate::inode_state::{InodeState, ReportedExtent};
use crate::session::request::ModifyOptions;
use skep_env::Buf;
use skep_rpc::CallOptions;
use skep_types::codec::{Bytes, crc32c};
use skep_types::pattern::INLINE_UNIT;
use skep_types::{Attributes, Error, ErrorCode, InodeId, Result};
use skep_wire::inline::{ReadInline, SyncInline, WriteInline, WriteInlineReply};
use std::rc::Rc;
use std::sync::Arc;

/// Fills `into` with the inline bytes that begin at `offset`. Bytes that were never written are
/// zeros. Returns the truncate generation that the file had when metadata read the bytes.
pub(crate) async fn read(
    worker: Rc<Worker>,
    (inode, generation): (InodeId, u32),
    offset: u64,
    into: &Buf,
) -> Result<u64> {
    let length = into.len() as u32;
    let request = ReadInline { inode, generation, offset, length };
    let mut has_failed = false;
    loop {
        let client = Client(Rc::clone(&worker));
        let answer = client.ask(inode, &request).await;
        let read = answer.map_err(|error| {
            error.within(format_args!("cannot read inline bytes of file {inode}"))
        })?;
        let is_right = crc32c(&read.bytes) == read.checksum && read.bytes.len() <= into.len();
        if is_right {
            into.write(0, &read.bytes);
            into.zero(read.bytes.len()..into.len());
            return Ok(read.truncate_generation);
        }
        // The first mismatch of a checksum may be damage in transit, so the client reads once more.
        if std::mem::replace(&mut has_failed, true) {
            // Metadata computes the checksum for each reply, so a mismatch means damage in transit.
            let text = format!(
                "cannot read {length} bytes at {offset} of file {inode}: the reply of metadata \
                 group {} was damaged twice on its way",
                client.group_of(inode)?
            );
            tracing::error!("{text}; check the network between the hosts");
            return Err(Error::new(ErrorCode::Corrupt, text));
        }
    }
}

/// Returns the end of the inline data, rounded up to a block. The inline bytes after this end are
/// one hole. If `offset` lies in this hole, the function may return any value up to `offset`.
/// `most` is the number of inline bytes.
pub(crate) async fn data_end(
    worker: &Rc<Worker>,
    file: &OpenFile,
    most: u64,
    offset: u64,
) -> Result<u64> {
    let inode = file.inode.id;
    let start = offset - offset % INLINE_UNIT;
    let length = most.saturating_sub(start) as u32;
    let generation = file.pattern().generation;
    let request = ReadInline { inode, generation, offset: start, length };
    let answer = Client(Rc::clone(worker)).ask(inode, &request).await;
    let read = answer
        .map_err(|error| error.within(format_args!("cannot read inline bytes of file {inode}")))?;
    let end = start + read.bytes.len() as u64;
    Ok(end.next_multiple_of(INLINE_UNIT).min(most))
}

/// How metadata executes an inline write.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InlineWrite {
    /// Truncate generation of the file when the write began. Metadata refuses the write with
    /// `EndMoved` if the file was truncated since.
    pub(crate) truncate_generation: u64,
    /// Whether these bytes are the whole write of a program. If the bytes are the whole write,
    /// metadata also raises the size of the file to the end of the bytes.
    pub(crate) extends: bool,
    /// Whether the write is an append. Metadata then refuses it with `EndMoved` if the file ends
    /// beyond the offset.
    pub(crate) appends: bool,
}

/// Writes inline bytes at an offset of the file, and records the mark of the write in the state of
/// the inode.
pub(crate) async fn write(
    worker: &Rc<Worker>,
    file: &Arc<OpenFile>,
    (offset, data): (u64, &Buf),
    how: InlineWrite,
) -> Result<WriteInlineReply> {
    let InlineWrite { truncate_generation, extends, appends } = how;
    let bytes = Bytes::from(&*data.bytes());
    let request = Arc::new(WriteInline {
        inode: file.inode.id,
        generation: file.pattern().generation,
        offset,
        checksum: crc32c(&bytes),
        bytes,
        extends,
        truncate_generation,
        appends,
    });
    let client = Client(Rc::clone(worker));
    let mut has_failed = false;
    loop {
        let sent = client.moment();
        match client.modify_through(file, &request, ModifyOptions::default()).await {
            // `Protocol` means that the data was damaged in transit, so the client sends the data
            // once more.
            Err(error) if error.code() == ErrorCode::Protocol && !has_failed => has_failed = true,
            Ok(written) => {
                file.inode.inline_written(written.mark);
                let attributes = &written.attributes;
                let caches = &client.mount().caches;
                if extends {
                    caches.changed_by_us(attributes.inode, attributes.change_counter);
                    file.inode.know(attributes, sent.after_own_change());
                }
                return Ok(written);
            }
            Err(error) => {
                let inode = file.inode.id;
                return Err(error.within(format_args!("cannot write inline bytes of file {inode}")));
            }
        }
    }
}

impl Client {
    /// Waits until the inline bytes that this mount has written are durable, or until metadata
    /// reports their loss. Returns the size of the file that this mount had reported before the
    /// sync, and the attributes that are durable now. `None` means that there was nothing to sync,
    /// or that the file was removed.
    pub(crate) async fn sync_inline(
        &self,
        state: &Arc<InodeState>,
    ) -> Result<Option<(ReportedExtent, Attributes)>> {
        // Retry: sends the request again if this mount has repeated lost inline writes of the file
        // while the request was on its way. The request then had the earlier, lost marks of these
        // writes. The number of power losses of metadata limits the repetitions.
        loop {
            let repeated = state.repeated_inline();
            let (written, reported) = (state.unsynced_inline(), state.reported_extent());
            if written.is_empty() {
                return Ok(None);
            }
            let request = SyncInline { inode: state.id, written };
            let how = CallOptions { durable: true, ..CallOptions::default() };
            let synced = self.ask_with(state.id, &request, how).await?;
            if synced.is_lost && state.repeated_inline() != repeated {
                continue;
            }
            state.inline_synced(&request.written, synced.is_lost);
            return Ok(synced.attributes.map(|durable| (reported, durable)));
        }
    }
}

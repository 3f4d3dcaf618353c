//! Truncations. The transaction of a request sets the new size of the file. If chunk files may have
//! bytes beyond this size, the same transaction writes a `TruncationRecord` (the work item), and
//! storage truncates the chunk files later. `docs/design/0010-truncations.md` describes the whole
//! design.
//!
//! This module owns the change of the inode, and decides which requests wait for a pending
//! truncation. The module does not own the requests to storage (`background::truncations`) or the
//! replies that wait (`target::truncations`).
//!
//! # Invariants
//! - While a truncation is pending, no request makes the file longer, and no client that may write
//!   gets the new truncate generation in a reply. With the new generation, the client could write
//!   bytes that storage then removes.
//! - A newer truncation includes the chunk files of the work item that it replaces.
//!
//! The invariants relate the target to its clients, so no function here can check them.
//!
//! Held by the tests `reports_of_writes_wait_for_a_pending_truncation`,
//! `lookups_succeed_while_storage_refuses_a_truncation` and
//! `a_new_truncation_replaces_a_refused_one`. The checker `check_truncated` of the simulator finds
//! a truncation that ends before storage has truncated its chunk files.
//!
//! # Writes during a truncation
//! A write that another client began before the truncation may reach a chunk file before or after
//! storage has truncated it. So a client that writes to a shared file sends `ReportWritten` or
//! `AwaitTruncation` before it completes the write. The target delays the reply while a truncation
//! is pending. If the truncate generation in the reply shows that the truncation may have removed
//! the bytes, the client writes them again. If the target replies before the truncation begins,
//! storage already has all bytes of the write.

use crate::engine::Engine;
use crate::tx::context::{Context, of_another};
use crate::tx::locks::Resource;
use crate::tx::operation::{Operation, Stop};
use skep_cluster::striping;
use skep_format::metadata::{InodeRecord, Key, TruncatedChunkFile, TruncationRecord};
use skep_types::codec::Codec;
use skep_types::{
    Attributes, ChunkFileKey, Error, ErrorCode, FileKind, HostIncarnation, InodeId, MAX_FILE_BYTES,
    Result, StripePattern,
};
use skep_wire::Request;
use skep_wire::frame::Header;
use skep_wire::metadata::{self as md, TruncatedChunk};
use skep_wire::{file_locks as fl, inline as il};

/// Sets the size of a file, which may become shorter or longer, also for opens with `O_TRUNC`. The
/// caller stores the inode.
pub(crate) fn truncate<E: Engine>(
    context: &mut Context<'_, E>,
    record: &mut InodeRecord,
    size: u64,
) -> Result<(), Stop> {
    match record.attributes.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(ErrorCode::IsDirectory.into()),
        _ => return Err(ErrorCode::InvalidArgument.into()),
    }
    if size > MAX_FILE_BYTES {
        return Err(ErrorCode::FileTooLarge.into());
    }
    let inode = record.attributes.inode;
    let reach = context.reach(record)?;
    let mut chunk_files = match &record.pattern {
        Some(pattern) => chunk_files_beyond(pattern, inode, size, reach),
        None => Vec::new(),
    };
    set_size(context, record, size)?;
    forget_empty(record, size);
    if chunk_files.is_empty() {
        return Ok(());
    }
    let mut had_writers = context.opens(inode)?.writers > 0;
    if let Some(earlier) = context.shared.truncations.get(inode) {
        let earlier = &earlier.record;
        had_writers |= !earlier.is_applied && earlier.had_writers;
        cover(&mut chunk_files, earlier, record.pattern.as_ref(), size);
    }
    let generation = record.attributes.truncate_generation;
    let item = TruncationRecord { generation, had_writers, is_applied: false, chunk_files };
    context.put(&Key::Truncation(inode), &item);
    Ok(())
}

/// Gives an empty file the truncate generation of a lost truncation to zero bytes, if the operation
/// replays the open with this truncation. The truncation had removed no bytes, so later writes and
/// reports of all clients are still right, and contain this generation. Returns whether the inode
/// has changed. If so, the caller stores the inode.
///
/// Does nothing if the file has bytes, because the lost truncation had removed them. Also does
/// nothing if the file was truncated since, for example because the target has repeated an earlier
/// truncation at storage. In both cases, the generation in the reply shows the client that the
/// truncation is lost.
pub(crate) fn restore_generation<E: Engine>(
    context: &Context<'_, E>,
    record: &mut InodeRecord,
) -> Result<bool> {
    let lost = context.op.first_reply.as_ref().map_or(0, |it| it.truncate_generation);
    let Attributes { size, truncate_generation, .. } = record.attributes;
    let is_lost = lost > truncate_generation && context.shared.starts.is_of_earlier_start(lost);
    if !is_lost || size > 0 || context.inline_reach(record)? > 0 {
        return Ok(false);
    }
    forget_empty(record, 0);
    record.attributes.truncate_generation = lost;
    record.attributes.is_sparse = false;
    context.touch_modified(&mut record.attributes);
    Ok(true)
}

/// Returns the chunk files that may have bytes beyond the file size `size`. `reach` is an upper
/// bound of the file offsets at which chunk files have bytes.
fn chunk_files_beyond(
    pattern: &StripePattern,
    inode: InodeId,
    size: u64,
    reach: u64,
) -> Vec<TruncatedChunkFile> {
    if reach <= size {
        return Vec::new();
    }
    let sizes = striping::chunk_sizes(pattern, size);
    let both = sizes.zip(striping::chunk_sizes(pattern, reach));
    let beyond = both.filter(|(chunk, most)| most.size > chunk.size);
    beyond
        .map(|(chunk, _)| TruncatedChunkFile {
            group: chunk.group,
            key: ChunkFileKey {
                inode,
                generation: pattern.generation,
                component: chunk.component,
                index: chunk.index,
            },
            size: chunk.size,
            incarnation: HostIncarnation::default(),
        })
        .collect()
}

/// Removes the chunk files without bytes below the file size `size` from the set of synced chunk
/// files. The file has all its bytes without such a chunk file, so the absence of the chunk file
/// must not be an error.
fn forget_empty(record: &mut InodeRecord, size: u64) {
    let Some(pattern) = record.pattern.as_ref().filter(|_| !record.synced_chunk_files.is_empty())
    else {
        return;
    };
    for chunk in striping::chunk_sizes(pattern, size).filter(|chunk| chunk.size == 0) {
        if let Some(number) = pattern.chunk_file_number(chunk.component, chunk.index) {
            record.synced_chunk_files.remove(number);
        }
    }
}

/// Adds to `chunk_files` the chunk files of an earlier truncation that is not durable yet.
fn cover(
    chunk_files: &mut Vec<TruncatedChunkFile>,
    earlier: &TruncationRecord,
    pattern: Option<&StripePattern>,
    size: u64,
) {
    let Some(pattern) = pattern else { return };
    for chunk in striping::chunk_sizes(pattern, size) {
        let is_it = |it: &TruncatedChunkFile| {
            (it.key.component, it.key.index) == (chunk.component, chunk.index)
        };
        let Some(old) = earlier.chunk_files.iter().find(|it| is_it(it)) else { continue };
        // If storage has not applied the earlier truncation, the chunk file may still have bytes
        // beyond the earlier size.
        let most = if earlier.is_applied { chunk.size } else { chunk.size.min(old.size) };
        match chunk_files.iter_mut().find(|it| is_it(it)) {
            Some(new) => new.size = new.size.min(most),
            None => chunk_files.push(TruncatedChunkFile { size: most, ..*old }),
        }
    }
}

/// Sets the size of a file, and truncates its inline bytes.
fn set_size<E: Engine>(
    context: &mut Context<'_, E>,
    record: &mut InodeRecord,
    size: u64,
) -> Result<()> {
    context.truncate_inline(record, size)?;
    let is_longer = size > record.attributes.size;
    record.attributes.is_sparse = size > 0 && (record.attributes.is_sparse || is_longer);
    record.attributes.size = size;
    context.raise_truncate_generation(&mut record.attributes);
    context.touch_modified(&mut record.attributes);
    Ok(())
}

impl<E: Engine> Context<'_, E> {
    /// Gives a file a new truncate generation. No acknowledged truncation of the file has this
    /// generation, not even one that a power loss has reverted. A client may still report writes in
    /// the generation of a reverted truncation.
    fn raise_truncate_generation(&self, attributes: &mut Attributes) {
        let last = attributes.truncate_generation;
        attributes.truncate_generation = self.shared.starts.next_truncate_generation(last);
    }

    /// Checks whether this operation may run while the truncation of a file is pending. If it must
    /// wait, returns [`Stop::Held`]. If it must fail, because storage has refused the truncation,
    /// returns the error of storage.
    pub(crate) fn check_truncation(&self, inode: InodeId) -> Result<(), Stop> {
        let Some(truncation) = self.shared.truncations.pending(inode) else { return Ok(()) };
        match (patience(self.op, truncation.record.had_writers), &truncation.failure) {
            (Patience::Ignores, _) | (Patience::Replaces, Some(_)) => Ok(()),
            (Patience::WaitsOrShows, Some(_)) if !self.is_held(inode) => Ok(()),
            (Patience::WaitsOrFails | Patience::WaitsOrShows, Some(error)) => {
                Err(unfinished(inode, error).into())
            }
            _ => Err(Stop::Held(Resource::Truncation(inode))),
        }
    }

    /// Whether the session of this operation has the file open, and so may write through a handle
    /// that it opened before the truncation.
    fn is_held(&self, inode: InodeId) -> bool {
        let session = self.op.header().map(|header| header.session);
        session.is_some_and(|session| self.shared.sharing.holders(inode).contains(&session))
    }

    /// Marks a truncation as applied, after storage has truncated all chunk files. `incarnations`
    /// has the incarnation of the storage host of each chunk file, in the order of the chunk files.
    pub(crate) fn apply_truncation(
        &mut self,
        inode: InodeId,
        generation: u64,
        incarnations: &[HostIncarnation],
    ) -> Result<(), Stop> {
        let Some(mut item) = self.unfinished_truncation(inode, generation, false)? else {
            return Ok(());
        };
        for (chunk, incarnation) in item.chunk_files.iter_mut().zip(incarnations) {
            chunk.incarnation = *incarnation;
        }
        item.is_applied = true;
        self.put(&Key::Truncation(inode), &item);
        Ok(())
    }

    /// Ends a truncation after storage has synced its chunk files. `lost` contains the component
    /// and the index of each chunk file whose storage host may have lost power between the
    /// truncation and the sync. If no writer has the file open, storage truncates these chunk files
    /// again. If a writer has the file open, a size recovery must not measure these chunk files,
    /// because they may have old bytes beyond the end.
    pub(crate) fn settle_truncation(
        &mut self,
        inode: InodeId,
        generation: u64,
        lost: &[(u16, u16)],
    ) -> Result<(), Stop> {
        let Some(mut item) = self.unfinished_truncation(inode, generation, true)? else {
            return Ok(());
        };
        let record = self.find_inode(inode)?;
        let before = item.chunk_files.len();
        item.chunk_files.retain(|it| lost.contains(&(it.key.component, it.key.index)));
        let Some((mut record, pattern)) = record
            .and_then(|record| record.pattern.clone().map(|pattern| (record, pattern)))
            .filter(|_| !item.chunk_files.is_empty())
        else {
            self.delete(&Key::Truncation(inode));
            return Ok(());
        };
        if self.opens(inode)?.writers > 0 {
            // In the other chunk files, the truncation is durable. Remove these chunk files from
            // the work item. If they stayed in it, a later power loss of their hosts would count as
            // a loss of the truncation after a restart of the target.
            if item.chunk_files.len() < before {
                self.put(&Key::Truncation(inode), &item);
            }
            self.shared.truncations.note_lost(inode);
            return Ok(());
        }
        tracing::warn!(
            "file {inode}: storage lost a truncation that was not durable yet, since a disk failed \
             or a host lost power; metadata truncates the chunk files of the file again"
        );
        let size = record.attributes.size;
        let chunk_files = striping::chunk_sizes(&pattern, size)
            .filter_map(|chunk| {
                let is_it = |it: &&TruncatedChunkFile| {
                    (it.key.component, it.key.index) == (chunk.component, chunk.index)
                };
                let old = item.chunk_files.iter().find(is_it)?;
                Some(TruncatedChunkFile { size: chunk.size, ..*old })
            })
            .collect();
        self.raise_truncate_generation(&mut record.attributes);
        self.touch_changed(&mut record.attributes);
        self.put_inode(&record);
        let generation = record.attributes.truncate_generation;
        let again =
            TruncationRecord { generation, had_writers: false, is_applied: false, chunk_files };
        self.put(&Key::Truncation(inode), &again);
        Ok(())
    }

    /// Returns the work item of a truncation. `None` means that the truncation has ended, that a
    /// newer truncation has replaced it, or that the field `is_applied` of the work item is not
    /// `is_applied`.
    fn unfinished_truncation(
        &self,
        inode: InodeId,
        generation: u64,
        is_applied: bool,
    ) -> Result<Option<TruncationRecord>> {
        let item = self.get::<TruncationRecord>(&Key::Truncation(inode))?;
        Ok(item.filter(|it| (it.generation, it.is_applied) == (generation, is_applied)))
    }
}

/// Returns the error for a request that waits for the truncation of the file `inode`. `error` is
/// the error of a failed attempt to truncate the chunk files.
pub(crate) fn unfinished(inode: InodeId, error: &Error) -> Error {
    let error = of_another(error.clone());
    error.within(format_args!(
        "cannot finish the truncation of file {inode} yet; metadata repeats the truncation"
    ))
}

/// How an operation behaves while the truncation of a file is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// The operation runs as if there were no truncation.
    Ignores,
    /// The operation waits for the end of the truncation.
    Waits,
    /// The operation waits, or fails if storage has refused the truncation.
    WaitsOrFails,
    /// The operation waits. If storage has refused the truncation, the operation runs, unless its
    /// session has the file open. The reply to the operation contains the new size and generation.
    /// No client can write with this generation, because opens of the file fail until the
    /// truncation has ended.
    WaitsOrShows,
    /// The operation waits, or replaces the truncation if storage has refused it.
    Replaces,
}

fn patience(op: &Operation, had_writers: bool) -> Patience {
    let Some(header) = op.header() else { return Patience::Ignores };
    match header.message {
        _ if truncated_by(header.message, &op.body).is_some() => Patience::Replaces,
        md::Close::ID | md::ReportWritten::ID | md::AwaitTruncation::ID => Patience::Waits,
        md::Open::ID
        | md::Create::ID
        | md::SetAttributes::ID
        | md::SetPattern::ID
        | il::WriteInline::ID
        | fl::SetLock::ID => Patience::WaitsOrFails,
        // `GetEntryInfo` never waits, because commands show paths with it, and no client uses the
        // generation in its reply.
        md::GetAttributes::ID | md::Lookup::ID if had_writers => Patience::WaitsOrShows,
        _ => Patience::Ignores,
    }
}

/// Returns the file whose size a request sets, or which a request trims (`TrimFile`). `None` for
/// all other requests.
pub(crate) fn truncated_by(message: u16, body: &[u8]) -> Option<InodeId> {
    match message {
        md::Open::ID => md::Open::from_bytes(body).ok().filter(|it| it.truncate).map(|it| it.inode),
        md::SetAttributes::ID => {
            let change = md::SetAttributes::from_bytes(body).ok()?;
            change.size.map(|_| change.inode)
        }
        md::TrimFile::ID => md::TrimFile::from_bytes(body).ok().map(|it| it.inode),
        _ => None,
    }
}

/// Adds the truncated chunk files to the reply of the request that has truncated a file. The
/// handler cannot add the chunk files, because storage truncates them later. Returns the reply
/// unchanged if it belongs to another truncation than `item`.
pub(crate) fn stamp(header: &Header, item: &TruncationRecord, reply: &[u8]) -> Result<Vec<u8>> {
    let of = |it: &TruncatedChunkFile| TruncatedChunk {
        key: it.key,
        group: it.group,
        incarnation: it.incarnation,
    };
    let is_its = |attributes: &Attributes| attributes.truncate_generation == item.generation;
    let truncated = item.chunk_files.iter().map(of).collect();
    if header.message == md::TrimFile::ID {
        return Ok(reply.to_vec());
    }
    if header.message == md::Open::ID {
        let opened = md::OpenReply::from_bytes(reply)?;
        if is_its(&opened.attributes) {
            return Ok(md::OpenReply { truncated, ..opened }.to_bytes());
        }
    } else {
        let changed = md::SetAttributesReply::from_bytes(reply)?;
        if is_its(&changed.attributes) {
            return Ok(md::SetAttributesReply { truncated, ..changed }.to_bytes());
        }
    }
    Ok(reply.to_vec())
}

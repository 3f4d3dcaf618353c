//! Truncations: storage truncates the chunk files first, then the target logs the new size.
//!
//! If the target is killed between these two steps, the client repeats the request. Until then,
//! bytes beyond the new size may be gone although the file still has the old size. In the opposite
//! order, truncated bytes could reappear when the file grows later.
//!
//! # Invariants
//! - A truncation waits for the replies about all its chunk files. Then the file gets the size to
//!   which the chunk files were truncated. If the operation has failed meanwhile, internal work of
//!   the target finishes the truncation.
//! - Each file has at most one truncation in progress. Further truncations, and the recovery of the
//!   file's size, wait until that truncation has ended.
//!
//! # Writes during a truncation
//! A write that another client began before the truncation may reach a chunk file before or after
//! storage has truncated it. So a write to a shared file asks this target before it is complete,
//! and the answer waits for the end of the truncation ([`await_truncation`]). Its truncate
//! generation then shows whether the truncation may have removed the bytes. If so, the client
//! writes them again. A write that was answered before the truncation began is in all chunk files
//! before storage truncates them.
//!
//! # The hazard
//! The service repeats a `TruncateChunk` until its storage target replies, perhaps long after the
//! client that requested the truncation has died. If the target abandoned the truncation meanwhile,
//! storage would still truncate the chunk file. The late truncation would destroy acknowledged
//! bytes that other clients have written since.
//!
//! So only a restart of this process abandons truncations, together with the connections on which
//! the calls were sent. If the client is alive, it repeats its request. If the client died too,
//! bytes beyond the requested size may read as zeros.

use crate::engine::Engine;
use crate::tx::context::{Context, of_another};
use crate::tx::locks::{Owner, Resource};
use crate::tx::operation::{OutgoingCall, Stop};
use skep_cluster::striping;
use skep_format::metadata::InodeRecord;
use skep_types::{
    ChunkFileKey, Error, ErrorCode, FileKind, GroupId, InodeId, MAX_FILE_BYTES, Result,
};
use skep_wire::storage::TruncateChunk;

/// Truncates or extends a file. An open with `O_TRUNC` calls this too.
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
    if !context.has_truncation(inode)?
        && let reach = context.reach(record)?
        && let Some(pattern) = record.pattern.as_ref().filter(|_| reach > size)
    {
        let mut truncations = Vec::new();
        let sizes = striping::chunk_sizes(pattern, size);
        for (chunk, most) in sizes.zip(striping::chunk_sizes(pattern, reach)) {
            if most.size > chunk.size {
                let key = ChunkFileKey {
                    inode,
                    generation: pattern.generation,
                    component: chunk.component,
                    index: chunk.index,
                };
                truncations.push((chunk.group, TruncateChunk { key, size: chunk.size }));
            }
        }
        if !truncations.is_empty() {
            return Err(context.begin_truncation(inode, size, truncations));
        }
    }
    set_size(context, record, size)?;
    Ok(())
}

/// Returns [`Stop::Held`] while storage is truncating the chunk files of a file.
pub(crate) fn await_truncation<E: Engine>(
    context: &Context<'_, E>,
    inode: InodeId,
) -> Result<(), Stop> {
    match context.shared.truncations.contains(inode) {
        true => Err(Stop::Held(Resource::Truncation(inode))),
        false => Ok(()),
    }
}

/// Sets the size of a file, and truncates the first bytes that metadata keeps. No chunk file may
/// have bytes beyond `size`.
pub(crate) fn set_size<E: Engine>(
    context: &mut Context<'_, E>,
    record: &mut InodeRecord,
    size: u64,
) -> Result<()> {
    context.truncate_inline(record, size)?;
    let is_longer = size > record.attributes.size;
    record.attributes.is_sparse = size > 0 && (record.attributes.is_sparse || is_longer);
    record.attributes.size = size;
    record.attributes.truncate_generation += 1;
    context.touch_modified(&mut record.attributes);
    Ok(())
}

impl<E: Engine> Context<'_, E> {
    /// Returns `true` if storage has truncated all chunk files for this operation, and `false` if
    /// the file has no truncation in progress. While storage is truncating the chunk files, returns
    /// a [`Stop`] that makes the operation wait.
    ///
    /// # Errors
    /// The first refusal of storage.
    pub(crate) fn has_truncation(&self, inode: InodeId) -> Result<bool, Stop> {
        let Some(truncation) = self.shared.truncations.get(inode) else { return Ok(false) };
        if truncation.operation != Some(self.op.id) {
            return Err(Stop::Held(Resource::Truncation(inode)));
        }
        match (&truncation.failure, truncation.missing_replies) {
            (_, 1..) => Err(Stop::Truncating(Vec::new())),
            (Some(error), _) => {
                let error = of_another(error.clone());
                Err(Error::within(error, format_args!("truncating {inode}")).into())
            }
            (None, 0) => Ok(true),
        }
    }

    /// Begins to truncate chunk files, so that the file can get the size `size`.
    pub(crate) fn begin_truncation(
        &mut self,
        inode: InodeId,
        size: u64,
        truncations: Vec<(GroupId, TruncateChunk)>,
    ) -> Stop {
        self.shared.truncations.begin(inode, size, self.op.id, truncations.len());
        self.shared.locks.try_take(&Resource::Truncation(inode), Owner::Truncation(inode));
        self.op.truncation = Some(inode);
        let call =
            |(group, truncation): (GroupId, TruncateChunk)| OutgoingCall::new(group, &truncation);
        Stop::Truncating(truncations.into_iter().map(call).collect())
    }
}

/// Sets the size of a file after storage has truncated its chunk files for an operation that has
/// failed.
pub(crate) fn finish<E: Engine>(context: &mut Context<'_, E>, inode: InodeId) -> Result<(), Stop> {
    let found = context.find_inode(inode)?;
    let Some(truncation) = context.shared.truncations.get(inode) else { return Ok(()) };
    if let Some(error) = &truncation.failure {
        tracing::warn!(
            "cannot finish the truncation of file {inode} for a failed request: {error}; some of \
             its chunk files may be truncated"
        );
        return Ok(());
    }
    let size = truncation.size;
    if let Some(mut record) = found {
        match set_size(context, &mut record, size) {
            Err(error) if error.code() == ErrorCode::Corrupt => {
                tracing::error!(
                    "cannot finish the truncation of file {inode} for a failed request: {error}"
                );
            }
            result => {
                result?;
                context.put_inode(&record);
            }
        }
    }
    Ok(())
}

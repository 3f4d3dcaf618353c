//! `SetAttributes`: `chmod`, `chown`, `utimes`, `truncate`.
//!
//! A new size cuts the chunk files first and is written then: if the target dies between, the
//! client asks again. Bytes beyond the new size may be gone by then although the size is still the
//! old one; they never come back when the file grows later, which the other order would allow.

use crate::context::Context;
use crate::engine::Engine;
use crate::namespace::PERMISSION_BITS;
use crate::operation::Stop;
use skep_cluster::striping;
use skep_format::metadata::InodeRecord;
use skep_types::{ChunkFileKey, Error, ErrorCode, FileKind, MAX_FILE_BYTES, Timestamp};
use skep_wire::metadata::{AttributesReply, SetAttributes, SetTime};
use skep_wire::storage::TruncateChunk;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: SetAttributes,
) -> Result<AttributesReply, Stop> {
    let mut record = context.inode(request.inode)?;
    if let Some(size) = request.size {
        truncate(context, &mut record, size)?;
    }
    let now = context.wall();
    let time = |set: SetTime| -> Timestamp { if set.now { now } else { set.at } };
    let attributes = &mut record.attributes;
    if let Some(permissions) = request.permissions {
        attributes.permissions = permissions & PERMISSION_BITS;
    }
    attributes.uid = request.uid.unwrap_or(attributes.uid);
    attributes.gid = request.gid.unwrap_or(attributes.gid);
    attributes.project = request.project.unwrap_or(attributes.project);
    if let Some(set) = request.accessed {
        attributes.accessed = time(set);
    }
    if let Some(set) = request.modified {
        attributes.modified = time(set);
    }
    for set in [request.accessed, request.modified].into_iter().flatten() {
        if set.at.nanoseconds >= 1_000_000_000 {
            return Err(ErrorCode::InvalidArgument.into());
        }
    }
    context.touch_changed(&mut record.attributes);
    context.put_inode(&record);
    Ok(AttributesReply { attributes: record.attributes })
}

/// Cuts or extends a file. Also what opening with `O_TRUNC` does.
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
    if let Some(pattern) = record.pattern.as_ref().filter(|_| reach > size) {
        let mut cuts = Vec::new();
        let sizes = striping::chunk_sizes(pattern, size);
        for (chunk, most) in sizes.zip(striping::chunk_sizes(pattern, reach)) {
            if most.size > chunk.size {
                let key = ChunkFileKey {
                    inode,
                    generation: pattern.generation,
                    component: chunk.component,
                    index: chunk.index,
                };
                cuts.push((chunk.group, TruncateChunk { key, size: chunk.size }));
            }
        }
        context.ask_all(cuts.iter().map(|(group, cut)| (*group, cut)).collect()).map_err(
            |stop| match stop {
                Stop::Fail(error) => {
                    Error::within(error, format_args!("truncating {inode}")).into()
                }
                other => other,
            },
        )?;
    }
    let now = context.wall();
    let is_longer = size > record.attributes.size;
    record.attributes.is_sparse = size > 0 && (record.attributes.is_sparse || is_longer);
    record.attributes.size = size;
    record.attributes.truncate_generation += 1;
    record.attributes.modified = record.attributes.modified.max(now);
    context.touch_changed(&mut record.attributes);
    Ok(())
}

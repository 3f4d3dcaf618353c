//! `SetPattern`: sets the stripe pattern that new files and directories in a directory inherit, or
//! the pattern of a file that has never stored a byte.
//!
//! The pattern of a file can change only while no session has the file open, because a client uses
//! the pattern from the reply to its open. The new pattern gets a new generation. If a late write
//! of a dead client creates chunk files of the old generation, these do not belong to the file.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_cluster::patterns;
use skep_format::metadata::{InodeRecord, Key, TruncationRecord};
use skep_types::{ChunkFileSet, Error, ErrorCode, FileKind, PatternOrigin, PatternRequest};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::SetPattern;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: SetPattern,
) -> Result<EmptyReply, Stop> {
    let mut record = context.inode(request.inode)?;
    let uid = request.uid;
    if uid != 0 && uid != record.attributes.uid {
        let what = "cannot set the stripe pattern: only root and the owner of the file or \
                    directory can set it";
        return Err(Error::new(ErrorCode::NotPermitted, what).into());
    }
    if let Some(asked) = &request.pattern {
        patterns::check_request(&context.shared.map, asked, uid)?;
    }
    context.check_free_space()?;
    match record.attributes.kind {
        FileKind::Directory => {
            let origin = PatternOrigin::Directory;
            let default = request.pattern.map(|pattern| PatternRequest { origin, ..pattern });
            record.pattern = default.map(|default| default.to_record());
        }
        FileKind::Regular => set_of_file(context, &mut record, &request)?,
        _ => {
            let what = "cannot set the stripe pattern: only directories and regular files have a \
                        stripe pattern";
            return Err(Error::new(ErrorCode::InvalidArgument, what).into());
        }
    }
    context.touch_changed(&mut record.attributes);
    context.put_inode(&record);
    Ok(EmptyReply {})
}

fn set_of_file<E: Engine>(
    context: &mut Context<'_, E>,
    record: &mut InodeRecord,
    request: &SetPattern,
) -> Result<(), Stop> {
    if request.pattern.is_none() {
        let what = "cannot remove the stripe pattern of a file; set another stripe pattern instead";
        return Err(Error::new(ErrorCode::NotPermitted, what).into());
    }
    let is_open = !context.opens(request.inode)?.is_zero();
    if is_open || record.attributes.size > 0 || context.reach(record)? > 0 {
        let what = "cannot set the stripe pattern of a file that is open or has ever stored data; \
                    create a new file with another pattern";
        return Err(Error::new(ErrorCode::InUse, what).into());
    }
    // The chunk files of an earlier truncation have the old generation, and do not belong to the
    // file any more. So storage removes these chunk files instead of syncing the truncation. A sync
    // alone would not remove bytes that a power loss of storage has brought back, and these bytes
    // would take up space until the file is removed.
    if let Some(truncation) = context.get::<TruncationRecord>(&Key::Truncation(request.inode))? {
        for chunk in truncation.chunk_files {
            context.put_raw(&Key::Removal(chunk.group, chunk.key), &[]);
        }
        context.delete(&Key::Truncation(request.inode));
    }
    // Remove inline bytes: they may exist if a power loss has reverted the open of a client, and
    // this client has then written them.
    context.remove_inline(record)?;
    let old = record.pattern.take();
    let generation = old.as_ref().map_or(0, |old| old.generation) + 1;
    // Fields that the request does not set keep their values. Groups that a placement policy has
    // chosen are chosen again.
    let base = old.as_ref().map(PatternRequest::with_policies_of);
    let merged = patterns::merge(request.pattern.as_ref(), base.as_ref());
    let shared = &mut *context.shared;
    let mut pattern = patterns::resolve(&merged, &shared.map.policy);
    pattern.generation = generation;
    let seed = request.inode.raw();
    let placement = &mut shared.placement;
    let placed = patterns::place(pattern, &placement.candidates, seed, &mut placement.cursor)?;
    record.pattern = Some(placed);
    context.unlogged.changed_patterns.push(request.inode);
    record.synced_chunk_files = ChunkFileSet::default();
    Ok(())
}

//! `SetPattern`: what new files and directories in a directory inherit, or where a file will lie
//! that has never held a byte.
//!
//! A file's pattern changes only while nobody has it open, since whoever has works by the one that
//! he was given. Then it gets a new generation: chunk files of the old one, if a write of a client
//! that is gone is still on its way, are none of the file's.

use crate::context::Context;
use crate::engine::Engine;
use crate::operation::Stop;
use skep_cluster::patterns;
use skep_format::metadata::InodeRecord;
use skep_types::{Error, ErrorCode, FileKind, PatternOrigin, PatternRequest};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::SetPattern;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: SetPattern,
) -> Result<EmptyReply, Stop> {
    let mut record = context.inode(request.inode)?;
    let uid = request.uid;
    if uid != 0 && uid != record.attributes.uid {
        let what = "only its owner and root set the stripe pattern of a file or directory";
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
            let what = "only directories and regular files have stripe patterns";
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
        let what = "a file has a stripe pattern always; set another";
        return Err(Error::new(ErrorCode::NotPermitted, what).into());
    }
    let is_open = !context.opens(request.inode)?.is_zero();
    if is_open || record.attributes.size > 0 || context.reach(record)? > 0 {
        let what = "the stripe pattern of a file that is open, or has ever held data, stays as it \
                    is: write a new file with another one";
        return Err(Error::new(ErrorCode::InUse, what).into());
    }
    // A power loss may have taken the open of a client that has just written.
    context.remove_inline(record)?;
    let old = record.pattern.take();
    let generation = old.as_ref().map_or(0, |old| old.generation) + 1;
    // Unset fields keep their values. Groups that a policy chose are chosen anew.
    let base = old.as_ref().map(PatternRequest::with_policies_of);
    let merged = patterns::merge(request.pattern.as_ref(), base.as_ref());
    let shared = &mut *context.shared;
    let mut pattern = patterns::resolve(&merged, &shared.map.policy);
    pattern.generation = generation;
    let seed = request.inode.raw();
    let placed = patterns::place(pattern, &shared.candidates, seed, &mut shared.cursor)?;
    record.pattern = Some(placed);
    Ok(())
}

//! `SetAttributes`: `chmod`, `chown`, `utimes` and `truncate`.

use crate::engine::Engine;
use crate::namespace::inodes::PERMISSION_BITS;
use crate::namespace::truncations;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::{Error, ErrorCode, FileKind, Timestamp};
use skep_wire::metadata::{SetAttributes, SetAttributesReply, SetTime};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: SetAttributes,
) -> Result<SetAttributesReply, Stop> {
    // Check the times first, because a refused request must change nothing and notify no client.
    for set in [request.accessed, request.modified].into_iter().flatten() {
        if set.at.nanoseconds >= 1_000_000_000 {
            let what = format!(
                "cannot set a time of inode {}: the nanoseconds are more than 999,999,999",
                request.inode
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what).into());
        }
    }
    // Wait for undecided transactions, because the reply has all attributes, and the client's
    // kernel may cache the attributes.
    context.await_decisions(request.inode)?;
    let mut record = context.inode(request.inode)?;
    if let Some(size) = request.size {
        context.share_with_writers(request.inode)?;
        truncations::truncate(context, &mut record, size)?;
    }
    let is_owned_anew = request.uid.is_some() || request.gid.is_some();
    if is_owned_anew || request.size.is_some() {
        context.drop_capability(&mut record);
    }
    context.touch_changed(&mut record.attributes);
    let now = record.attributes.changed;
    let time = |set: SetTime| -> Timestamp { if set.now { now } else { set.at } };
    if request.permissions.is_some() || request.cleared_permissions != 0 {
        let attributes = &mut record.attributes;
        let permissions = request.permissions_after(attributes.permissions);
        attributes.permissions = permissions & PERMISSION_BITS;
        context.acl_follows_mode(&record)?;
    }
    let attributes = &mut record.attributes;
    attributes.uid = request.uid.unwrap_or(attributes.uid);
    attributes.gid = request.gid.unwrap_or(attributes.gid);
    attributes.project = request.project.unwrap_or(attributes.project);
    if let Some(hands_down) = request.hands_down_project {
        attributes.hands_down_project = hands_down && attributes.kind == FileKind::Directory;
    }
    if let Some(set) = request.accessed {
        attributes.accessed = time(set);
    }
    if request.size.is_some() {
        attributes.modified = now;
    }
    if let Some(set) = request.modified {
        attributes.modified = time(set);
    }
    context.put_inode(&record);
    Ok(SetAttributesReply { attributes: record.attributes, truncated: Vec::new() })
}

//! `Open`: opens a regular file for the session, and counts the open. With `O_TRUNC`, the same
//! transaction truncates the file. The replay of an open with `O_TRUNC` after a power loss does not
//! truncate the file again.

use crate::engine::Engine;
use crate::namespace::truncations;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::InodeRecord;
use skep_types::{Error, ErrorCode, FileKind};
use skep_wire::metadata::{Open, OpenMode, OpenReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Open,
) -> Result<OpenReply, Stop> {
    let mut record = context.inode(request.inode)?;
    match record.attributes.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(ErrorCode::IsDirectory.into()),
        _ => {
            let context = "cannot open an inode that is not a regular file";
            return Err(Error::new(ErrorCode::InvalidArgument, context).into());
        }
    }
    if request.open == OpenMode::No {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            "cannot open a file: the request has no open mode",
        )
        .into());
    }
    if request.must_have_name && record.attributes.links == 0 {
        let text = format!("cannot open file {}: its last name was removed", request.inode);
        return Err(Error::new(ErrorCode::Stale, text).into());
    }
    // The reply may contain only a pattern that no power loss can revert (`tx::pattern_changes`).
    if !context.shared.starts.patterns.is_safe(request.inode) {
        return Err(Stop::Unsafe);
    }
    let mut is_shared = context.check_shared(request.inode, request.open)?;
    if request.open == OpenMode::Write && context.has_size_recovery(request.inode)? {
        // The size in this reply may not include acknowledged writes of the dead writer. A client
        // that has the file alone would append at this size. For a shared file, the client asks for
        // the size before each use, and the lock of an append waits until the size is recovered.
        is_shared = true;
    }
    if request.truncate {
        truncations::truncate(context, &mut record, 0)?;
        context.drop_capability(&mut record);
        context.put_inode(&record);
    } else if truncations::restore_generation(context, &mut record)? {
        context.drop_capability(&mut record);
        context.put_inode(&record);
    }
    context.count_open(request.inode, request.open)?;
    if !is_shared && !request.truncate {
        context.unlogged.inline = context.inline_contents(&record, request.inline_limit);
    }
    let InodeRecord { attributes, pattern, synced_chunk_files: synced, .. } = record;
    let truncated = Vec::new();
    Ok(OpenReply {
        created: false,
        attributes,
        pattern,
        is_shared,
        truncated,
        synced,
        inline: None,
        directory: None,
    })
}

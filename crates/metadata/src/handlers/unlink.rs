//! `Unlink`: removes a name of an inode that is not a directory. Another group may serve the inode.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_types::{ErrorCode, FileKind};
use skep_wire::metadata::{NamesReply, Step, Unlink};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Unlink,
) -> Result<NamesReply, Stop> {
    let mut directory = context.directory(request.directory)?;
    let Some((cursor, dentry)) = context.dentry(request.directory, &request.name)? else {
        return Err(ErrorCode::NotFound.into());
    };
    if dentry.kind == FileKind::Directory {
        return Err(ErrorCode::IsDirectory.into());
    }
    let inode = dentry.inode;
    let name = (request.directory, request.name);
    steps::do_for_removal(context, Step::DropLink { inode }, name, &dentry)?;
    context.remove_dentry(request.directory, cursor)?;
    context.change_directory(&mut directory, -1, 0);
    Ok(context.names_reply(directory))
}

//! `RemoveDirectory`: removes an empty directory. Another group may serve its inode.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_types::{ErrorCode, FileKind};
use skep_wire::metadata::{NamesReply, RemoveDirectory, Step};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: RemoveDirectory,
) -> Result<NamesReply, Stop> {
    let mut directory = context.directory(request.directory)?;
    let Some((cursor, dentry)) = context.dentry(request.directory, &request.name)? else {
        return Err(ErrorCode::NotFound.into());
    };
    if dentry.kind != FileKind::Directory {
        return Err(ErrorCode::NotDirectory.into());
    }
    let inode = dentry.inode;
    let name = (request.directory, request.name);
    steps::do_for_removal(context, Step::RemoveDirectoryInode { inode }, name, &dentry)?;
    context.remove_dentry(request.directory, cursor)?;
    context.change_directory(&mut directory, -1, -1);
    Ok(context.names_reply(directory))
}

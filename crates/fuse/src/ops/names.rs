//! Operations on names: look up, create, remove, rename, link.

use super::{holds, jobs};
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Failure, Outcome, ReplyBody};
use crate::request::names::{NameRequest, Rename, RenameKind};
use crate::waits::Caller;
use skep_types::{ErrorCode, InodeId, Result};

pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: NameRequest,
    caller: Caller,
) -> Outcome {
    let fs = &context.file_system;
    Ok(match request {
        NameRequest::Lookup { directory, name } => {
            lookup(context, directory, &name, caller).await?
        }
        NameRequest::ReadLink { inode } => ReplyBody::Bytes(fs.read_link(inode).await?),
        NameRequest::MakeSymlink { directory, name, link_target, new } => {
            ReplyBody::Entry(fs.make_symlink(directory, &name, &link_target, new).await?)
        }
        NameRequest::MakeDirectory { directory, name, new } => {
            ReplyBody::Entry(fs.make_directory(directory, &name, new).await?)
        }
        NameRequest::MakeNode { mut request } => {
            request.pattern = jobs::pattern(context, caller.pid, request.kind)?;
            ReplyBody::Entry(fs.create(request).await?.attributes)
        }
        NameRequest::Link { inode, directory, name } => {
            ReplyBody::Entry(fs.link(inode, directory, &name).await?)
        }
        NameRequest::Unlink { directory, name } => {
            fs.unlink(directory, &name).await?;
            ReplyBody::Empty
        }
        NameRequest::RemoveDirectory { directory, name } => {
            fs.remove_directory(directory, &name).await?;
            ReplyBody::Empty
        }
        NameRequest::Rename(arguments) => {
            rename(fs, arguments).await?;
            ReplyBody::Empty
        }
    })
}

/// Looks up a name. The kernel looks up `.` and `..` when a program opens an inode by a file
/// handle.
async fn lookup<F: FileSystem>(
    context: &Context<F>,
    directory: InodeId,
    name: &[u8],
    caller: Caller,
) -> Result<ReplyBody> {
    match name {
        b"." => context.file_system.attributes(directory).await.map(ReplyBody::Entry),
        b".." => context.file_system.parent(directory).await.map(ReplyBody::Entry),
        // Reply to a missing name with an error, which the kernel does not cache. A reply with a
        // zero node id would let the kernel cache that the name is missing. But a program may
        // create a file, and then notify programs on other hosts. When these programs open the
        // file, their kernel must not have cached that the name is missing.
        _ => holds::lookup(context, directory, name, caller).await,
    }
}

async fn rename(fs: &impl FileSystem, rename: Rename) -> std::result::Result<(), Failure> {
    let Rename { from_directory, from_name, to_directory, to_name, kind, whiteout } = rename;
    let result = match kind {
        RenameKind::Exchange => {
            fs.exchange(from_directory, &from_name, to_directory, &to_name).await
        }
        RenameKind::Replace | RenameKind::OnlyIfFree => {
            let no_replace = kind == RenameKind::OnlyIfFree;
            let (from, to) = (from_directory, to_directory);
            fs.rename(from, &from_name, to, &to_name, no_replace, whiteout).await
        }
    };
    result.map_err(|error| match error.code() {
        // A program tried to move a directory into itself, for which POSIX requires EINVAL. In all
        // other cases, `InUse` becomes EBUSY.
        ErrorCode::InUse => Failure::Errno(libc::EINVAL),
        _ => error.into(),
    })
}

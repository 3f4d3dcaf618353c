//! Operations that open, sync and close files.

use super::{jobs, privileges};
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Failure, OpenFlags, Outcome, ReplyBody};
use crate::request::files::{FileRequest, Open};
use crate::waits::Caller;
use skep_client::{CreateRequest, Created, HandleId, OpenMode};
use skep_types::{ErrorCode, FileKind};

pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: FileRequest,
    caller: Caller,
) -> Outcome {
    let fs = &context.file_system;
    Ok(match request {
        FileRequest::Open(arguments) => return open(context, arguments, caller).await,
        FileRequest::Create { mut request, is_exclusive, appends, is_synced } => {
            let is_direct = appends && context.features.has_direct_mmap;
            request.pattern = jobs::pattern(context, caller.pid, request.kind)?;
            let created = create(fs, request, is_exclusive).await?;
            created_reply(fs, created, is_direct, is_synced)?
        }
        FileRequest::CreateUnnamed { directory, new, mode, is_synced } => {
            let pattern = jobs::pattern(context, caller.pid, FileKind::Regular)?;
            let created = fs.create_unnamed(directory, new, mode, pattern).await?;
            created_reply(fs, created, false, is_synced)?
        }
        FileRequest::Flush { handle, owner } => {
            let unlocked = fs.unlock_process(handle, owner).await;
            fs.flush(handle).await?;
            unlocked?;
            ReplyBody::Empty
        }
        FileRequest::Close { handle } => {
            fs.close(handle).await?;
            ReplyBody::Empty
        }
        FileRequest::Fsync { handle } => {
            fs.fsync(handle).await?;
            ReplyBody::Empty
        }
        // `fsync` of a directory: its entries may lie on any metadata target, so all of them sync.
        FileRequest::SyncNames => {
            fs.sync_names().await?;
            ReplyBody::Empty
        }
        // The kernel (6.18) sends SYNCFS to virtiofs and fuseblk only. On this mount `syncfs(2)`
        // and `sync(2)` write back mapped pages and do nothing else.
        FileRequest::SyncAll => {
            fs.sync_all().await?;
            ReplyBody::Empty
        }
    })
}

/// Opens a file. I/O of a handle that appends goes around the page cache: the kernel would write at
/// the end that it has cached, and other mounts may have moved the end.
async fn open<F: FileSystem>(context: &Context<F>, open: Open, caller: Caller) -> Outcome {
    let Open { inode, mode, truncate, appends, is_synced, kill_privileges } = open;
    let fs = &context.file_system;
    if kill_privileges {
        privileges::clear(context, inode, caller).await?;
    }
    let opened = fs.open(inode, mode, truncate).await?;
    if !opened.are_attributes_shown {
        // The kernel reads no further than the length that it has cached, for up to a second.
        context.waits.drop_attributes(inode);
    }
    let flags = OpenFlags {
        keep_cache: opened.keep_cache,
        // A read-only handle has nothing to flush at close(2). Without the FLUSH, a program that
        // reads small files makes a third fewer requests. Once a process has locked bytes of a
        // file, every close(2) must send it, since any close may release locks.
        no_flush: mode == OpenMode::Read && !fs.has_process_locks(),
        is_direct: (opened.is_shared || appends) && context.features.has_direct_mmap,
    };
    if is_synced {
        fs.set_synced(opened.handle);
    }
    Ok(ReplyBody::OpenReply(opened.handle, flags))
}

/// Makes and opens a file. The kernel requests it after it found no entry. If one has appeared
/// since, the kernel has not checked the permissions on it, so it must not be opened here. `ESTALE`
/// makes the kernel look up the name again and open the file that exists.
async fn create(
    fs: &impl FileSystem,
    request: CreateRequest,
    is_exclusive: bool,
) -> Result<Created, Failure> {
    fs.create(request).await.map_err(|error| match error.code() {
        ErrorCode::Exists if !is_exclusive => Failure::Errno(libc::ESTALE),
        _ => error.into(),
    })
}

fn created_reply(
    fs: &impl FileSystem,
    created: Created,
    is_direct: bool,
    is_synced: bool,
) -> Outcome {
    let handle = created.handle.ok_or(Failure::Errno(libc::EIO))?;
    if is_synced {
        fs.set_synced(handle);
    }
    Ok(ReplyBody::Created(created.attributes, handle, is_direct))
}

/// Ends a change through a handle. If the handle was opened with `O_SYNC` or `O_DSYNC`, waits until
/// the change is on the devices: the kernel sends these flags with writes only.
pub(super) async fn sync_if_asked(fs: &impl FileSystem, handle: HandleId) -> Result<(), Failure> {
    if fs.is_synced(handle) {
        fs.fsync(handle).await?;
    }
    Ok(())
}

//! Operations that open, sync and close files.

use super::{holds, jobs, privileges};
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
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
            let is_direct = bypasses_pages(context, appends);
            request.pattern = jobs::pattern(context, caller.pid, request.kind)?;
            let start = context.checked.begin_check();
            let created = create(context, request, is_exclusive, caller).await?;
            privileges::note_created(context, &created.attributes, start);
            created_reply(fs, created, is_direct, is_synced)?
        }
        FileRequest::CreateUnnamed { directory, new, mode, is_synced } => {
            let pattern = jobs::pattern(context, caller.pid, FileKind::Regular)?;
            let start = context.checked.begin_check();
            let created = fs.create_unnamed(directory, new, mode, pattern).await?;
            privileges::note_created(context, &created.attributes, start);
            created_reply(fs, created, bypasses_pages(context, false), is_synced)?
        }
        FileRequest::Flush { handle, owner } => {
            let unlocked = fs.unlock_process(handle, owner).await;
            fs.flush(handle).await.and(unlocked)?;
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
        FileRequest::SyncNames { directory } => {
            fs.sync_names(directory).await?;
            ReplyBody::Empty
        }
        // Linux 6.18 sends SYNCFS only to virtiofs and fuseblk, so it does not send this request.
        // On this mount `syncfs(2)` and `sync(2)` only write back mapped pages.
        FileRequest::SyncAll => {
            fs.sync_all().await?;
            ReplyBody::Empty
        }
    })
}

/// Opens a file. I/O through a handle with `O_APPEND` bypasses the page cache. With the page cache,
/// the kernel would append at its cached end of the file, which other mounts may have moved.
async fn open<F: FileSystem>(context: &Context<F>, open: Open, caller: Caller) -> Outcome {
    let Open { inode, mode, appends, is_synced, .. } = open;
    let fs = &context.file_system;
    let opened = holds::open(context, &open, caller).await?;
    if !opened.are_attributes_shown {
        // Otherwise the kernel would not read beyond its cached file size, for up to a second.
        context.waits.drop_attributes(inode);
    }
    let flags = OpenFlags {
        keep_cache: opened.keep_cache,
        // A read-only handle has no written data to flush at close(2). Without the FLUSH, a program
        // that reads small files causes a third fewer requests. But after a process has locked
        // bytes of a file, every close(2) must send a FLUSH, since any close may release locks.
        no_flush: mode == OpenMode::Read && !fs.has_process_locks(),
        is_direct: bypasses_pages(context, opened.is_shared || appends),
    };
    if is_synced {
        fs.set_synced(opened.handle);
    }
    Ok(ReplyBody::OpenReply(opened.handle, flags))
}

/// Whether reads and writes through a new handle bypass the page cache. `is_needed` means that
/// another mount may change the file or its end. A kernel that cannot map files without its page
/// cache then uses the cache nevertheless, unless the mount option `direct_io` is set.
fn bypasses_pages<F>(context: &Context<F>, is_needed: bool) -> bool {
    context.options.has_direct_io || (is_needed && context.features.has_direct_mmap)
}

/// Creates and opens a file. The kernel sends CREATE after it found no entry of this name. If
/// another client has created an entry since, the kernel has not checked the permissions on this
/// entry, so the mount must not open it. The reply is then `ESTALE`, and the kernel looks up the
/// name again and opens the existing file. The mount holds this file, because the other client may
/// remove it before the kernel looks up the name.
async fn create<F: FileSystem>(
    context: &Context<F>,
    request: CreateRequest,
    is_exclusive: bool,
    caller: Caller,
) -> Result<Created, Failure> {
    let fs = &context.file_system;
    if is_exclusive {
        return Ok(fs.create(request).await?);
    }
    // Retry: creates the file again without a pause, at most `MAX_HOLD_ATTEMPTS` times, if another
    // client has removed the entry before the mount could hold its file.
    for _ in 0..limits::MAX_HOLD_ATTEMPTS {
        match fs.create(request.clone()).await {
            Err(error) if error.code() == ErrorCode::Exists => {}
            result => return Ok(result?),
        }
        let (directory, mode) = (request.directory, request.open);
        if holds::existing(context, directory, &request.name, mode, caller).await? {
            break;
        }
    }
    Err(Failure::Errno(libc::ESTALE))
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

/// Completes a change that a program made through a handle. If the program opened the handle with
/// `O_SYNC` or `O_DSYNC`, waits until the change is durable. The daemon stores these flags when the
/// handle is opened, since the kernel sends them only with writes.
pub(super) async fn sync_if_asked(fs: &impl FileSystem, handle: HandleId) -> Result<(), Failure> {
    if fs.is_synced(handle) {
        fs.fsync(handle).await?;
    }
    Ok(())
}

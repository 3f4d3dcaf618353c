//! Reads and writes of a file's bytes. `allocation` performs all other operations on these bytes.

use super::{allocation, privileges};
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::reply::{Outcome, ReplyBody};
use crate::request::data::{DataRequest, Read, Write};
use crate::waits::Caller;
use skep_types::InodeId;
use std::ops::Range;

pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: DataRequest,
    caller: Caller,
) -> Outcome {
    match request {
        DataRequest::Read(arguments) => read(context, arguments).await,
        DataRequest::Write(arguments) => write(context, arguments, caller).await,
        DataRequest::Allocate(arguments) => allocation::allocate(context, arguments, caller).await,
        DataRequest::Seek(arguments) => allocation::seek(context, arguments, caller).await,
        DataRequest::Copy(arguments) => allocation::copy(context, arguments, caller).await,
    }
}

async fn read<F: FileSystem>(context: &Context<F>, read: Read) -> Outcome {
    let Read { handle, offset, into, is_direct, fills_pages } = read;
    let fs = &context.file_system;
    // With `direct_io` the kernel has only the pages of mapped files. If the mount counted other
    // reads too, each write after a read would make the kernel drop pages that it does not have.
    if !is_direct && (fills_pages || !context.options.has_direct_io) {
        fs.note_cached(handle);
    }
    let max_bytes = into.len();
    let count = fs.read(handle, offset, into).await?;
    Ok(ReplyBody::Data(count.min(max_bytes)))
}

async fn write<F: FileSystem>(context: &Context<F>, write: Write, caller: Caller) -> Outcome {
    let Write { inode, handle, offset, data, appends, is_synced, kill_privileges, .. } = write;
    let is_direct = write.is_direct || (context.options.has_direct_io && !write.is_write_back);
    if kill_privileges {
        privileges::clear(context, inode, caller).await?;
    }
    let fs = &context.file_system;
    let size = data.len() as u32;
    // Writes through a handle with `O_APPEND` bypass the page cache too (`files::open`).
    if is_direct || appends {
        fs.note_direct_write(handle);
    }
    let result = match appends {
        true => fs.append(handle, offset, data).await,
        false => fs.write(handle, offset, data).await,
    };
    if is_direct && appends && fs.is_cached(inode) {
        // The mount wrote the bytes at the current end of the file, which may differ from the end
        // that the kernel has cached. Before the next read, the kernel requests the attributes,
        // notices the new modification time, and drops all pages.
        context.waits.drop_attributes(inode);
    } else if is_direct && fs.is_cached(inode) {
        drop_pages(context, inode, offset..offset.saturating_add(u64::from(size)), caller).await;
    }
    result?;
    if is_synced {
        fs.fsync(handle).await?;
    }
    Ok(ReplyBody::Size(size))
}

/// Makes the kernel drop its cached pages of a range that a direct write has changed.
///
/// # Hazard: stale pages after a direct write
/// The kernel itself drops the cached pages of the range before a direct write. After the write,
/// the kernel drops them again only if the program waits in the system call, and not after
/// asynchronous I/O (Linux 6.18). Without this function, pages that were read during the write
/// would keep the bytes from before the write.
///
/// # Hazard: deadlock
/// A read that uses the same queue of requests may have locked a page of the range. So this write
/// must not occupy the queue's last slot, and counts as a wait. The kernel also limits the number
/// of background requests (`max_background`), and both that read and this write may be background
/// requests. So the wait for the kernel has a time limit.
async fn drop_pages<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    range: Range<u64>,
    caller: Caller,
) {
    let waiting = context.waits.begin(caller);
    let pages = range.start / limits::PAGE_BYTES * limits::PAGE_BYTES..range.end;
    let dropping = context.waits.drop_pages(inode, pages);
    let is_dropped = match waiting {
        Some(_) => skep_env::timeout(limits::DROP_PATIENCE, dropping).await,
        None => None,
    };
    if !matches!(is_dropped, Some(Ok(()))) {
        // The wait failed or was not possible. So make the kernel request the attributes before the
        // next read. The kernel then finds a new modification time, and drops all its cached pages.
        context.waits.drop_attributes(inode);
    }
}

//! Operations on open files, and waiting for devices.

use super::privileges;
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::reply::{Answer, Failure, OpenFlags};
use crate::request::{Open, Read, Write};
use crate::waits::Caller;
use skep_client::{HandleId, OpenMode};
use skep_types::InodeId;
use std::ops::Range;

type Outcome = Result<Answer, Failure>;

/// Opens a file. Who appends goes around the page cache: the kernel would put what he writes where
/// it believes the end to be, and other mounts may have moved it.
pub(crate) async fn open<F: FileSystem>(
    context: &Context<F>,
    open: Open,
    caller: Caller,
) -> Outcome {
    let Open { inode, mode, truncate, appends, is_synced, kill_privileges } = open;
    if kill_privileges {
        privileges::take_away(context, inode, caller).await?;
    }
    let opened = context.file_system.open(inode, mode, truncate).await?;
    if !opened.are_attributes_shown {
        // The kernel reads no further than the length that it was shown, for a second.
        context.waits.drop_attributes(inode);
    }
    let flags = OpenFlags {
        keep_cache: opened.keep_cache,
        // Who can't write has nothing to tell at close(2); that saves a third of the requests of a
        // program that reads small files.
        // Where processes lock bytes, any close may unlock some.
        no_flush: mode == OpenMode::Read && !context.file_system.has_process_locks(),
        is_direct: (opened.is_shared || appends) && context.has_direct_mmap,
    };
    note_synced(&context.file_system, is_synced, Ok(Answer::OpenReply(opened.handle, flags)))
}

/// Remembers of a handle that was opened with `O_SYNC` or `O_DSYNC`, for what the kernel tells
/// without the handle's flags.
pub(crate) fn note_synced(fs: &impl FileSystem, is_synced: bool, outcome: Outcome) -> Outcome {
    if is_synced && let Ok(Answer::OpenReply(handle, _) | Answer::Created(_, handle, _)) = &outcome
    {
        fs.set_synced(*handle);
    }
    outcome
}

/// Ends a change through a handle: it is on the devices then if the handle says so.
pub(crate) async fn sync_if_asked(fs: &impl FileSystem, handle: HandleId) -> Result<(), Failure> {
    if fs.is_synced(handle) {
        fs.fsync(handle).await?;
    }
    Ok(())
}

pub(crate) async fn read(fs: &impl FileSystem, read: Read) -> Outcome {
    let Read { handle, offset, into, is_direct } = read;
    if !is_direct {
        fs.note_cached(handle);
    }
    let max_bytes = into.len();
    let count = fs.read(handle, offset, into).await?;
    Ok(Answer::Data(count.min(max_bytes)))
}

pub(crate) async fn write<F: FileSystem>(
    context: &Context<F>,
    write: Write,
    caller: Caller,
) -> Outcome {
    let Write { inode, handle, offset, data, appends, is_direct, is_synced, kill_privileges } =
        write;
    if kill_privileges {
        privileges::take_away(context, inode, caller).await?;
    }
    let size = data.len() as u32;
    let result = match appends {
        true => context.file_system.append(handle, data).await,
        false => context.file_system.write(handle, offset, data).await,
    };
    if is_direct && context.file_system.is_cached(inode) {
        drop_pages(context, inode, offset..offset.saturating_add(u64::from(size)), caller).await;
    }
    result?;
    if is_synced {
        context.file_system.fsync(handle).await?;
    }
    Ok(Answer::Size(size))
}

/// Makes the kernel drop what it has of a range that was written past its pages. It does so itself
/// before such a write, but after it only if the program waits in the call, and not for those that
/// it is told the end of later (Linux 6.18): what was read meanwhile would stay as it was before.
async fn drop_pages<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    range: Range<u64>,
    caller: Caller,
) {
    // A page may be waiting for a read, which comes by the same queue: this request must not take
    // the last place.
    let waiting = context.waits.begin(caller);
    let pages = range.start / limits::PAGE_BYTES * limits::PAGE_BYTES..range.end;
    let dropping = context.waits.drop_pages(inode, pages);
    let is_dropped = match waiting {
        // The read may be one of those of which the kernel sends so many at once only, and such
        // writes count among them.
        Some(_) => skep_env::timeout(limits::DROP_PATIENCE, dropping).await,
        None => None,
    };
    if !matches!(is_dropped, Some(Ok(()))) {
        // The next read asks for the attributes, finds that the file was modified, and drops all.
        context.waits.drop_attributes(inode);
    }
}

pub(crate) async fn flush(fs: &impl FileSystem, handle: HandleId, owner: u64) -> Outcome {
    let unlocked = fs.unlock_process(handle, owner).await;
    fs.flush(handle).await?;
    unlocked?;
    Ok(Answer::Empty)
}

pub(crate) async fn close(fs: &impl FileSystem, handle: HandleId) -> Outcome {
    fs.close(handle).await?;
    Ok(Answer::Empty)
}

pub(crate) async fn fsync(fs: &impl FileSystem, handle: HandleId) -> Outcome {
    fs.fsync(handle).await?;
    Ok(Answer::Empty)
}

/// `fsync` of a directory: its entries may lie on any metadata target, so all of them sync.
pub(crate) async fn sync_names(fs: &impl FileSystem) -> Outcome {
    fs.sync_names().await?;
    Ok(Answer::Empty)
}

/// `SYNCFS`. The kernel (6.18) sends it to virtiofs and fuseblk only: on this mount `syncfs(2)` and
/// `sync(2)` write out what is mapped, and that is all.
pub(crate) async fn sync_all(fs: &impl FileSystem) -> Outcome {
    fs.sync_all().await?;
    Ok(Answer::Empty)
}

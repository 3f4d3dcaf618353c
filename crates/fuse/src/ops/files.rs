//! Operations on open files, and waiting for devices.

use super::privileges;
use crate::file_system::FileSystem;
use crate::protocol::Context;
use crate::reply::{Answer, Failure, OpenFlags};
use crate::request::{DataOnly, Open, Write};
use crate::waits::Caller;
use skep_client::{HandleId, OpenMode};
use skep_env::Buf;

type Outcome = Result<Answer, Failure>;

/// Opens a file. Who appends goes around the page cache: the kernel would put what he writes where
/// it believes the end to be, and other mounts may have moved it.
pub(crate) async fn open<F: FileSystem>(
    context: &Context<F>,
    open: Open,
    caller: Caller,
) -> Outcome {
    let Open { inode, mode, truncate, appends, kill_privileges } = open;
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
    Ok(Answer::Opened(opened.handle, flags))
}

pub(crate) async fn read(
    fs: &impl FileSystem,
    handle: HandleId,
    offset: u64,
    into: Buf,
) -> Outcome {
    let room = into.len();
    let count = fs.read(handle, offset, into).await?;
    Ok(Answer::Data(count.min(room)))
}

pub(crate) async fn write<F: FileSystem>(
    context: &Context<F>,
    write: Write,
    caller: Caller,
) -> Outcome {
    let Write { inode, handle, offset, data, appends, sync, kill_privileges } = write;
    if kill_privileges {
        privileges::take_away(context, inode, caller).await?;
    }
    let size = data.len() as u32;
    if appends {
        context.file_system.append(handle, data).await?;
    } else {
        context.file_system.write(handle, offset, data).await?;
    }
    if let Some(DataOnly(data_only)) = sync {
        context.file_system.fsync(handle, data_only).await?;
    }
    Ok(Answer::Size(size))
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

pub(crate) async fn fsync(fs: &impl FileSystem, handle: HandleId, data_only: bool) -> Outcome {
    fs.fsync(handle, data_only).await?;
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

//! The table from calls to operations, and what operations share on one worker.
//!
//! No logic of a file system: each operation is one call of [`FileSystem`] and, where the kernel
//! asks for something that has no call of its own, a few.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::ops::{allocation, attributes, directories, files, jobs, locks, names, xattrs};
use crate::reply::{Answer, Failure};
use crate::request::Call;
use crate::waits::Caller;
use skep_types::FileKind;

/// Performs a call. Cancel-safe where [`Call::may_be_dropped`] says so.
pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    call: Call,
    caller: Caller,
) -> Result<Answer, Failure> {
    let fs = &context.file_system;
    match call {
        Call::Lookup { directory, name } => names::lookup(fs, directory, &name).await,
        Call::MakeSymlink { directory, name, link_target, new } => {
            names::make_symlink(fs, directory, &name, &link_target, new).await
        }
        Call::MakeDirectory { directory, name, new } => {
            names::make_directory(fs, directory, &name, new).await
        }
        Call::MakeNode { mut request } => {
            request.pattern = jobs::pattern(context, caller.pid, request.kind)?;
            names::make_node(fs, request).await
        }
        Call::Create { mut request, is_exclusive, appends, is_synced } => {
            let is_direct = appends && context.has_direct_mmap;
            request.pattern = jobs::pattern(context, caller.pid, request.kind)?;
            let created = names::create(fs, request, is_exclusive, is_direct).await;
            files::note_synced(fs, is_synced, created)
        }
        Call::CreateUnnamed { directory, new, mode, is_synced } => {
            let pattern = jobs::pattern(context, caller.pid, FileKind::Regular)?;
            let created = names::create_unnamed(fs, directory, new, mode, pattern).await;
            files::note_synced(fs, is_synced, created)
        }
        Call::Unlink { directory, name } => names::unlink(fs, directory, &name).await,
        Call::RemoveDirectory { directory, name } => {
            names::remove_directory(fs, directory, &name).await
        }
        Call::Rename { rename } => names::rename(fs, rename).await,
        Call::Link { inode, directory, name } => names::link(fs, inode, directory, &name).await,
        Call::ReadLink { inode } => names::read_link(fs, inode).await,
        Call::Attributes { inode, is_for_reading } => {
            attributes::get(context, inode, is_for_reading).await
        }
        Call::Statx { inode } => attributes::statx(fs, inode).await,
        Call::SetAttributes { change, handle, kill_privileges } => {
            attributes::set(context, change, handle, kill_privileges, caller).await
        }
        Call::StatFs => attributes::statfs(fs).await,
        Call::ReadFlags { inode, form, max_bytes } => {
            attributes::read_flags(fs, inode, form, max_bytes).await
        }
        Call::SetFlags { inode, hands_down_project, project } => {
            attributes::set_flags(fs, inode, hands_down_project, project).await
        }
        Call::Open { open } => files::open(context, open, caller).await,
        Call::OpenDirectory { directory } => directories::open(fs, directory).await,
        Call::Read { read } => files::read(fs, read).await,
        Call::Write { write } => files::write(context, write, caller).await,
        Call::Allocate { allocate } => allocation::allocate(context, allocate, caller).await,
        Call::Seek { inode, handle, offset, what } => {
            allocation::seek(context, inode, handle, (offset, what), caller).await
        }
        Call::Copy { copy } => allocation::copy(context, copy, caller).await,
        Call::Flush { handle, owner } => files::flush(fs, handle, owner).await,
        Call::Close { handle } => files::close(fs, handle).await,
        Call::Fsync { handle } => files::fsync(fs, handle).await,
        Call::TestLock { lock } => locks::test(fs, lock).await,
        Call::SetLock { lock, waits } => locks::set(context, lock, waits, caller).await,
        Call::SyncNames => files::sync_names(fs).await,
        Call::SyncAll => files::sync_all(fs).await,
        Call::ReadDirectory { directory, cursor, max_bytes, with_attributes } => {
            directories::read(context, directory, cursor, max_bytes, with_attributes).await
        }
        Call::GetXattr { inode, name, max_bytes } => {
            xattrs::get(context, inode, &name, max_bytes).await
        }
        Call::SetXattr { change } => xattrs::set(fs, change).await,
        Call::ListXattrs { inode, uid, max_bytes } => xattrs::list(fs, inode, uid, max_bytes).await,
        Call::RemoveXattr { inode, name, uid } => xattrs::remove(fs, inode, &name, uid).await,
        Call::Nothing => Ok(Answer::Empty),
    }
}

/// Undoes what an answer that nobody receives would have handed over: the open of a killed caller.
pub(crate) async fn abandon<F: FileSystem>(context: &Context<F>, outcome: Result<Answer, Failure>) {
    if let Ok(Answer::Created(_, handle, _) | Answer::OpenReply(handle, _)) = outcome
        && let Err(error) = context.file_system.close(handle).await
    {
        tracing::warn!("closing a file that was opened for a killed process: {error}");
    }
}

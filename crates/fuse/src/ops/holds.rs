//! Holds a file between the two requests of an open that the kernel repeats
//! ([`crate::repeated_opens`] has the reason).

use super::privileges;
use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::repeated_opens::Hold;
use crate::reply::ReplyBody;
use crate::request::files::Open;
use crate::waits::Caller;
use skep_client::{OpenMode, OpenedFile};
use skep_types::{Attributes, ErrorCode, FileKind, InodeId, Result};
use std::sync::Arc;

/// Looks up a name. If the kernel repeats an open of the caller, also holds the file until the
/// caller's next open. The kernel then does not cache the name. So each later open of the name
/// begins with a lookup, which finds the file that has the name at that time. If the name does not
/// exist, but the caller could not create it before, returns the file that had the name at that
/// time.
pub(super) async fn lookup<F: FileSystem>(
    context: &Context<F>,
    directory: InodeId,
    name: &[u8],
    caller: Caller,
) -> Result<ReplyBody> {
    let (fs, opens) = (&context.file_system, &context.repeated_opens);
    let mut found = fs.lookup(directory, name).await;
    if !opens.is_expected(caller.pid, skep_env::now()) {
        return found.map(ReplyBody::Entry);
    }
    for _ in 0..limits::MAX_HOLD_ATTEMPTS {
        let Ok(Attributes { inode, kind: FileKind::Regular, .. }) = found else { break };
        match fs.hold(inode).await {
            Ok(handle) => {
                let hold = Hold { inode, handle };
                release_after_a_time(context, caller.pid, hold);
                if let Some(former) = opens.add(caller.pid, hold) {
                    release(fs, former).await;
                }
                break;
            }
            Err(error) if error.code() == ErrorCode::Stale => {
                found = fs.lookup(directory, name).await;
            }
            // The program's open will return this error.
            Err(_) => break,
        }
    }
    match found {
        Ok(found) if found.kind == FileKind::Regular => Ok(ReplyBody::UncachedEntry(found)),
        Ok(found) => Ok(ReplyBody::Entry(found)),
        Err(error) => {
            let held = opens.held_under(caller.pid, (directory, name), skep_env::now());
            match held.filter(|_| error.code() == ErrorCode::NotFound) {
                Some(inode) => fs.attributes(inode).await.map(ReplyBody::UncachedEntry),
                None => Err(error),
            }
        }
    }
}

/// Holds the file of a name that the caller could not create because the name exists. The mount
/// replies `ESTALE`, and the kernel repeats the open. Returns whether the name still exists.
pub(super) async fn existing<F: FileSystem>(
    context: &Context<F>,
    directory: InodeId,
    name: &[u8],
    mode: OpenMode,
    caller: Caller,
) -> Result<bool> {
    // The thread id is zero for all threads of other containers, so it identifies no thread.
    if caller.pid == 0 {
        return Ok(true);
    }
    let fs = &context.file_system;
    let found = match fs.lookup(directory, name).await {
        Err(error) if error.code() == ErrorCode::NotFound => return Ok(false),
        found => found?,
    };
    let held = match found.kind {
        FileKind::Regular => Some(fs.hold(found.inode).await),
        _ => None,
    };
    let handle = match held {
        Some(Ok(handle)) => handle,
        // Another client has removed or replaced the file since the lookup.
        Some(Err(error)) if error.code() == ErrorCode::Stale => return Ok(false),
        Some(Err(_)) | None => {
            failed(context, mode, caller);
            return Ok(true);
        }
    };
    let hold = Hold { inode: found.inode, handle };
    release_after_a_time(context, caller.pid, hold);
    let (held, now) = ((hold, (directory, name.to_vec())), skep_env::now());
    let unused = context.repeated_opens.failed_creation(caller.pid, mode, held, now);
    if let Some(unused) = unused {
        release(fs, unused).await;
    }
    Ok(true)
}

/// Opens a file. The repeated open of a thread may open the file that the mount holds for it. The
/// worker never drops this future (`Request::may_be_dropped`), so the hold is always released.
pub(super) async fn open<F: FileSystem>(
    context: &Context<F>,
    open: &Open,
    caller: Caller,
) -> Result<OpenedFile> {
    let ended = context.repeated_opens.opens(caller.pid, open.inode, open.mode);
    let opened = send(context, open, caller, ended.is_some_and(|it| it.may_use)).await;
    if let Some(hold) = ended.and_then(|it| it.hold) {
        release(&context.file_system, hold).await;
    }
    // If the mount holds no file for this open, the kernel has not repeated the lookup, so it may
    // still repeat this open.
    let may_be_repeated = ended.is_none_or(|it| it.hold.is_none());
    if may_be_repeated && opened.as_ref().is_err_and(|it| it.code() == ErrorCode::Stale) {
        failed(context, open.mode, caller);
    }
    opened
}

async fn send<F: FileSystem>(
    context: &Context<F>,
    open: &Open,
    caller: Caller,
    may_use_hold: bool,
) -> Result<OpenedFile> {
    let (fs, inode) = (&context.file_system, open.inode);
    if open.kill_privileges {
        privileges::clear(context, inode, caller).await?;
    }
    match may_use_hold {
        true => fs.open_held(inode, open.mode, open.truncate).await,
        false => fs.open(inode, open.mode, open.truncate).await,
    }
}

/// Records that the kernel repeats an open of the caller, because the mount replies `ESTALE`.
pub(super) fn failed<F: FileSystem>(context: &Context<F>, mode: OpenMode, caller: Caller) {
    // The thread id is zero for all threads of other containers, so it identifies no thread.
    if caller.pid != 0 {
        context.repeated_opens.failed(caller.pid, mode, skep_env::now());
    }
}

/// Records that the kernel may repeat an open of the caller, because the mount replies `ESTALE` to
/// a request for attributes. The kernel sends this request in an `open` if its cached attributes of
/// the file are no longer valid, and also in other calls. If the kernel repeats another call than
/// `open`, the mount holds the file that the repeated lookup finds. The caller's next open then
/// begins with a lookup, since the kernel does not cache the name. The mount does not have the mode
/// of this open, and assumes an open for reading. So an open for writing still fails: no program
/// may write to a file without a name by mistake.
pub(super) async fn attributes_failed<F: FileSystem>(context: &Context<F>, caller: Caller) {
    end(context, caller).await;
    failed(context, OpenMode::Read, caller);
}

/// Ends the repeated open of the caller, because the caller sends a request of another system call.
pub(super) async fn end<F: FileSystem>(context: &Context<F>, caller: Caller) {
    if let Some(hold) = context.repeated_opens.end(caller.pid) {
        release(&context.file_system, hold).await;
    }
}

/// Releases a hold even if no further request of the thread arrives, for instance because the
/// program may not open the file.
fn release_after_a_time<F: FileSystem>(context: &Context<F>, thread: u32, hold: Hold) {
    let (fs, opens) = (context.file_system.clone(), Arc::clone(&context.repeated_opens));
    skep_env::spawn(async move {
        skep_env::sleep(limits::REPEATED_OPEN_TIME).await;
        if opens.end_with(thread, hold) {
            release(&fs, hold).await;
        }
    })
    .detach();
}

async fn release(fs: &impl FileSystem, hold: Hold) {
    if let Err(error) = fs.close(hold.handle).await {
        tracing::debug!("cannot close a file that the mount held for a repeated open: {error:#}");
    }
}

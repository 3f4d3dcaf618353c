//! Operations on locks of `flock` and of `fcntl`.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::invalidation::ALL_PAGES;
use crate::reply::{Failure, Outcome, ReplyBody};
use crate::request::locks::{Lock, LockRequest};
use crate::waits::Caller;
use skep_client::{FileLock, LockOutcome};
use skep_types::Error;

pub(crate) async fn perform<F: FileSystem>(
    context: &Context<F>,
    request: LockRequest,
    caller: Caller,
) -> Outcome {
    match request {
        LockRequest::Test { lock } => {
            let held = context.file_system.test_lock(lock.handle, &lock.lock).await?;
            Ok(ReplyBody::Lock(held))
        }
        LockRequest::Set { lock, waits } => set(context, &lock, waits, caller).await,
    }
}

/// Serves `SETLK`, and `SETLKW`, which waits for the lock.
async fn set<F: FileSystem>(
    context: &Context<F>,
    lock: &Lock,
    waits: bool,
    caller: Caller,
) -> Outcome {
    let fs = &context.file_system;
    let number = fs.new_lock_wait();
    let outcome = fs.set_lock(lock.handle, lock.lock.clone(), number).await?;
    if outcome != LockOutcome::Refused {
        return granted(context, lock, outcome).await;
    }
    if !waits {
        return Err(libc::EAGAIN.into());
    }
    let waiting = context.waits.begin(caller).ok_or(libc::ENOLCK)?;
    loop {
        // A signal may interrupt only the wait, never an attempt to set the lock. So a caller whose
        // wait was interrupted never has the lock.
        let waiting_for = fs.wait_for_lock(lock.handle, &lock.lock, number);
        let waited = waiting.unless_interrupted(waiting_for).await;
        waited.ok_or(libc::EINTR)??;
        let outcome = fs.set_lock(lock.handle, lock.lock.clone(), number).await?;
        if outcome != LockOutcome::Refused {
            return granted(context, lock, outcome).await;
        }
    }
}

/// Makes the kernel drop its outdated pages or attributes after a lock, and replies to the request
/// for the lock.
async fn granted<F: FileSystem>(
    context: &Context<F>,
    lock: &Lock,
    outcome: LockOutcome,
) -> Outcome {
    let (inode, is_lock) = (lock.inode, lock.lock.mode.is_some());
    match outcome {
        LockOutcome::Granted { keep_cache: false, version, .. } if is_lock => {
            if let Err(error) = context.waits.drop_pages(inode, ALL_PAGES).await {
                return Err(release(context, lock, error.into()).await);
            }
            context.file_system.pages_dropped(inode, version);
        }
        // The kernel's cached pages of the file are still valid, but its cached size may be
        // outdated.
        LockOutcome::Granted { are_attributes_shown: false, .. } if is_lock => {
            context.waits.drop_attributes(inode);
        }
        _ => {}
    }
    Ok(ReplyBody::Empty)
}

/// Releases a lock whose program gets the error `error`: the mount has no thread that can make the
/// kernel drop its outdated pages. If the owner had another lock of the range before, this lock is
/// released too, since the new lock has replaced it. Returns the error for the program.
async fn release<F: FileSystem>(context: &Context<F>, lock: &Lock, error: Error) -> Failure {
    let fs = &context.file_system;
    let unlocked = FileLock { mode: None, ..lock.lock.clone() };
    if let Err(error) = fs.set_lock(lock.handle, unlocked, fs.new_lock_wait()).await {
        tracing::warn!(
            "file {}: cannot release a lock whose request has failed: {error}; the lock ends when \
             the program closes the file",
            lock.inode
        );
    }
    let error = error.within(format_args!(
        "cannot lock file {}: the mount cannot start a thread that makes the kernel drop its \
         cached pages; raise the limit of threads, and lock the file again",
        lock.inode
    ));
    error.into()
}

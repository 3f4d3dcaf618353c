//! Operations on locks of `flock` and of `fcntl`.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::invalidation::ALL_PAGES;
use crate::reply::{Outcome, ReplyBody};
use crate::request::locks::{Lock, LockRequest};
use crate::waits::Caller;
use skep_client::LockOutcome;

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
        LockRequest::Set { lock, waits } => set(context, lock, waits, caller).await,
    }
}

/// Serves `SETLK`, and `SETLKW`, which waits for the lock.
async fn set<F: FileSystem>(
    context: &Context<F>,
    lock: Lock,
    waits: bool,
    caller: Caller,
) -> Outcome {
    let fs = &context.file_system;
    let number = fs.new_lock_wait();
    let outcome = fs.set_lock(lock.handle, lock.lock.clone(), number).await?;
    if outcome != LockOutcome::Refused {
        return granted(context, &lock, outcome).await;
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
            return granted(context, &lock, outcome).await;
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
            context.waits.drop_pages(inode, ALL_PAGES).await.map_err(skep_types::Error::from)?;
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

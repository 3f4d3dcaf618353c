//! Operations on locks of `flock` and of `fcntl`.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::invalidation::ALL_PAGES;
use crate::reply::{Outcome, ReplyBody};
use crate::request::locks::{Lock, LockRequest};
use crate::waits::Caller;
use skep_client::LockOutcome;
use skep_types::InodeId;

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
    let Lock { inode, handle, lock } = lock;
    let fs = &context.file_system;
    let number = fs.new_lock_wait();
    if let LockOutcome::Granted { keep_cache } = fs.set_lock(handle, lock.clone(), number).await? {
        return granted(context, inode, lock.mode.is_some(), keep_cache).await;
    }
    if !waits {
        return Err(libc::EAGAIN.into());
    }
    let waiting = context.waits.begin(caller).ok_or(libc::ENOLCK)?;
    loop {
        // A signal may interrupt only the wait, never an attempt to set the lock. So a caller whose
        // wait was interrupted never has the lock.
        let waited = waiting.unless_interrupted(fs.wait_for_lock(handle, &lock, number)).await;
        waited.ok_or(libc::EINTR)??;
        if let LockOutcome::Granted { keep_cache } =
            fs.set_lock(handle, lock.clone(), number).await?
        {
            return granted(context, inode, true, keep_cache).await;
        }
    }
}

async fn granted<F: FileSystem>(
    context: &Context<F>,
    inode: InodeId,
    is_lock: bool,
    keep_cache: bool,
) -> Outcome {
    if is_lock && keep_cache {
        // The kernel's cached pages of the file are still valid, but its cached size may be
        // outdated.
        context.waits.drop_attributes(inode);
    } else if is_lock {
        context.waits.drop_pages(inode, ALL_PAGES).await.map_err(skep_types::Error::from)?;
    }
    Ok(ReplyBody::Empty)
}

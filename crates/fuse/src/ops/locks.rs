//! Locks: `flock`, and those of `fcntl`.

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::reply::{Answer, Failure};
use crate::request::Lock;
use crate::waits::{ALL_PAGES, Caller};
use skep_client::Locked;
use skep_types::InodeId;

type Outcome = Result<Answer, Failure>;

/// `SETLK`, and `SETLKW`, which waits.
pub(crate) async fn set<F: FileSystem>(
    context: &Context<F>,
    lock: Lock,
    waits: bool,
    caller: Caller,
) -> Outcome {
    let Lock { inode, handle, lock } = lock;
    let fs = &context.file_system;
    let number = fs.new_lock_wait();
    if let Locked::Done { keep_cache } = fs.set_lock(handle, lock.clone(), number).await? {
        return granted(context, inode, lock.mode.is_some(), keep_cache).await;
    }
    if !waits {
        return Err(libc::EAGAIN.into());
    }
    let waiting = context.waits.begin(caller).ok_or(libc::ENOLCK)?;
    loop {
        // Interrupted, it has not got the lock: an attempt runs to its end, a wait doesn't.
        let waited = waiting.unless_interrupted(fs.wait_for_lock(handle, &lock, number)).await;
        waited.ok_or(libc::EINTR)??;
        if let Locked::Done { keep_cache } = fs.set_lock(handle, lock.clone(), number).await? {
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
        // The pages are right; how large the file is the kernel may have learned before.
        context.waits.drop_attributes(inode);
    } else if is_lock {
        context.waits.drop_pages(inode, ALL_PAGES).await.map_err(skep_types::Error::from)?;
    }
    Ok(Answer::Empty)
}

/// `GETLK`.
pub(crate) async fn test(fs: &impl FileSystem, lock: Lock) -> Outcome {
    Ok(Answer::Lock(fs.test_lock(lock.handle, &lock.lock).await?))
}

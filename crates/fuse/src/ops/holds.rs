//! Keeps a file open between the requests of a system call that the kernel repeats
//! ([`crate::repeated_calls`] has the reason).

use crate::context::Context;
use crate::file_system::FileSystem;
use crate::limits;
use crate::reply::{Failure, Outcome};
use crate::waits::Caller;
use skep_client::HandleId;
use skep_types::{Attributes, ErrorCode, FileKind, InodeId, Result};
use std::sync::Arc;

/// Looks up a name. If the kernel repeats a system call of the caller, also keeps the file open
/// until the end of this call.
pub(super) async fn lookup<F: FileSystem>(
    context: &Context<F>,
    directory: InodeId,
    name: &[u8],
    caller: Caller,
) -> Result<Attributes> {
    let (fs, calls) = (&context.file_system, &context.repeated_calls);
    let mut found = fs.lookup(directory, name).await?;
    if !calls.is_expected(caller.pid, skep_env::now()) {
        return Ok(found);
    }
    for _ in 0..limits::MAX_HOLD_ATTEMPTS {
        if found.kind != FileKind::Regular {
            break;
        }
        match fs.hold(found.inode).await {
            Ok(hold) => {
                release_after_a_time(context, caller.pid, hold);
                if let Some(former) = calls.add(caller.pid, hold) {
                    release(fs, former).await;
                }
                break;
            }
            Err(error) if error.code() == ErrorCode::Stale => {
                found = fs.lookup(directory, name).await?;
            }
            // The next request of the call returns the error to the program.
            Err(_) => break,
        }
    }
    Ok(found)
}

/// Notes the outcome of a request. After `ESTALE`, the kernel repeats the system call. `ends_call`
/// means that this request was the last one of its system call.
pub(super) async fn note<F: FileSystem>(
    context: &Context<F>,
    outcome: &Outcome,
    ends_call: bool,
    caller: Caller,
) {
    let is_stale = match outcome {
        Err(Failure::Error(error)) => error.code() == ErrorCode::Stale,
        Err(Failure::Errno(errno)) => *errno == libc::ESTALE,
        Ok(_) => false,
    };
    if (is_stale || ends_call)
        && let Some(hold) = context.repeated_calls.end(caller.pid)
    {
        release(&context.file_system, hold).await;
    }
    if is_stale {
        context.repeated_calls.failed(caller.pid, skep_env::now());
    }
}

/// Releases a hold even if no further request of the system call arrives, for instance because the
/// program may not open the file.
fn release_after_a_time<F: FileSystem>(context: &Context<F>, thread: u32, hold: HandleId) {
    let (fs, calls) = (context.file_system.clone(), Arc::clone(&context.repeated_calls));
    skep_env::spawn(async move {
        skep_env::sleep(limits::REPEATED_CALL_TIME).await;
        if calls.end_with(thread, hold) {
            release(&fs, hold).await;
        }
    })
    .detach();
}

async fn release(fs: &impl FileSystem, hold: HandleId) {
    if let Err(error) = fs.close(hold).await {
        tracing::debug!("cannot close a file that the mount kept open for a call: {error:#}");
    }
}

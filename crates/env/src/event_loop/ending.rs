//! The end of a thread's loop: cancels the operations that are in the kernel, and frees their
//! memory and descriptors.
//!
//! An operation in the kernel keeps its descriptor open. If the loop only closed its ring, the
//! connections of the ended thread would stay open, and each peer would wait for replies that no
//! thread sends. A service continues after the end of a thread: if the role of a target has changed
//! or its thread has failed, the service reopens the target.
//!
//! This module is not responsible for the futures of the thread, which also hold descriptors. The
//! executor of the thread drops these futures.

use super::{NumberMap, OpPhase, PendingOp, Ring, pass_over};
use crate::clock;
use io_uring::{opcode, squeue, types};
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// Time limit for the kernel to cancel the operations. The kernel cancels an operation on a socket
/// immediately.
const CANCEL_PATIENCE: Duration = Duration::from_secs(1);

/// Bit that is set in the user data of a request to cancel an operation. The other bits are the id
/// of this operation.
const CANCELS: u64 = 1 << 63;

/// The ids of the operations of a loop that has ended.
#[derive(Debug, Default)]
struct Ending {
    /// Operations for which the request to cancel has no reply yet.
    asked: BTreeSet<u64>,
    /// Operations that the kernel cancels.
    cancelled: BTreeSet<u64>,
}

/// Cancels the operations, and waits until all operations that the kernel can cancel have ended.
/// The function leaks the buffers of the other operations, because the kernel may still use these
/// buffers.
pub(super) fn end_operations(mut ring: Ring, mut ops: NumberMap<PendingOp>) {
    ops.retain(|_, op| !matches!(op.phase, OpPhase::Done(_)));
    let mut ending = Ending { asked: ops.keys().copied().collect(), ..Ending::default() };
    // If the cancellation fails, the descriptors stay open until the process ends.
    let _ = cancel(&mut ring, &mut ops, &mut ending);
    drop(ring);
    std::mem::forget(ops);
}

fn cancel(ring: &mut Ring, ops: &mut NumberMap<PendingOp>, ending: &mut Ending) -> io::Result<()> {
    let until = clock::now() + CANCEL_PATIENCE;
    for id in ending.asked.clone() {
        let entry = squeue::Entry128::from(opcode::AsyncCancel::new(id).build());
        let entry = entry.user_data(CANCELS | id);
        // SAFETY: the entry refers to no memory.
        while unsafe { ring.submission().push(&entry) }.is_err() {
            // The queue is full, so submit its entries.
            wait(ring, Duration::ZERO)?;
            take_completions(ring, ops, ending);
        }
    }
    while !(ending.asked.is_empty() && ending.cancelled.is_empty()) && clock::now() < until {
        wait(ring, until.saturating_sub(clock::now()))?;
        take_completions(ring, ops, ending);
    }
    Ok(())
}

/// Submits the queued entries, and waits for a completion until `patience` has passed.
fn wait(ring: &mut Ring, patience: Duration) -> io::Result<()> {
    let time = types::Timespec::new().sec(patience.as_secs()).nsec(patience.subsec_nanos());
    let args = types::SubmitArgs::new().timespec(&time);
    pass_over(ring.submitter().submit_with_args(1, &args))
}

/// Frees the memory and the descriptors of the ended operations.
fn take_completions(ring: &mut Ring, ops: &mut NumberMap<PendingOp>, ending: &mut Ending) {
    for completion in ring.completion() {
        let id = completion.user_data();
        match id & CANCELS {
            // The received completion belongs to the operation itself, whether the kernel has
            // cancelled the operation or not.
            0 => {
                ops.remove(&id);
                ending.cancelled.remove(&id);
            }
            _ => {
                let id = id & !CANCELS;
                // Other results mean that the operation has ended, or that the kernel cannot
                // cancel it now.
                if ending.asked.remove(&id) && completion.result() == 0 && ops.contains_key(&id) {
                    ending.cancelled.insert(id);
                }
            }
        }
    }
}

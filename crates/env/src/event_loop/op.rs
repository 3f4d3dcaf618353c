//! Futures of operations that the kernel performs.

use super::{CANCEL_ID, LOOP, OpPhase, PendingOp, Traffic, with_loop};
use io_uring::squeue;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future of one operation in the kernel.
#[derive(Debug)]
pub struct Op {
    id: u64,
    finished: bool,
}

#[cfg(test)]
impl Op {
    /// Returns the id of the operation.
    pub(super) fn number(&self) -> u64 {
        self.id
    }
}

/// Submits an operation to the kernel. `keep` must own the memory that the entry points to. The
/// loop holds `keep` until the completion has arrived, and returns `keep` with the result.
///
/// # Safety
/// All memory that `entry` refers to must either be owned by `keep` or live as long as the process.
pub unsafe fn submit(entry: squeue::Entry128, keep: Box<dyn Any>) -> Op {
    // SAFETY: the caller of this function fulfils the same contract.
    unsafe { submit_traffic(entry, keep, Traffic::None) }
}

/// Like [`submit`], for an operation on a socket. `traffic` is the kind of the operation: a send or
/// a receive.
///
/// # Safety
/// The contract of [`submit`] applies.
pub(crate) unsafe fn submit_traffic(
    entry: squeue::Entry128,
    keep: Box<dyn Any>,
    traffic: Traffic,
) -> Op {
    with_loop(|it| {
        let id = it.next_op;
        it.next_op += 1;
        let phase = OpPhase::Waiting { waker: None, traffic };
        it.ops.insert(id, PendingOp { phase, keep });
        it.push(&entry.user_data(id));
        Op { id, finished: false }
    })
}

impl Future for Op {
    /// The kernel's result (a negated error number if negative), and the `keep` that was passed to
    /// [`submit`].
    type Output = (i32, Box<dyn Any>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id;
        let polled = with_loop(|it| {
            match it.ops.get_mut(&id).map(|op| &mut op.phase) {
                Some(OpPhase::Waiting { waker, .. }) => {
                    if !waker.as_ref().is_some_and(|old| old.will_wake(context.waker())) {
                        *waker = Some(context.waker().clone());
                    }
                    return Poll::Pending;
                }
                Some(OpPhase::Done(result)) => {
                    let result = *result;
                    if let Some(op) = it.ops.remove(&id) {
                        return Poll::Ready((result, op.keep));
                    }
                }
                Some(OpPhase::Dropped) | None => {}
            }
            unreachable!("an operation is awaited once")
        });
        self.finished = polled.is_ready();
        polled
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // While a thread ends, its loop may have been dropped already, together with the operation.
        let _ = LOOP.try_with(|slot| {
            let Ok(mut slot) = slot.try_borrow_mut() else { return };
            let Some(it) = slot.as_mut() else { return };
            let Some(op) = it.ops.get_mut(&self.id) else { return };
            if let OpPhase::Done(_) = op.phase {
                it.ops.remove(&self.id);
            } else {
                op.phase = OpPhase::Dropped;
                let cancel = io_uring::opcode::AsyncCancel::new(self.id).build();
                it.push(&squeue::Entry128::from(cancel).user_data(CANCEL_ID));
            }
        });
    }
}

//! Clients that wait for locks, as real clients do (`crates/client`, `locks/`). A client waits
//! until a target wakes the client, and then repeats the request for the lock. The client may have
//! to begin another wait, or may end the wait.
//!
//! Checks that each waiter finally gets its lock if no other owner blocks it. While faults happen,
//! clients also end waits at random. In the quiet phase, no client releases a lock. A client then
//! ends a wait only if another owner has the lock, or if another task has closed the file. So if a
//! target has forgotten a waiter, the run does not end, and is reported as a violation.

use crate::network::{Node, Purpose};
use crate::operation::Op;
use crate::world::{Phase, SimEvent, World};
use skep_types::SessionId;
use skep_types::codec::Codec;
use skep_wire::file_locks::{EndWait, LockRequest, SetLock, SetLockReply, WaitLock, WaitLockReply};

impl World {
    /// Returns the next operation of a task that has requested a lock and still waits for the lock.
    pub(crate) fn next_of_wait(&mut self, op: &Op, session: SessionId, reply: &[u8]) -> Option<Op> {
        match op {
            Op::SetLock(SetLock { lock, wait }) if *wait != 0 => {
                let set = SetLockReply::from_bytes(reply).ok()?;
                set.conflict.map(|_| self.next_wait_step(session, *lock, *wait))
            }
            Op::WaitLock(WaitLock { lock, wait }) => {
                let (lock, wait) = (*lock, *wait);
                if WaitLockReply::from_bytes(reply).ok()?.is_called {
                    Some(Op::SetLock(SetLock { lock, wait }))
                } else {
                    Some(self.next_wait_step(session, lock, wait))
                }
            }
            _ => None,
        }
    }

    fn next_wait_step(&mut self, session: SessionId, lock: LockRequest, wait: u64) -> Op {
        let witness = &self.witness;
        let gives_up = match self.phase {
            Phase::Busy => self.random.percent(20),
            Phase::Quiet => {
                let is_kept = witness.model.is_blocked(session, &lock);
                witness.is_blind || is_kept || !witness.model.has_open(session, lock.inode)
            }
        };
        if gives_up {
            Op::EndWait(EndWait { inode: lock.inode, wait })
        } else {
            Op::WaitLock(WaitLock { lock, wait })
        }
    }

    /// Begins the next operation of a waiter. A signal may interrupt the wait.
    pub(crate) fn continue_wait(&mut self, client: usize, task: usize, next: Op) {
        if let Op::WaitLock(it) = &next
            && self.phase == Phase::Busy
            && self.random.percent(30)
        {
            let (life, wait) = (self.clients[client].life, it.wait);
            let pause = self.random.micros(0, 2_000_000);
            self.after(pause, SimEvent::Interrupt { client, life, task, wait });
        }
        self.begin(client, task, next, false);
    }

    /// Ends a task's wait for a lock because of a signal.
    pub(crate) fn interrupt(&mut self, client: usize, life: u64, task: usize, wait: u64) {
        let process = &mut self.clients[client];
        let Some(current) = process.tasks[task].current.as_ref().filter(|_| process.life == life)
        else {
            return;
        };
        let Op::WaitLock(it) = &current.op else { return };
        let (window, inode) = (current.window, it.lock.inode);
        if it.wait != wait || !self.network.forget_task(Node::Client(client), task) {
            return;
        }
        self.witness.close_window(window);
        self.begin(client, task, Op::EndWait(EndWait { inode, wait }), false);
    }
}

/// Whether a call belongs to the task with the index `task`.
pub(crate) fn is_of_task(purpose: &Purpose, task: usize) -> bool {
    matches!(purpose, Purpose::Task(of) | Purpose::Outcome(of) if *of == task)
}

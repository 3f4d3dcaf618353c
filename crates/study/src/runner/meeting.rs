//! A barrier from which threads can withdraw. The other threads do not wait for a thread that has
//! withdrawn.

use std::sync::{Condvar, Mutex, PoisonError};

/// A barrier that can be used several times.
#[derive(Debug)]
pub(super) struct Meeting {
    // A thread holds this lock only while it counts threads, and takes no other lock during this
    // time.
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    members: usize,
    waiting: usize,
    round: u64,
}

impl Meeting {
    pub(super) fn new(members: usize) -> Self {
        let state = State { members, waiting: 0, round: 0 };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits until all threads have arrived, except for threads that have withdrawn.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting += 1;
        let round = state.round;
        self.go_if_all_are_here(&mut state);
        while state.round == round {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Withdraws the calling thread from the barrier. The other threads no longer wait for this
    /// thread.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.members -= 1;
        self.go_if_all_are_here(&mut state);
    }

    fn go_if_all_are_here(&self, state: &mut State) {
        if state.waiting > 0 && state.waiting >= state.members {
            state.waiting = 0;
            state.round += 1;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn barrier_waits_for_all_threads_that_have_not_withdrawn() {
        let meeting = Meeting::new(4);
        let arrived = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (meeting, arrived) = (&meeting, &arrived);
                scope.spawn(move || {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    meeting.wait();
                    assert_eq!(arrived.load(Ordering::SeqCst), 4);
                    if number > 0 {
                        meeting.wait();
                    }
                    meeting.leave();
                });
            }
        });
    }
}

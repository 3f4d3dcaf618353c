//! One thread's range of slots in a session, and the sequence of each slot. No I/O.

use skep_env::local::Notify;
use skep_types::{Error, ErrorCode, GroupId, Result, SessionId};
use std::cell::RefCell;
use std::rc::Rc;

/// One thread's range of slots in the session at a group.
///
/// # Invariants
/// - Each slot is either in `free` or taken by exactly one [`Slot`].
/// - No entry of `sequences` ever decreases.
#[derive(Debug)]
pub(crate) struct ThreadSession {
    pub(crate) id: SessionId,
    pub(crate) group: GroupId,
    /// Index of this range's first slot in the session.
    first: u32,
    /// Indexes of the free slots, counted from `first`. The list is a stack.
    free: RefCell<Vec<u32>>,
    /// Sequence of the last request in each slot of this range; zero before the first request.
    sequences: RefCell<Vec<u64>>,
    /// Wakes a waiting task when a slot becomes free.
    freed: Notify,
}

impl ThreadSession {
    /// Divides the `slots` of a session into `ranges` ranges of equal size, and returns the range
    /// of `worker`.
    ///
    /// # Errors
    /// Returns `Configuration` if there are fewer slots than ranges.
    pub(crate) fn new(
        group: GroupId,
        id: SessionId,
        slots: u32,
        worker: u32,
        ranges: u32,
    ) -> Result<Rc<Self>> {
        let share = slots / ranges;
        if share == 0 {
            let text = format!(
                "cannot use the session at group {group}: the group grants {slots} slots, and each \
                 of the {ranges} threads of this mount needs one; mount with the option `workers=` \
                 for fewer threads"
            );
            return Err(Error::new(ErrorCode::Configuration, text));
        }
        debug_assert!(worker < ranges, "worker {worker} of {ranges}");
        Ok(Rc::new(Self {
            id,
            group,
            first: worker * share,
            free: RefCell::new((0..share).rev().collect()),
            sequences: RefCell::new(vec![0; share as usize]),
            freed: Notify::default(),
        }))
    }

    /// Takes a free slot. Waits until one is free.
    pub(crate) async fn take_slot(self: &Rc<Self>) -> Slot {
        loop {
            if let Some(index) = self.free.borrow_mut().pop() {
                return Slot { session: Rc::clone(self), index };
            }
            self.freed.wait().await;
        }
    }

    fn check_invariants(&self) {
        let (free, sequences) = (self.free.borrow(), self.sequences.borrow());
        assert!(free.len() <= sequences.len(), "a range has at most as many free slots as slots");
        let last_free = free.last();
        let is_twice = last_free.is_some_and(|last| free[..free.len() - 1].contains(last));
        assert!(!is_twice, "slot {last_free:?} was freed twice");
    }
}

/// A taken slot. The slot becomes free again when this value is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) session: Rc<ThreadSession>,
    index: u32,
}

impl Slot {
    /// Returns the slot and the sequence number that [`Self::next`] will return.
    pub(crate) fn upcoming(&self) -> (u32, u64) {
        let sequence = self.session.sequences.borrow()[self.index as usize] + 1;
        (self.session.first + self.index, sequence)
    }

    /// Returns the slot and the sequence number for the next request.
    pub(crate) fn next(&self) -> (u32, u64) {
        let sequence = &mut self.session.sequences.borrow_mut()[self.index as usize];
        *sequence += 1;
        (self.session.first + self.index, *sequence)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.session.free.borrow_mut().push(self.index);
        if cfg!(debug_assertions) {
            self.session.check_invariants();
        }
        self.session.freed.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn range(slots: u32, worker: u32, ranges: u32) -> Result<Rc<ThreadSession>> {
        ThreadSession::new(GroupId::new(1), SessionId::new(7), slots, worker, ranges)
    }

    #[test]
    fn each_worker_has_its_own_range_of_slots() {
        skep_env::block_on(async {
            let (first, second) = (range(4, 0, 2).unwrap(), range(4, 1, 2).unwrap());
            let mut numbers = Vec::new();
            for session in [&first, &first, &second, &second] {
                let slot = session.take_slot().await;
                numbers.push(slot.next().0);
                std::mem::forget(slot);
            }
            numbers.sort_unstable();
            assert_eq!(numbers, [0, 1, 2, 3]);
        })
        .unwrap();
    }

    #[test]
    fn too_few_slots_for_the_threads_are_refused() {
        assert_eq!(range(1, 0, 2).unwrap_err().code(), ErrorCode::Configuration);
    }

    #[test]
    fn slot_serves_one_request_at_a_time_and_counts_requests() {
        skep_env::block_on(async {
            let session = range(1, 0, 1).unwrap();
            let slot = session.take_slot().await;
            assert_eq!(slot.next(), (0, 1));
            let next = skep_env::timeout(Duration::from_millis(1), session.take_slot()).await;
            assert!(next.is_none(), "the only slot is taken");
            drop(slot);
            assert_eq!(session.take_slot().await.next(), (0, 2));
        })
        .unwrap();
    }
}

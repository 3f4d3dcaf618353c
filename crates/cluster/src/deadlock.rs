//! Deadlock cycles of POSIX locks that span files of several metadata targets: detects a cycle and
//! selects the wait that must end. This module does not handle a cycle among the files of one
//! target, because that target refuses the wait that would close the cycle
//! (`docs/design/0005-locks.md`).
//!
//! A client asks the targets one after another, so their replies describe different moments. The
//! client therefore asks all targets twice. A wait that a target lists in both replies existed
//! during the whole time between the replies. Only such waits count ([`LockWaits::steady`]).
//!
//! A cycle of such waits counts as a deadlock, because a waiting program releases no lock. A
//! program with several threads is an exception: while one thread waits, another thread may release
//! a lock of the same owner. POSIX and Linux ignore this case too, since their rule for `EDEADLK`
//! concerns the owners of locks, which are processes, and not threads. So the wait of such a
//! program may end with `EDEADLK`, although it would have ended by itself.
//!
//! # Invariants
//! The field `count` is the number of all waits in the field `waits`.
//! [`LockWaits::check_invariants`] asserts the invariant.

use skep_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A program that has a lock or waits for one: its client, and its owner id at that client.
pub type LockOwner = (NodeId, u64);

/// The waits for locks, each with the holders of the conflicting locks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// The waits of each program, by wait id. The value of a wait is the set of programs that have
    /// a conflicting lock. A program may wait in several threads. Clients never reuse the id of a
    /// wait.
    waits: BTreeMap<LockOwner, BTreeMap<u64, BTreeSet<LockOwner>>>,
    count: usize,
}

impl LockWaits {
    /// Adds a wait. Replaces a wait of the same waiter with the same id.
    pub fn add(
        &mut self,
        waiter: LockOwner,
        number: u64,
        holders: impl IntoIterator<Item = LockOwner>,
    ) {
        let numbers = self.waits.entry(waiter).or_default();
        let before = numbers.insert(number, holders.into_iter().collect());
        self.count += usize::from(before.is_none());
    }

    /// Returns the number of waits.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether `waiter` has a wait with the id `number`.
    pub fn has(&self, waiter: LockOwner, number: u64) -> bool {
        self.waits.get(&waiter).is_some_and(|numbers| numbers.contains_key(&number))
    }

    /// Returns the waits that are in both `self` and `later`. Each returned wait has only the lock
    /// holders that it has in both `self` and `later`.
    pub fn steady(&self, later: &Self) -> Self {
        let mut steady = Self::default();
        for (waiter, numbers) in &self.waits {
            let Some(again) = later.waits.get(waiter) else { continue };
            for (number, holders) in numbers {
                if let Some(holders_again) = again.get(number) {
                    steady.add(*waiter, *number, holders.intersection(holders_again).copied());
                }
            }
        }
        if cfg!(debug_assertions) {
            steady.check_invariants();
        }
        steady
    }

    /// Asserts the invariant of the module.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check_invariants(&self) {
        let count: usize = self.waits.values().map(BTreeMap::len).sum();
        assert_eq!(self.count, count, "the count of waits is the number of entries");
    }

    /// Whether a wait must end so that a deadlock cycle is broken. Such a wait is part of a cycle,
    /// and its pair of client id and wait id is the highest in that cycle. So all clients
    /// select the same wait of each cycle without communication.
    pub fn gives_way(&self, waiter: LockOwner, number: u64) -> bool {
        let holders = |party: &LockOwner, number: &u64| self.waits.get(party)?.get(number);
        let mut next: Vec<LockOwner> =
            holders(&waiter, &number).into_iter().flatten().copied().collect();
        let mut seen = BTreeSet::new();
        while let Some(party) = next.pop() {
            if party == waiter {
                return true;
            }
            if !seen.insert(party) {
                continue;
            }
            let lower = self.waits.get(&party).into_iter().flatten();
            let lower = lower.filter(|(other, _)| (party.0, **other) < (waiter.0, number));
            next.extend(lower.flat_map(|(_, holders)| holders));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn party(number: u64) -> LockOwner {
        (NodeId::new(number as u32 % 3), number)
    }

    fn waits(edges: &[(u64, &[u64])]) -> LockWaits {
        let mut waits = LockWaits::default();
        for (waiter, holders) in edges {
            waits.add(party(*waiter), *waiter, holders.iter().map(|it| party(*it)));
        }
        waits
    }

    #[test]
    fn one_wait_of_each_deadlock_cycle_is_refused() {
        let cycle = waits(&[(1, &[2]), (2, &[3, 9]), (3, &[1])]);
        let ending: Vec<_> = (1..=3).filter(|it| cycle.gives_way(party(*it), *it)).collect();
        assert_eq!(ending, [2], "client 2 is the highest");
        let chain = waits(&[(1, &[2]), (2, &[3])]);
        assert!((1..=3).all(|it| !chain.gives_way(party(it), it)));
    }

    #[test]
    fn wait_outside_of_a_deadlock_cycle_is_not_refused() {
        let waits = waits(&[(1, &[4]), (4, &[1]), (8, &[1])]);
        assert!(!waits.gives_way(party(8), 8));
    }

    #[test]
    fn wait_listed_in_only_one_of_two_replies_is_no_deadlock() {
        let first = waits(&[(1, &[2]), (2, &[1, 3])]);
        assert!(first.gives_way(party(2), 2));
        // In the second reply, a conflicting lock has another holder.
        let changed = first.steady(&waits(&[(1, &[2]), (2, &[3])]));
        assert!(changed.has(party(2), 2) && !changed.gives_way(party(2), 2));
        // In the second reply, the wait of the program has another id.
        let mut other = waits(&[(1, &[2])]);
        other.add(party(2), 7, [party(1)]);
        let steady = first.steady(&other);
        assert_eq!((steady.len(), steady.has(party(2), 2)), (1, false));
        assert_eq!(first.steady(&first), first);
    }

    proptest! {
        /// [`LockWaits::gives_way`] selects a wait if and only if there is a cycle. If the selected
        /// waits end one after another, no cycle is left.
        #[test]
        fn every_deadlock_cycle_is_broken(
            edges in prop::collection::vec((0u64..7, 0u64..7), 0..14),
        ) {
            let mut by_waiter: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for (waiter, holder) in edges.into_iter().filter(|(a, b)| a != b) {
                by_waiter.entry(waiter).or_default().push(holder);
            }
            loop {
                let edges: Vec<_> = by_waiter.iter().map(|(a, b)| (*a, &b[..])).collect();
                let waits = waits(&edges);
                let is_cycle = has_cycle(&by_waiter);
                let gives = by_waiter.keys().copied().find(|it| waits.gives_way(party(*it), *it));
                prop_assert_eq!(gives.is_some(), is_cycle);
                let Some(gives) = gives else { break };
                by_waiter.remove(&gives);
            }
        }
    }

    /// Repeatedly removes the programs that do not wait for a program in `edges`. Returns whether
    /// any program is left, which means that there is a cycle.
    fn has_cycle(edges: &BTreeMap<u64, Vec<u64>>) -> bool {
        let mut left: BTreeMap<_, _> = edges.clone();
        loop {
            let before = left.len();
            let names: BTreeSet<_> = left.keys().copied().collect();
            left.retain(|_, holders| holders.iter().any(|it| names.contains(it)));
            if left.len() == before {
                return before > 0;
            }
        }
    }
}

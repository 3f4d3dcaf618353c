//! Cycles of programs that wait for each other's POSIX locks on files of several metadata targets:
//! whether there is one, and who of it gives way. A cycle among the files of one target that
//! target finds by itself, before it forms (`docs/design/0005-locks.md`).
//!
//! Targets are asked one after the other, so what they tell doesn't belong to one moment. But a
//! wait that is there both times when everybody is asked twice was there all the time between; only
//! those count ([`LockWaits::steady`]). Who waits can't give back what he holds, so a cycle of
//! such waits is one.

use skep_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Who holds or waits: a client, and the number that it has given to the program.
pub type Party = (NodeId, u64);

/// Who waits, and for whom.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// By the number of the wait, which its client gives once: a program may wait in several
    /// threads. Those for whom it waits hold what is in its way.
    waits: BTreeMap<Party, BTreeMap<u64, BTreeSet<Party>>>,
    count: usize,
}

impl LockWaits {
    /// Takes in a wait.
    pub fn add(&mut self, waiter: Party, number: u64, holders: impl IntoIterator<Item = Party>) {
        let numbers = self.waits.entry(waiter).or_default();
        let before = numbers.insert(number, holders.into_iter().collect());
        self.count += usize::from(before.is_none());
    }

    /// How many waits there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether this wait is among them.
    pub fn has(&self, waiter: Party, number: u64) -> bool {
        self.waits.get(&waiter).is_some_and(|numbers| numbers.contains_key(&number))
    }

    /// What was found again later: the waits that are in both, and the holders that both times were
    /// in their way.
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
        steady
    }

    /// Whether a wait is in a cycle, and the one of it that has to end: that with the highest
    /// client and number. So of each cycle exactly one gives way, without a word between clients.
    pub fn gives_way(&self, waiter: Party, number: u64) -> bool {
        let holders = |party: &Party, number: &u64| self.waits.get(party)?.get(number);
        let mut next: Vec<Party> =
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

    fn party(number: u64) -> Party {
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
        let who: Vec<_> = (1..=3).filter(|it| cycle.gives_way(party(*it), *it)).collect();
        assert_eq!(who, [2], "client 2 is the highest");
        let chain = waits(&[(1, &[2]), (2, &[3])]);
        assert!((1..=3).all(|it| !chain.gives_way(party(it), it)));
    }

    #[test]
    fn a_waiter_outside_the_cycle_is_not_refused() {
        let waits = waits(&[(1, &[4]), (4, &[1]), (8, &[1])]);
        assert!(!waits.gives_way(party(8), 8));
    }

    #[test]
    fn a_wait_seen_only_once_closes_no_cycle() {
        let first = waits(&[(1, &[2]), (2, &[1, 3])]);
        assert!(first.gives_way(party(2), 2));
        // The holder has changed.
        let changed = first.steady(&waits(&[(1, &[2]), (2, &[3])]));
        assert!(changed.has(party(2), 2) && !changed.gives_way(party(2), 2));
        // It is another wait of the same program.
        let mut other = waits(&[(1, &[2])]);
        other.add(party(2), 7, [party(1)]);
        let steady = first.steady(&other);
        assert_eq!((steady.len(), steady.has(party(2), 2)), (1, false));
        assert_eq!(first.steady(&first), first);
    }

    proptest! {
        /// As by trying all ways: who gives way is the highest of some cycle through it, and while
        /// there is a cycle, somebody does.
        #[test]
        fn every_deadlock_cycle_is_broken(edges in prop::collection::vec((0u64..7, 0u64..7), 0..14)) {
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

    /// Those who wait for nobody, or for such alone, are taken away; is somebody left?
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

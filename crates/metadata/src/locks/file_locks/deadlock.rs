//! Deadlock cycles among waiters for POSIX locks. The target searches for cycles among its own
//! waiters. The target also lists its waiters with the owners that block them, so that clients can
//! search for cycles across targets.

use super::FileLocks;
use crate::limits::MAX_DEADLOCK_STEPS;
use crate::locks::request::{LockClaim, LockOwnerId};
use skep_types::InodeId;
use skep_wire::file_locks::{ListedWait, LockKind, LockParty, WaitList};
use skep_wire::limits::{MAX_LISTED_HOLDERS, MAX_LISTED_WAITS};
use std::collections::BTreeSet;
use std::ops::Bound;

impl FileLocks {
    /// Returns a page of the waits for POSIX locks, each with the owners of the locks that block
    /// it. The page begins with the first waiting owner after `after`.
    pub(crate) fn posix_waits(&self, after: LockParty) -> WaitList {
        let mut list = WaitList { waits: Vec::new(), next: None };
        let party = |(session, owner): LockOwnerId| LockParty { session, owner };
        let behind = (Bound::Excluded((after.session, after.owner)), Bound::Unbounded);
        let mut last = after;
        for (owner, waits) in self.waiting.range(behind) {
            if list.waits.len() >= MAX_LISTED_WAITS {
                list.next = Some(last);
                break;
            }
            last = party(*owner);
            let posix = waits.iter().filter(|((_, kind), _)| *kind == LockKind::Posix);
            for (file_key, number) in posix.take(MAX_LISTED_HOLDERS) {
                let Some(file) = self.files.get(file_key) else { continue };
                let wait = file.queue.get((owner.0, *number));
                let wait = wait.filter(|it| !it.is_woken());
                // A woken waiter is about to set its lock, so it waits for no owner.
                let Some(wait) = wait else { continue };
                let holders = file.held_against(&wait.claim).map(|it| party(it.owner));
                let holders: BTreeSet<_> = holders.take(MAX_LISTED_HOLDERS).collect();
                let holders = holders.into_iter().collect();
                list.waits.push(ListedWait { waiter: last, wait: *number, holders });
            }
        }
        list
    }

    /// Whether a wait for this claim would close a deadlock cycle. The search follows edges from a
    /// waiter to the owners of the conflicting locks of the same kind (POSIX or `flock`), because
    /// each kind has its own owner ids. There is no edge to an earlier waiter in the queue, because
    /// later claims can overtake an earlier waiter. Returns `false` after [`MAX_DEADLOCK_STEPS`]
    /// edges.
    pub(crate) fn closes_cycle(&self, inode: InodeId, claim: &LockClaim) -> bool {
        let mut seen = BTreeSet::new();
        let mut steps = 0;
        let mut next = vec![(inode, claim)];
        while let Some((inode, claim_next)) = next.pop() {
            for holder in self.holders(inode, claim_next) {
                steps += 1;
                if holder == claim.owner {
                    return true;
                }
                if steps > MAX_DEADLOCK_STEPS {
                    return false;
                }
                if !seen.insert(holder) {
                    continue;
                }
                let waits = self.waiting.get(&holder).into_iter().flatten();
                for (file_key, number) in waits.filter(|(file_key, _)| file_key.1 == claim.kind) {
                    let found = self
                        .files
                        .get(file_key)
                        .and_then(|file| file.queue.get((holder.0, *number)));
                    if let Some(it) = found.filter(|it| !it.is_woken()) {
                        next.push((file_key.0, &it.claim));
                    }
                }
            }
        }
        false
    }

    /// Returns the owners of the held locks that conflict with a claim.
    fn holders(&self, inode: InodeId, claim: &LockClaim) -> BTreeSet<LockOwnerId> {
        let file = self.files.get(&(inode, claim.kind));
        let held = file.into_iter().flat_map(|file| file.held_against(claim));
        held.map(|it| it.owner).take(MAX_DEADLOCK_STEPS).collect()
    }
}

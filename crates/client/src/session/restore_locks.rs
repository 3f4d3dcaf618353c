//! Restores the locks that a metadata target has lost in a power loss of its host, and repeats the
//! unlocks that the target has lost.
//!
//! A target acknowledges a lock or an unlock before its log record is on the device. If its host
//! loses power in the next milliseconds, the target has only the owner's earlier locks. So after
//! each new start of a target, the client lists the locks that its session has there, and sends a
//! request for each difference. If another client has got a lost lock since the power loss,
//! operations through the handle of the lock fail, as after the loss of a session.
//!
//! `locks::owners` has the table of this mount's locks.

use crate::client::Client;
use crate::locks::file_locks::{FileLock, request_of};
use crate::locks::owners::{Owner, OwnerTurn};
use crate::session::request::{ModifyOptions, send_attempt};
use crate::session::slots::ThreadSession;
use crate::session::table::is_lost;
use skep_cluster::lock_ranges::LockRanges;
use skep_rpc::CallOptions;
use skep_types::{GroupId, InodeId, Result, SessionId};
use skep_wire::file_locks::{ListLocks, LockMode, SetLock};
use skep_wire::limits::LOCK_END;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The locks of an owner at a target. `None` means that the list of the target is incomplete.
type LocksAtTarget = Option<LockRanges<LockMode>>;

impl Client {
    /// Compares the locks of a session at a group with the locks of this mount, and sends lock and
    /// unlock requests until both are equal.
    ///
    /// # Errors
    /// Returns the error of the group, for example if it has ended the session.
    pub(super) async fn restore_locks(&self, group: GroupId, id: SessionId) -> Result<()> {
        let locks = &self.mount().locks;
        if !locks.is_used() {
            return Ok(());
        }
        let mut there = self.locks_at(group, id).await?;
        let map = self.map();
        let here = locks.owners(|inode| map.shard_group(inode.shard()) == Some(group));
        let session = self.session_of(group, id).await?;
        for owner in here.keys() {
            there.entry(*owner).or_insert_with(|| Some(LockRanges::default()));
        }
        for (owner, there) in there {
            let here = here.get(&owner).into_iter().flat_map(|ranges| ranges.iter());
            let here = LockRanges::of(here.map(|(range, lock)| (range, lock.mode)));
            if there.as_ref() != Some(&here) {
                self.restore_locks_of(owner, there, &session).await?;
            }
        }
        Ok(())
    }

    /// Returns the locks that a session has at a group.
    async fn locks_at(
        &self,
        group: GroupId,
        id: SessionId,
    ) -> Result<HashMap<Owner, LocksAtTarget>> {
        let mut found: HashMap<Owner, LocksAtTarget> = HashMap::new();
        // Begin with inode id zero, which no file has, because the target returns the locks after
        // the position in the request.
        let mut after = Some((id, InodeId::default()));
        while let Some((after_session, after_inode)) = after.filter(|after| after.0 == id) {
            let all = InodeId::default();
            let request = ListLocks { inode: all, after_session, after_inode, only_locked: true };
            let options = CallOptions { session: id, ..CallOptions::default() };
            let (list, _) = self.router().call(group, &request, options).await?;
            for listed in list.uses.iter().filter(|it| it.session == id) {
                let is_complete = listed.held.len() == listed.held_count as usize;
                for held in &listed.held {
                    let owner = Owner { inode: listed.inode, kind: held.kind, owner: held.owner };
                    let ranges = found.entry(owner).or_insert_with(|| Some(LockRanges::default()));
                    match ranges {
                        Some(ranges) if is_complete => {
                            ranges.set(held.start..held.end, Some(held.mode));
                        }
                        _ => *ranges = None,
                    }
                }
            }
            after = list.next;
        }
        Ok(found)
    }

    /// Compares the locks of one owner at the target with the locks of this mount, and sends lock
    /// and unlock requests until both are equal.
    async fn restore_locks_of(
        &self,
        owner: Owner,
        there: LocksAtTarget,
        session: &Rc<ThreadSession>,
    ) -> Result<()> {
        // First reserve the owner, so that no other request of the owner is in progress during the
        // comparison.
        let Some(turn) = self.mount().locks.turn(owner, false).await else { return Ok(()) };
        let here = turn.with(|ranges| ranges.clone());
        let there: Vec<_> = match &there {
            Some(there) => there.iter().map(|(range, _)| range).collect(),
            None => std::iter::once(0..LOCK_END).collect(),
        };
        for range in there.into_iter().flat_map(|range| gaps(range, here.iter().map(|it| it.0))) {
            let unlock =
                FileLock { kind: owner.kind, owner: owner.owner, mode: None, range, pid: 0 };
            if !self.send_lock(&turn, &unlock, session).await? {
                tracing::warn!(
                    "file {}: a program on this mount has released a lock, but metadata still \
                     holds the lock, and refuses its release; other programs wait for the lock \
                     until this mount has closed the file; `skep lock list` shows the lock",
                    owner.inode
                );
            }
        }
        for (range, lock) in here.iter() {
            let (mode, pid) = (Some(lock.mode), lock.pid);
            let again =
                FileLock { kind: owner.kind, owner: owner.owner, mode, range: range.clone(), pid };
            if !self.send_lock(&turn, &again, session).await? {
                turn.with(|ranges| ranges.set(range, None));
                self.lose_locks_of(lock.handle, "in a power loss of a metadata host");
            }
        }
        Ok(())
    }

    /// Sends one request that locks or unlocks a range. Returns whether the target has executed the
    /// request.
    async fn send_lock(
        &self,
        turn: &OwnerTurn,
        lock: &FileLock,
        session: &Rc<ThreadSession>,
    ) -> Result<bool> {
        let request = Arc::new(SetLock { lock: request_of(turn.owner, lock), wait: 0 });
        let slot = session.take_slot().await;
        let options = ModifyOptions::of_session();
        match send_attempt(Rc::clone(&self.0), slot, request, options, None).await {
            Ok(reply) => Ok(reply.conflict.is_none()),
            Err(error) if is_lost(&error) => Err(error),
            Err(error) => {
                tracing::warn!(
                    "file {}: cannot repeat the change of a lock after a power loss of a metadata \
                     host: {error}",
                    turn.owner.inode
                );
                Ok(false)
            }
        }
    }
}

/// Returns the parts of `range` that none of `others` covers. `others` are in ascending order.
fn gaps(range: Range<u64>, others: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = range.start;
    for other in others {
        found.push(at..other.start.min(range.end));
        at = at.max(other.end);
    }
    found.push(at..range.end);
    found.retain(|gap| gap.start < gap.end);
    found
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn gaps_are_the_parts_of_a_range_outside_other_ranges() {
        let check = |others: &[(u64, u64)], expected: &[(u64, u64)]| {
            let found = gaps(10..20, others.iter().map(|it| it.0..it.1));
            let found: Vec<_> = found.into_iter().map(|it| (it.start, it.end)).collect();
            assert_eq!(found, expected);
        };
        check(&[], &[(10, 20)]);
        check(&[(0, 5), (30, 40)], &[(10, 20)]);
        check(&[(0, 12), (14, 15), (18, 40)], &[(12, 14), (15, 18)]);
        check(&[(5, 25)], &[]);
    }
}

//! Changes of names and attributes that metadata has acknowledged, and that may not be durable yet.
//! A power loss of a metadata host may revert such changes. After a start of the target, the client
//! compares its list of these changes with the slots in the target's store (`compare_slots`),
//! before the target executes further changes of the session.
//!
//! Owns the list of the changes, and the set of inodes with reverted changes for which no program
//! has got an error yet. No I/O.
//!
//! # Invariants
//! - A change is removed from the list only if the target has synced it, or after a comparison.
//! - Each attempt to send a change contains a start number of the target. The client compares the
//!   list with the slots of the target after this start, and then checks whether the change
//!   concerns reverted inodes.
//! - The list of a group has at most [`MAX_ACKNOWLEDGED`] changes. From that length on, the client
//!   sends changes with the durable flag, and the replies empty the list. Changes in flight may
//!   exceed the limit by the number of slots.

use crate::limits::{MAX_ACKNOWLEDGED, MAX_REVERTED_INODES};
use skep_types::codec::Bytes;
use skep_types::{GroupId, InodeId, SessionId};
use skep_wire::inline::RemoveInline;
use skep_wire::metadata as md;
use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// An acknowledged change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    /// Name of the request.
    pub(crate) request: &'static str,
    /// The inodes that the request names. A request that names only one inode has it in both
    /// elements.
    pub(crate) inodes: [InodeId; 2],
}

/// A client's session at a group, with the acknowledged changes that may not be durable.
#[derive(Debug, Default)]
struct Kept {
    session: SessionId,
    /// The start number of the target when the session was opened, or at the newest comparison.
    start: u64,
    /// For each slot, the sequence of the slot's last request in the target's store at the newest
    /// comparison.
    executed: HashMap<u32, u64>,
    changes: VecDeque<Change>,
    /// Sequence number of the first change in `changes`. Changes are numbered in the order in which
    /// their replies arrived.
    first: u64,
}

impl Kept {
    fn next(&self) -> u64 {
        self.first + self.changes.len() as u64
    }
}

/// An attempt to send a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    session: SessionId,
    /// The start number that the request must contain: the current start of the target. The target
    /// refuses the request if the target has started again since then. So the client always
    /// compares its changes before a target executes requests of a new start.
    pub(crate) start: u64,
    /// Sequence number of the change that will be added to the list next.
    next: u64,
    /// Whether the list is full. The client then sends the request with the durable flag, and the
    /// reply makes the list shorter.
    pub(crate) is_list_full: bool,
    /// Whether any inode has reverted changes for which no program has got an error yet.
    pub(crate) has_reverted: bool,
}

#[derive(Debug, Default)]
struct Inner {
    groups: HashMap<GroupId, Kept>,
    /// Inodes with reverted changes.
    reverted: HashSet<InodeId>,
    /// Whether a power loss has reverted a change, and no `fsync` of a directory has returned an
    /// error for it yet.
    is_name_reverted: bool,
}

impl Inner {
    fn kept(&mut self, group: GroupId, session: SessionId) -> Option<&mut Kept> {
        self.groups.get_mut(&group).filter(|kept| kept.session == session)
    }
}

/// The acknowledged changes of a mount.
#[derive(Debug, Default)]
pub(crate) struct AcknowledgedChanges {
    /// The mutex protects only the lists. No task awaits anything while it holds the lock.
    inner: Mutex<Inner>,
}

impl AcknowledgedChanges {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Creates the list of changes for a session that a group has opened. `start` is the start
    /// number of the group's target. Does nothing if another thread has already created the list of
    /// the session.
    pub(crate) fn opened(&self, group: GroupId, session: SessionId, start: u64) {
        self.with(|inner| {
            if inner.kept(group, session).is_none() {
                inner.groups.insert(group, Kept { session, start, ..Kept::default() });
            }
        });
    }

    /// Begins an attempt to send a request for a change. The caller then checks whether the request
    /// concerns reverted changes, and sends it with the start of the attempt.
    pub(crate) fn attempt(&self, group: GroupId, session: SessionId) -> Attempt {
        self.with(|inner| {
            let has_reverted = !inner.reverted.is_empty();
            let kept = inner.kept(group, session);
            Attempt {
                session,
                start: kept.as_ref().map_or(0, |kept| kept.start),
                next: kept.as_ref().map_or(0, |kept| kept.next()),
                is_list_full: kept.is_some_and(|kept| kept.changes.len() >= MAX_ACKNOWLEDGED),
                has_reverted,
            }
        })
    }

    /// Adds a change that a group has acknowledged.
    pub(crate) fn acknowledged(&self, group: GroupId, session: SessionId, change: Change) {
        self.with(|inner| {
            if let Some(kept) = inner.kept(group, session) {
                kept.changes.push_back(change);
            }
        });
    }

    /// Removes the changes that were acknowledged before `attempt`. The group has synced these
    /// changes, since it has replied to a later request with the durable flag.
    pub(crate) fn synced(&self, group: GroupId, attempt: Attempt) {
        self.with(|inner| {
            let Some(kept) = inner.kept(group, attempt.session) else { return };
            if kept.first < attempt.next {
                let count = (attempt.next - kept.first).min(kept.changes.len() as u64);
                kept.changes.drain(..count as usize);
                kept.first = attempt.next;
            }
        });
    }

    /// Compares the changes of a session with the last request of each slot in the target's store.
    /// Returns the changes that the target has lost. All other changes are durable, because a
    /// target that starts serves only the changes that are on its device. Marks the inodes of the
    /// lost changes as reverted. Later attempts contain the start number in `reply`. `None` means
    /// that the session was replaced.
    pub(crate) fn compare(
        &self,
        group: GroupId,
        session: SessionId,
        reply: &md::CompareSlotsReply,
    ) -> Option<Vec<Change>> {
        self.with(|inner| {
            let kept = inner.kept(group, session)?;
            // Another thread has already compared the list with the slots after this start of the
            // target, so do nothing. Changes that were acknowledged since then are missing in this
            // reply, but they are not lost.
            if kept.start == reply.start {
                return Some(Vec::new());
            }
            kept.start = reply.start;
            kept.executed = reply.slots.iter().map(|it| (it.slot, it.sequence)).collect();
            kept.first = kept.next();
            let executed = &kept.executed;
            let is_lost = |it: &Change| it.sequence > executed.get(&it.slot).copied().unwrap_or(0);
            let lost: Vec<_> = kept.changes.drain(..).filter(is_lost).collect();
            for inode in lost.iter().flat_map(|it| it.inodes) {
                if inner.reverted.len() < MAX_REVERTED_INODES {
                    inner.reverted.insert(inode);
                }
            }
            inner.is_name_reverted |= !lost.is_empty();
            Some(lost)
        })
    }

    /// Returns whether the target had executed a request before the last comparison.
    pub(crate) fn was_executed(
        &self,
        group: GroupId,
        session: SessionId,
        (slot, sequence): (u32, u64),
    ) -> bool {
        self.with(|inner| {
            let kept = inner.kept(group, session);
            let executed = kept.and_then(|kept| kept.executed.get(&slot).copied());
            executed.is_some_and(|executed| executed >= sequence)
        })
    }

    /// Returns whether one of the inodes has reverted changes. Forgets these changes, because the
    /// caller returns an error to the program.
    pub(crate) fn take_reverted(&self, inodes: &[InodeId]) -> bool {
        self.with(|inner| inodes.iter().filter(|inode| inner.reverted.remove(*inode)).count() > 0)
    }

    /// Returns whether a power loss has reverted a change since the last call of this function.
    pub(crate) fn take_name_reverted(&self) -> bool {
        self.with(|inner| std::mem::take(&mut inner.is_name_reverted))
    }
}

/// Returns the inodes in a request that changes names or attributes. `None` means that the request
/// is of another kind. The client compares opens, locks, reports of sizes and inline bytes with the
/// target in other ways.
pub(crate) fn inodes_of(request: &dyn Any) -> Option<[InodeId; 2]> {
    if let Some(it) = request.downcast_ref::<md::Create>() {
        return Some([it.directory; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::SetAttributes>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::Link>() {
        return Some([it.inode, it.directory]);
    }
    if let Some(it) = request.downcast_ref::<md::MakeDirectory>() {
        return Some([it.directory; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::MakeSymlink>() {
        return Some([it.directory; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::SetXattr>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::RemoveXattr>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<md::SetPattern>() {
        return Some([it.inode; 2]);
    }
    if let Some(it) = request.downcast_ref::<RemoveInline>() {
        return Some([it.inode; 2]);
    }
    let mut names = names_of(request).into_iter().map(|(directory, _)| directory);
    let first = names.next()?;
    Some([first, names.next().unwrap_or(first)])
}

/// Returns the existing names that a request removes, moves or replaces.
pub(crate) fn names_of(request: &dyn Any) -> Vec<(InodeId, Bytes)> {
    if let Some(it) = request.downcast_ref::<md::Unlink>() {
        return vec![(it.directory, it.name.clone())];
    }
    if let Some(it) = request.downcast_ref::<md::RemoveDirectory>() {
        return vec![(it.directory, it.name.clone())];
    }
    if let Some(it) = request.downcast_ref::<md::Rename>() {
        let (from, to) = ((it.from_directory, &it.from_name), (it.to_directory, &it.to_name));
        return [from, to].map(|(directory, name)| (directory, name.clone())).to_vec();
    }
    if let Some(it) = request.downcast_ref::<md::Exchange>() {
        let (from, to) = ((it.from_directory, &it.from_name), (it.to_directory, &it.to_name));
        return [from, to].map(|(directory, name)| (directory, name.clone())).to_vec();
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId::new(1);
    const SESSION: SessionId = SessionId::new(7);

    fn change(slot: u32, sequence: u64, inode: u64) -> Change {
        Change { slot, sequence, request: "Link", inodes: [InodeId::new(inode); 2] }
    }

    fn opened() -> AcknowledgedChanges {
        let changes = AcknowledgedChanges::default();
        changes.opened(GROUP, SESSION, 1);
        changes
    }

    impl AcknowledgedChanges {
        fn acknowledge(&self, change: Change) {
            self.acknowledged(GROUP, SESSION, change);
        }

        fn lost(&self, start: u64, executed: &[(u32, u64)]) -> Vec<Change> {
            let slots = executed.iter().copied();
            let slots = slots.map(|(slot, sequence)| md::SlotSequence { slot, sequence }).collect();
            let reply = md::CompareSlotsReply { start, slots };
            self.compare(GROUP, SESSION, &reply).expect("the session is current")
        }
    }

    #[test]
    fn changes_that_a_target_lost_in_a_power_loss_are_found() {
        let changes = opened();
        for (slot, sequence) in [(0, 1), (1, 1), (0, 2), (2, 1)] {
            changes.acknowledge(change(slot, sequence, u64::from(slot) * 10 + sequence));
        }
        assert_eq!(changes.attempt(GROUP, SESSION).start, 1);
        let lost = changes.lost(2, &[(0, 1), (1, 4)]);
        assert_eq!(lost, [change(0, 2, 2), change(2, 1, 21)]);
        assert_eq!(changes.lost(3, &[]), [], "the other changes are durable");
        let attempt = changes.attempt(GROUP, SESSION);
        assert!(attempt.has_reverted && attempt.start == 3);
        assert!(changes.take_reverted(&[InodeId::new(2)]));
        assert!(
            !changes.take_reverted(&[InodeId::new(2)]),
            "each reverted change is reported once"
        );
        assert!(changes.take_reverted(&[InodeId::new(3), InodeId::new(21)]));
        assert!(!changes.attempt(GROUP, SESSION).has_reverted);
        assert!(changes.take_name_reverted() && !changes.take_name_reverted());
    }

    #[test]
    fn late_slot_reply_does_not_declare_a_newer_change_lost() {
        let changes = opened();
        assert_eq!(changes.lost(2, &[(0, 1)]), []);
        changes.acknowledge(change(0, 2, 1));
        assert_eq!(changes.lost(2, &[(0, 1)]), [], "this reply is older than the change");
        assert_eq!(changes.lost(3, &[(0, 1)]), [change(0, 2, 1)]);
    }

    #[test]
    fn client_knows_which_requests_a_restarted_target_has_executed() {
        let changes = opened();
        assert!(!changes.was_executed(GROUP, SESSION, (0, 1)));
        changes.lost(2, &[(0, 1), (1, 4)]);
        let executed = |slot, sequence| changes.was_executed(GROUP, SESSION, (slot, sequence));
        assert!(executed(0, 1) && executed(1, 3) && !executed(0, 2) && !executed(2, 1));
    }

    #[test]
    fn durable_reply_makes_only_earlier_changes_durable() {
        let changes = opened();
        changes.acknowledge(change(0, 1, 1));
        let attempt = changes.attempt(GROUP, SESSION);
        changes.acknowledge(change(1, 1, 2));
        changes.synced(GROUP, attempt);
        changes.synced(GROUP, attempt);
        assert_eq!(changes.lost(2, &[]), [change(1, 1, 2)]);
        changes.acknowledge(change(1, 2, 3));
        changes.synced(GROUP, attempt);
        assert_eq!(
            changes.lost(3, &[]),
            [change(1, 2, 3)],
            "an old attempt does not cover the change"
        );
    }

    #[test]
    fn list_of_undurable_changes_is_bounded_and_ends_with_session() {
        let changes = opened();
        for sequence in 1..=MAX_ACKNOWLEDGED as u64 {
            assert!(!changes.attempt(GROUP, SESSION).is_list_full);
            changes.acknowledge(change(0, sequence, 1));
        }
        let attempt = changes.attempt(GROUP, SESSION);
        assert!(attempt.is_list_full);
        changes.synced(GROUP, attempt);
        assert!(!changes.attempt(GROUP, SESSION).is_list_full);
        changes.acknowledge(change(0, 9000, 1));
        changes.opened(GROUP, SESSION, 2);
        assert_eq!(
            changes.attempt(GROUP, SESSION).start,
            1,
            "another thread has opened the session"
        );
        changes.opened(GROUP, SessionId::new(8), 2);
        let reply = md::CompareSlotsReply { start: 3, slots: Vec::new() };
        assert_eq!(changes.compare(GROUP, SESSION, &reply), None);
        assert_eq!(changes.compare(GROUP, SessionId::new(8), &reply), Some(Vec::new()));
    }
}

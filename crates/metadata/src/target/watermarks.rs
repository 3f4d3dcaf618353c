//! The watermarks of a group: the progress of its members with the log, and the values *held* and
//! *safe*. Every serving member has appended all records up to *held*, and has synced all records
//! up to *safe*.
//!
//! In a group of one member, *held* is the last appended record, and *safe* is the last synced
//! record. This module does not own the replies, calls and changes that wait for these records
//! (`gates`, `tx::table`).
//!
//! # Invariants
//! - `safe` <= `held` <= `appended`, and none of the three values ever decreases.
//! - *held* and *safe* rise at most to the progress of each member that serves at that time. After
//!   [`Watermarks::hold_only_synced`], *held* also rises at most to the last record that this
//!   target has synced. Before a member begins to serve, it has every record up to *held*, and has
//!   synced every record up to *safe*. In a new epoch, the progress of a member counts as zero
//!   until the member reports it.
//!
//! `check_invariants` checks the order of the values.
//!
//! Held by the tests `watermarks_equal_the_least_progress_of_all_members`,
//! `held_waits_for_the_sync_of_the_primary_after_a_drop_request`,
//! `member_serves_only_with_all_records_of_earlier_primaries`,
//! `member_serves_only_after_its_sync_of_safe_records` and
//! `watermarks_ignore_progress_reported_in_an_earlier_epoch`.

use crate::shipping::Progress;
use skep_types::{ClusterMap, GroupId, Lsn, MemberState, TargetId};
use std::collections::BTreeMap;

/// Returns the serving members of a group, without `target`.
pub(super) fn other_serving(map: &ClusterMap, group: GroupId, target: TargetId) -> Vec<TargetId> {
    let members = map.group(group).into_iter().flat_map(|group| &group.members);
    let serving = members.filter(|it| it.state == MemberState::Serving && it.target != target);
    serving.map(|it| it.target).collect()
}

/// Returns the members of a group that do not serve, without `target`.
pub(super) fn absent(map: &ClusterMap, group: GroupId, target: TargetId) -> Vec<TargetId> {
    let members = map.group(group).into_iter().flat_map(|group| &group.members);
    let absent = members.filter(|it| it.state != MemberState::Serving && it.target != target);
    absent.map(|it| it.target).collect()
}

/// The progress of the members of a group, with the values of *held* and *safe*.
#[derive(Debug)]
pub(crate) struct Watermarks {
    own: Progress,
    /// The other serving members and the counted members, with their progress.
    others: BTreeMap<TargetId, Progress>,
    held: Lsn,
    safe: Lsn,
    /// Last record of the log when this target became the primary.
    begun_with: Lsn,
    /// Whether *held* includes only records that this target has synced, until the next epoch.
    holds_only_synced: bool,
}

impl Watermarks {
    /// Creates the watermarks of a target whose own progress is `own`. `stored` is the last record
    /// in its store, which is *safe*.
    pub(crate) fn new(
        own: Progress,
        stored: Lsn,
        others: impl IntoIterator<Item = TargetId>,
    ) -> Self {
        let others = others.into_iter().map(|member| (member, Progress::default())).collect();
        let begun_with = own.appended;
        let (held, safe, holds_only_synced) = (stored, stored, false);
        let mut watermarks = Self { own, others, held, safe, begun_with, holds_only_synced };
        watermarks.rise();
        watermarks
    }

    /// Returns the progress that a member must have made before it may serve.
    ///
    /// The member must also have synced all *safe* records, because the primary may have sent
    /// replies that promise durability before it counted this member. Even if all members lose
    /// power and the disk of the primary is lost, this member then has these records.
    ///
    /// The values in the result may be above *held* and *safe*. When a primary starts, *held* and
    /// *safe* are the last record in its store. But an earlier primary may have replied because
    /// later records of the log were held or safe.
    pub(crate) fn needed_to_serve(&self) -> Progress {
        let (appended, synced) = (self.held.max(self.begun_with), self.safe.max(self.begun_with));
        Progress { appended, synced }
    }

    /// Returns the last record that this target has appended.
    pub(crate) fn appended(&self) -> Lsn {
        self.own.appended
    }

    /// Returns the last record that this target has synced.
    pub(crate) fn synced(&self) -> Lsn {
        self.own.synced
    }

    /// Returns the last record that every serving member has appended.
    pub(crate) fn held(&self) -> Lsn {
        self.held
    }

    /// Returns the last record that every serving member has synced.
    pub(crate) fn safe(&self) -> Lsn {
        self.safe
    }

    /// Updates the progress of this target, which has appended the record `lsn`.
    pub(crate) fn append(&mut self, lsn: Lsn) {
        self.own.appended = self.own.appended.max(lsn);
        self.rise();
    }

    /// Updates the progress of this target, which has synced its log up to the record `lsn`.
    pub(crate) fn sync(&mut self, lsn: Lsn) {
        self.own.synced = self.own.synced.max(lsn).min(self.own.appended);
        self.rise();
    }

    /// Updates the progress of another member. Ignores a member that neither serves nor is counted.
    pub(crate) fn acknowledge(&mut self, member: TargetId, progress: Progress) {
        if let Some(known) = self.others.get_mut(&member) {
            let synced = progress.synced.min(progress.appended);
            *known = known.max(Progress { synced, ..progress });
            self.rise();
        }
    }

    /// Replaces the list of the other serving and counted members. The progress of a new member
    /// counts as zero until the member reports it.
    pub(crate) fn set_others(&mut self, others: impl IntoIterator<Item = TargetId>) {
        let known = std::mem::take(&mut self.others);
        let progress = |member| known.get(&member).copied().unwrap_or_default();
        self.others = others.into_iter().map(|member| (member, progress(member))).collect();
        self.rise();
    }

    /// Forgets the progress of all other members when a new epoch begins, and ends the effect of
    /// [`Self::hold_only_synced`]. *held* and *safe* keep their values.
    pub(crate) fn forget_others(&mut self) {
        self.others.values_mut().for_each(|progress| *progress = Progress::default());
        self.holds_only_synced = false;
    }

    /// Until the next epoch, lets *held* rise only to records that this target has synced. The
    /// caller has asked management to drop a member. Management may carry out this request after
    /// this target's host has lost power, and this target may then be the only serving member.
    pub(crate) fn hold_only_synced(&mut self) {
        self.holds_only_synced = true;
    }

    /// Whether *held* rises only to records that this target has synced.
    pub(crate) fn holds_only_synced(&self) -> bool {
        self.holds_only_synced
    }

    fn rise(&mut self) {
        let Progress { appended, synced } = self.own;
        let own = if self.holds_only_synced { synced } else { appended };
        let held = self.others.values().map(|it| it.appended).fold(own, Lsn::min);
        let safe = self.others.values().map(|it| it.synced).fold(synced, Lsn::min);
        self.held = self.held.max(held);
        self.safe = self.safe.max(safe);
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        let Progress { appended, synced } = self.own;
        assert!(
            self.safe <= self.held && self.held <= appended && self.safe <= synced,
            "safe ({}) <= held ({}) <= appended ({appended}), safe <= synced ({synced})",
            self.safe,
            self.held
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsn(raw: u64) -> Lsn {
        Lsn::new(raw)
    }

    fn progress(appended: u64, synced: u64) -> Progress {
        Progress { appended: lsn(appended), synced: lsn(synced) }
    }

    const BACKUP: TargetId = TargetId::new(2);

    #[test]
    fn member_serves_only_with_all_records_of_earlier_primaries() {
        let mut watermarks = Watermarks::new(progress(96, 96), lsn(94), [BACKUP]);
        assert_eq!((watermarks.held(), watermarks.needed_to_serve()), (lsn(94), progress(96, 96)));
        watermarks.append(lsn(97));
        let needed = watermarks.needed_to_serve();
        assert_eq!(needed, progress(96, 96), "no client has a reply with record 97");
        watermarks.acknowledge(BACKUP, progress(97, 96));
        assert_eq!(watermarks.needed_to_serve(), progress(97, 96));
    }

    #[test]
    fn member_serves_only_after_its_sync_of_safe_records() {
        let mut watermarks = Watermarks::new(progress(5, 5), lsn(5), []);
        watermarks.append(lsn(8));
        assert_eq!(watermarks.needed_to_serve(), progress(8, 5));
        watermarks.sync(lsn(7));
        assert_eq!(watermarks.needed_to_serve(), progress(8, 7));
        watermarks.set_others([BACKUP]);
        watermarks.acknowledge(BACKUP, progress(8, 5));
        assert_eq!(watermarks.needed_to_serve(), progress(8, 7));
    }

    #[test]
    fn group_of_one_member_holds_a_record_as_soon_as_it_is_appended() {
        let mut group = Watermarks::new(progress(5, 5), lsn(3), []);
        assert_eq!((group.held(), group.safe()), (lsn(5), lsn(5)));
        group.append(lsn(7));
        assert_eq!((group.held(), group.safe()), (lsn(7), lsn(5)));
        group.sync(lsn(7));
        assert_eq!((group.held(), group.safe()), (lsn(7), lsn(7)));
    }

    #[test]
    fn watermarks_are_the_lower_progress_of_two_members() {
        let mut group = Watermarks::new(progress(5, 5), lsn(3), [BACKUP]);
        assert_eq!((group.held(), group.safe()), (lsn(3), lsn(3)));
        group.acknowledge(BACKUP, progress(5, 4));
        assert_eq!((group.held(), group.safe()), (lsn(5), lsn(4)));
        group.append(lsn(8));
        group.acknowledge(BACKUP, progress(7, 7));
        assert_eq!(
            (group.held(), group.safe()),
            (lsn(7), lsn(5)),
            "this target has synced only the records up to 5"
        );
    }

    #[test]
    fn watermarks_ignore_progress_reported_in_an_earlier_epoch() {
        let mut group = Watermarks::new(progress(0, 0), lsn(0), [BACKUP]);
        group.append(lsn(4));
        group.acknowledge(BACKUP, progress(4, 4));
        group.forget_others();
        group.append(lsn(6));
        assert_eq!(group.held(), lsn(4));
        group.acknowledge(BACKUP, progress(3, 3));
        assert_eq!(
            group.held(),
            lsn(4),
            "the member has lost a record, but the watermark does not fall"
        );
        group.acknowledge(BACKUP, progress(6, 3));
        assert_eq!(group.held(), lsn(6));
    }

    #[test]
    fn held_waits_for_the_sync_of_the_primary_after_a_drop_request() {
        let mut group = Watermarks::new(progress(5, 5), lsn(5), [BACKUP]);
        group.acknowledge(BACKUP, progress(5, 5));
        group.hold_only_synced();
        group.append(lsn(8));
        group.acknowledge(BACKUP, progress(8, 8));
        assert_eq!(
            group.held(),
            lsn(5),
            "the member has record 8, but the device of this target has not"
        );
        group.sync(lsn(7));
        assert_eq!(group.held(), lsn(7));
        group.forget_others();
        group.append(lsn(9));
        group.acknowledge(BACKUP, progress(9, 8));
        assert_eq!(
            group.held(),
            lsn(9),
            "the new epoch has revoked the request to drop the member"
        );
    }

    #[test]
    fn watermarks_ignore_members_that_do_not_serve() {
        let mut group = Watermarks::new(progress(0, 0), lsn(0), [BACKUP]);
        group.append(lsn(4));
        group.sync(lsn(4));
        group.acknowledge(TargetId::new(3), progress(4, 4));
        assert_eq!(group.held(), lsn(0));
        group.set_others([]);
        assert_eq!((group.held(), group.safe()), (lsn(4), lsn(4)), "the backup was dropped");
        group.set_others([BACKUP]);
        group.append(lsn(6));
        assert_eq!(
            (group.held(), group.safe()),
            (lsn(4), lsn(4)),
            "a new member lowers no watermark"
        );
        group.acknowledge(BACKUP, progress(6, 3));
        assert_eq!((group.held(), group.safe()), (lsn(6), lsn(4)));
    }

    proptest::proptest! {
        /// In any order of events, the watermarks never decrease. While the members stay the same,
        /// each watermark equals the least progress of all members.
        #[test]
        fn watermarks_equal_the_least_progress_of_all_members(
            steps in proptest::collection::vec((0_u8..5, 0_u64..4, 0_u64..6, 0_u64..6), 1..200),
            members in 0_u32..3,
        ) {
            let names: Vec<_> = (10..10 + members).map(TargetId::new).collect();
            let mut group = Watermarks::new(progress(0, 0), lsn(0), names.clone());
            let mut own = (0, 0);
            let mut others = vec![(0, 0); names.len()];
            for (step, member, more, synced) in steps {
                let before = (group.held(), group.safe());
                match step {
                    0 | 1 => {
                        own.0 += more;
                        group.append(lsn(own.0));
                    }
                    2 => {
                        own.1 = (own.1 + synced).min(own.0);
                        group.sync(lsn(own.1));
                    }
                    _ if !names.is_empty() => {
                        let index = member as usize % names.len();
                        // A member appends only records that the primary has sent. A report may be
                        // older than the progress that the member has already reported.
                        let appended = (others[index].0 + more).saturating_sub(2).min(own.0);
                        let synced = (others[index].1 + synced).saturating_sub(2).min(appended);
                        let known: &mut (u64, u64) = &mut others[index];
                        *known = (known.0.max(appended), known.1.max(synced));
                        group.acknowledge(names[index], progress(appended, synced));
                    }
                    _ => {}
                }
                group.check_invariants();
                proptest::prop_assert!(group.held() >= before.0 && group.safe() >= before.1);
                let held = others.iter().map(|it| it.0).fold(own.0, u64::min);
                let safe = others.iter().map(|it| it.1).fold(own.1, u64::min);
                proptest::prop_assert_eq!((group.held().raw(), group.safe().raw()), (held, safe));
            }
        }
    }
}

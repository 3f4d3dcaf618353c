//! The member mark: a file of a member of a metadata group. At its start, a member reads from this
//! mark whether its host has lost records, whether its store is incomplete, and whether it may
//! serve alone. The mark also shows whether the member's cluster map is older than the last state
//! of the group, and how long the member waits before it serves.
//!
//! A member confirms log records to the primary before they are on the device. If the member's host
//! loses power, the member may lack records that it has confirmed. The module
//! `skep_store::page_cache` reads and writes the file.

use crate::chunk::HostMark;
use crate::sealed;
use skep_types::codec::record;
use skep_types::{
    Epoch, ErrorCode, Group, GroupId, GroupRecord, Lsn, MapVersion, MemberState, Result, TargetId,
    byte_enum,
};

const MAGIC: [u8; 8] = *b"SKEPMEMB";
const VERSION: u16 = 5;
/// The version before the recorded state of the group.
const VERSION_WITHOUT_RECORD: u16 = 4;

byte_enum! {
    /// State of the store and the log of a member.
    pub enum MemberContents {
        /// Store and log are complete. The store has the changes of all records up to some LSN, and
        /// the log has all later records.
        Whole = 0,
        /// A copy of the primary's store has begun and is not complete. The directory has no log.
        Incomplete = 1,
        /// Store and log are out of date. The member must remove them, because a copy of the
        /// primary's store will replace them.
        Discarded = 2,
    }
}

record! {
    /// Members about which this target has sent requests to management. Management may carry out
    /// these requests until the epoch of the group changes, even after the process that sent them
    /// has ended.
    ///
    /// - A member that does not serve: the target, as the primary, has asked management to mark
    ///   this member as in sync. After such a request, the member may serve even if the target's
    ///   cluster map does not name the member as serving.
    /// - Another member that serves: the target, as the primary, has asked management to drop this
    ///   member.
    /// - The target itself: as a backup member, the target has asked management to make it the
    ///   primary.
    #[derive(Default)]
    pub struct CountedMembers {
        /// The newest group epoch in which the target has been the primary or a backup member. The
        /// target sent the requests in this epoch. Zero means that there was no such epoch.
        pub epoch: Epoch,
        /// Version of a cluster map in which the group has the epoch `epoch` and contains all of
        /// `members`.
        pub version: MapVersion,
        /// The members in the requests of this epoch.
        pub members: Vec<TargetId>,
    }
}

impl CountedMembers {
    /// Returns this list with a member about which the target sends a request to management in
    /// `epoch`. The cluster map of the version `version` has this epoch and names this member.
    ///
    /// A backup member that started with an old map may send a request in an earlier epoch.
    /// Management refuses this request. For a request in an earlier epoch, the method returns the
    /// list unchanged, because the list may contain members of the later epoch about which
    /// management has carried out requests.
    #[must_use]
    pub fn with(&self, epoch: Epoch, version: MapVersion, member: TargetId) -> Self {
        let mut next = self.clone();
        if epoch < self.epoch && version < self.version {
            return next;
        }
        if epoch != self.epoch {
            next = Self { epoch, ..Self::default() };
        }
        if !next.members.contains(&member) {
            next.members.push(member);
            next.version = version;
        }
        next
    }

    /// Returns this list after the target has received the cluster map of the version `version`, in
    /// which its group has the epoch `epoch`. In a new epoch, the target has sent no requests yet,
    /// so the list is empty.
    #[must_use]
    pub fn after_map(&self, epoch: Epoch, version: MapVersion) -> Self {
        if epoch <= self.epoch {
            self.clone()
        } else {
            Self { epoch, version, members: Vec::new() }
        }
    }

    /// Returns the members that do not serve in `group`, but may serve now, because the target has
    /// asked management to mark them as in sync.
    pub fn waiting_of(&self, group: &Group) -> impl Iterator<Item = TargetId> {
        let requested = self.of_epoch(group);
        let waiting = group.members.iter().filter(|it| it.state != MemberState::Serving);
        waiting.map(|it| it.target).filter(|it| requested.contains(it))
    }

    /// Returns the members in the requests of the epoch of `group`.
    pub fn of_epoch(&self, group: &Group) -> &[TargetId] {
        if group.epoch == self.epoch { &self.members } else { &[] }
    }

    /// Whether a cluster map is older than the map on which the requests were based. `version` is
    /// the version of the cluster map, and `group` is the group in this map. If the map is older
    /// than this state, other members may serve. A member that is missing in a newer map has left
    /// the group, so earlier requests about it no longer matter.
    pub fn are_newer_than(&self, version: MapVersion, group: &Group) -> bool {
        let is_missing = |member| group.members.iter().all(|it| it.target != member);
        let differs =
            group.epoch < self.epoch || self.of_epoch(group).iter().copied().any(is_missing);
        differs && version < self.version
    }
}

record! {
    /// Identifies the page cache that contains the log records that a member has confirmed. The
    /// mark is stored with a checksum in the file `member-mark` of the target's directory.
    pub struct MemberMark {
        /// Identifies the page cache that has the confirmed records.
        pub host: HostMark,
        /// Whether the device has all records of the member. Only a clean shutdown sets this field.
        pub clean: bool,
        /// The group to which the target belonged most recently. The records of the target's log
        /// belong to this group.
        pub group: GroupId,
        /// State of the store and the log.
        pub contents: MemberContents,
        /// Members about which the target has sent requests to management.
        pub counted: CountedMembers,
        /// The last state of the group that the target has recorded. A cluster map with an earlier
        /// state comes from a management that was restored from a backup.
        pub record: GroupRecord,
        /// A bound of the member's promises, in milliseconds. While the member was the backup
        /// member of a primary, it promised to reply to no client as the primary before a certain
        /// time. No such time is later than the end of the process plus this bound.
        pub promise_bound_ms: u32,
        /// The last log record whose changes the store had when its last copy ended. Zero means
        /// that the store is no copy.
        pub copied: Lsn,
        /// Epoch of the record `copied`. Zero means that the epoch is not known. The log begins
        /// after this record, so the log does not have the epoch.
        pub copied_epoch: Epoch,
    }
}

record! {
    /// A member mark of the version before the recorded state of the group. The fields have the
    /// same meaning as in [`MemberMark`].
    pub struct MarkWithoutRecord {
        /// Identifies the page cache that has the confirmed records.
        pub host: HostMark,
        /// Whether the device has all records of the member.
        pub clean: bool,
        /// The group to which the target belonged most recently.
        pub group: GroupId,
        /// State of the store and the log.
        pub contents: MemberContents,
        /// Members about which the target has sent requests to management.
        pub counted: CountedMembers,
        /// A bound of the member's promises, in milliseconds.
        pub promise_bound_ms: u32,
    }
}

impl From<MarkWithoutRecord> for MemberMark {
    fn from(former: MarkWithoutRecord) -> Self {
        let MarkWithoutRecord { host, clean, group, contents, counted, promise_bound_ms } = former;
        Self {
            host,
            clean,
            group,
            contents,
            counted,
            record: GroupRecord::default(),
            promise_bound_ms,
            copied: Lsn::default(),
            copied_epoch: Epoch::default(),
        }
    }
}

impl MemberMark {
    /// Encodes the member mark as the content of its file.
    pub fn to_file(&self) -> Vec<u8> {
        sealed::seal(MAGIC, VERSION, self)
    }

    /// Decodes a mark from the content of its file. A mark of version 4 has no recorded state of
    /// the group. The member records the state in the next cluster map, before it confirms a record
    /// or leads. Until then, a management that was restored from a backup gets no state from this
    /// member.
    ///
    /// # Errors
    /// - `Corrupt` if the bytes are not a valid mark.
    /// - `Unsupported` if the member mark has a version other than 4 and 5.
    pub fn from_file(bytes: &[u8]) -> Result<Self> {
        let read: Result<Self> = sealed::open(MAGIC, VERSION, bytes);
        if !read.as_ref().is_err_and(|error| error.code() == ErrorCode::Unsupported) {
            return read;
        }
        match sealed::open::<MarkWithoutRecord>(MAGIC, VERSION_WITHOUT_RECORD, bytes) {
            Ok(former) => Ok(former.into()),
            Err(error) if error.code() == ErrorCode::Unsupported => read,
            Err(error) => Err(error),
        }
    }

    /// Whether a member whose directory has this mark may lack records that it has confirmed.
    /// `host` identifies the current page cache. A member without a mark has confirmed nothing.
    pub fn lacks_records(previous: Option<&Self>, host: HostMark) -> bool {
        previous.is_some_and(|mark| !mark.clean && mark.host != host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{GroupMember, TargetKind};

    const HOST: HostMark = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };

    fn mark(clean: bool, host: HostMark) -> MemberMark {
        let (group, contents) = (GroupId::new(7), MemberContents::Incomplete);
        let counted =
            CountedMembers::default().with(Epoch::new(3), MapVersion::new(9), TargetId::new(2));
        let record = GroupRecord { epoch: Epoch::new(3), members: vec![TargetId::new(1)] };
        MemberMark {
            host,
            clean,
            group,
            contents,
            counted,
            record,
            promise_bound_ms: 2500,
            copied: Lsn::new(8),
            copied_epoch: Epoch::new(2),
        }
    }

    #[test]
    fn member_lacks_records_only_after_loss_of_the_page_cache() {
        let lacks = |clean, host| MemberMark::lacks_records(Some(&mark(clean, host)), HOST);
        assert!(!MemberMark::lacks_records(None, HOST), "nothing was confirmed");
        assert!(!lacks(false, HOST), "the process was killed");
        let others = [
            HostMark { boot_id: 9, ..HOST },
            HostMark { device: 9, ..HOST },
            HostMark { mount: 9, ..HOST },
            HostMark { directory: 9, ..HOST },
        ];
        for other in others {
            assert!(lacks(false, other), "{other:?}");
            assert!(!lacks(true, other), "a clean shutdown has synced all, {other:?}");
        }
    }

    #[test]
    fn counted_members_are_valid_only_in_the_epoch_of_the_request() {
        let group = |epoch, others: &[u32]| {
            let mut group = Group::of_one(GroupId::new(7), TargetKind::Metadata, TargetId::new(1));
            group.epoch = Epoch::new(epoch);
            let waiting =
                |id: &u32| GroupMember { target: TargetId::new(*id), state: MemberState::Waiting };
            group.members.extend(others.iter().map(waiting));
            group
        };
        let none = CountedMembers::default();
        let (before, at, after) = (MapVersion::new(8), MapVersion::new(9), MapVersion::new(10));
        let waiting = |counted: &CountedMembers, group: Group| -> Vec<TargetId> {
            counted.waiting_of(&group).collect()
        };
        assert!(waiting(&none, group(1, &[2])).is_empty());
        assert!(!none.are_newer_than(before, &group(1, &[])));
        let (two, three, five) = (TargetId::new(2), TargetId::new(3), Epoch::new(5));
        let counted = none.with(five, at, two).with(five, after, two);
        assert_eq!(counted.members, [two], "a repeated request adds nothing");
        assert_eq!(waiting(&counted, group(5, &[2, 3])), [two]);
        assert_eq!(counted.of_epoch(&group(5, &[])), [two], "also a member that serves");
        assert!(counted.of_epoch(&group(6, &[2])).is_empty());
        assert!(counted.are_newer_than(before, &group(4, &[2])), "an earlier epoch");
        assert!(counted.are_newer_than(before, &group(5, &[3])), "the member was added later");
        assert!(!counted.are_newer_than(at, &group(5, &[3])), "the member was removed");
        assert!(!counted.are_newer_than(at, &group(4, &[])), "management was restored");
        assert!(!counted.are_newer_than(before, &group(5, &[2, 3])));
        assert!(!counted.are_newer_than(after, &group(6, &[])), "the requests have ended");
        assert!(waiting(&counted, group(6, &[2])).is_empty());
        let both = counted.with(five, after, three);
        assert_eq!((both.members, both.version), (vec![two, three], after));
        assert_eq!(counted.with(Epoch::new(6), after, three).members, [three], "a new epoch");
    }

    #[test]
    fn request_with_an_old_map_removes_no_counted_member() {
        let (old, at, after) = (MapVersion::new(7), MapVersion::new(9), MapVersion::new(10));
        let (own, other) = (TargetId::new(1), TargetId::new(2));
        let counted = CountedMembers::default().with(Epoch::new(4), at, other);
        let asked = counted.with(Epoch::new(2), old, own);
        assert_eq!(asked, counted, "management refuses a request to take over in this epoch");
        assert_eq!(asked.after_map(Epoch::new(4), at), counted, "the map of the counted member");
        let restored = counted.with(Epoch::new(2), after, own);
        assert_eq!((restored.epoch, restored.members), (Epoch::new(2), vec![own]));
    }

    #[test]
    fn map_from_before_the_recorded_group_epoch_is_out_of_date() {
        let mut group = Group::of_one(GroupId::new(7), TargetKind::Metadata, TargetId::new(1));
        let (before, at) = (MapVersion::new(8), MapVersion::new(9));
        let mark = CountedMembers::default().after_map(Epoch::new(3), at);
        group.epoch = Epoch::new(2);
        assert!(mark.are_newer_than(before, &group));
        assert!(!mark.are_newer_than(at, &group), "management was restored");
        group.epoch = Epoch::new(3);
        assert!(!mark.are_newer_than(before, &group));
        let counted = mark.with(Epoch::new(3), at, TargetId::new(2));
        assert_eq!(counted.after_map(Epoch::new(3), at), counted, "a restart in the same epoch");
        assert_eq!(counted.after_map(Epoch::new(2), before), counted, "a restart with an old map");
        let next = counted.after_map(Epoch::new(5), at);
        assert!(next.members.is_empty(), "the requests have ended");
    }

    #[test]
    fn member_mark_survives_a_round_trip() {
        let mark = mark(true, HOST);
        assert_eq!(MemberMark::from_file(&mark.to_file()).unwrap(), mark);
    }

    /// An upgraded program must read the marks of the earlier version, so that the groups of a
    /// cluster continue after the upgrade.
    #[test]
    fn mark_without_a_recorded_state_is_read() {
        let MemberMark { host, clean, group, contents, counted, promise_bound_ms, .. } =
            mark(false, HOST);
        let former = MarkWithoutRecord { host, clean, group, contents, counted, promise_bound_ms };
        let bytes = sealed::seal(MAGIC, 4, &former);
        let expected = MemberMark {
            record: GroupRecord::default(),
            copied: Lsn::default(),
            copied_epoch: Epoch::default(),
            ..mark(false, HOST)
        };
        assert_eq!(MemberMark::from_file(&bytes).unwrap(), expected);
        for version in [3, 6] {
            let refused = MemberMark::from_file(&sealed::seal(MAGIC, version, &former));
            assert_eq!(refused.unwrap_err().code(), ErrorCode::Unsupported);
        }
        let body_of_5 = sealed::seal(MAGIC, 4, &mark(false, HOST));
        assert_eq!(MemberMark::from_file(&body_of_5).unwrap_err().code(), ErrorCode::Corrupt);
    }
}

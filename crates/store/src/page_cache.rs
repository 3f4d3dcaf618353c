//! The identity of the host's page cache, and the member mark of a member of a metadata group. The
//! member mark names the page cache that has the member's confirmed records, and the group of these
//! records. The mark states whether the member's store is complete, and about which members the
//! target has sent requests to management. The mark also has an upper bound of the time for which
//! the member's promises last. A backup member promises not to reply to clients as the primary for
//! some time.
//!
//! As long as the identity stays the same, the page cache has all bytes that a target has written.
//! A kill of the target's process does not remove these bytes from the page cache. The layout of
//! the member mark is in [`skep_format::member_mark`]. A storage target stores the identity of the
//! page cache in its own state ([`skep_format::chunk::TargetState`]).
//!
//! # Crash rule
//! A member calls [`MemberMarkFile::begin`] before it confirms its first record. So if a member has
//! confirmed any record before a power loss, it finds a member mark that names the page cache of
//! that time. A member that lacks records keeps this member mark until it has the records again
//! ([`MemberMarkFile::become_whole`]). So a further start of the member before this call detects
//! the loss too.
//!
//! To replace its store by a copy of the store of another member, a member calls
//! [`MemberMarkFile::discard`] before it removes store and log. After the removal, the member calls
//! [`MemberMarkFile::begin_copy`]. When the copy is complete and durable, it calls
//! [`MemberMarkFile::end_copy`]. So each start finds either a complete store, or a mark which
//! states that the store is incomplete.
//!
//! A primary calls [`MemberMarkFile::count`] before it asks management to mark a member as in sync.
//! So if the process ends before it has stored the cluster map in which this member serves, the
//! next start still waits for the member. A primary also calls `count` before it asks management to
//! drop a member, and a backup member calls it before it asks to become the primary. So until the
//! next epoch, each later process confirms only records that are on the device, because management
//! may still carry out the request.
//!
//! The member mark also records the last state of the group ([`MemberMarkFile::record`]). A primary
//! adds a member to this record with the same call of `count`. So if management is restored from a
//! backup, each member that may have all changes of the group is in the record of some member.
//!
//! A backup member calls [`MemberMarkFile::bound_promises`] before it handles a cluster map with a
//! longer time before a take-over. The member lowers the bound only when all its promises end
//! within the lower bound (`skep_cluster::lease_times`). So the bound, counted from the start of a
//! process, covers the promises of all earlier processes.

use crate::atomic::{read_if_exists, replace_atomically};
use skep_format::chunk::HostMark;
use skep_format::member_mark::{CountedMembers, MemberContents, MemberMark};
use skep_types::{Epoch, Error, GroupId, GroupRecord, Lsn, MapVersion, Result, TargetId};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file with the member mark, in the directory of a metadata target.
const MARK: &str = "member-mark";
/// Identity of no page cache.
pub(crate) const NO_HOST: HostMark = HostMark { boot_id: 0, device: 0, mount: 0, directory: 0 };

/// Returns the identity of the running kernel and of the mount on which `directory` lies. As long
/// as both stay the same, the page cache still holds all data that the target has written.
///
/// # Errors
/// Errors of the kernel, which name the path.
pub fn host_mark(directory: &Path) -> Result<HostMark> {
    let failed = |error: std::io::Error| Error::from(error).within(directory.display());
    let mount = skep_env::mount_mark(directory).map_err(failed)?;
    Ok(HostMark {
        boot_id: skep_env::boot_id().map_err(failed)?,
        device: mount.device,
        mount: mount.mount,
        directory: mount.directory,
    })
}

/// The file that contains the member mark of one member.
#[derive(Debug)]
pub struct MemberMarkFile {
    path: PathBuf,
    host: HostMark,
    written: Option<MemberMark>,
    lacks_records: bool,
}

impl MemberMarkFile {
    /// Reads the member mark in the directory of a target.
    ///
    /// # Errors
    /// - Errors of the file system, which name the path.
    /// - `Corrupt` or `Unsupported` if the member mark cannot be read.
    pub fn read(directory: &Path) -> Result<Self> {
        Self::read_at(directory, host_mark(directory)?)
    }

    /// Like [`Self::read`], but takes the identity of the page cache from `host`.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::read`].
    pub fn read_at(directory: &Path, host: HostMark) -> Result<Self> {
        let path = directory.join(MARK);
        let mark = read_if_exists(&path)?.map(|bytes| MemberMark::from_file(&bytes)).transpose();
        let written = mark.map_err(|error| error.within(path.display()))?;
        let lacks_records = MemberMark::lacks_records(written.as_ref(), host);
        Ok(Self { path, host, written, lacks_records })
    }

    /// Whether the target has ever been a member of a group of several targets.
    pub fn exists(&self) -> bool {
        self.written.is_some()
    }

    /// Whether the host may have lost records that the member has confirmed.
    pub fn lacks_records(&self) -> bool {
        self.lacks_records
    }

    /// Returns the group to which the target belonged most recently. `None` means that the target
    /// has never been a member of a group of several targets.
    pub fn group(&self) -> Option<GroupId> {
        self.written.as_ref().map(|mark| mark.group)
    }

    /// Returns whether the store and the log are complete, incomplete or out of date.
    pub fn contents(&self) -> MemberContents {
        self.written.as_ref().map_or(MemberContents::Whole, |mark| mark.contents)
    }

    /// Makes the member mark durable. The member must call this function before it confirms a
    /// record of this group. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn begin(&mut self, group: GroupId) -> Result<()> {
        if self.lacks_records {
            return Ok(());
        }
        let (counted, record) = self.of_group(group);
        self.write(MemberMark { counted, record, group, ..self.of_host() })
    }

    /// Returns the members about which the target has sent requests to management.
    pub fn counted(&self) -> CountedMembers {
        self.present().counted
    }

    /// Returns the last state of the group that the target has recorded.
    pub fn record(&self) -> GroupRecord {
        self.present().record
    }

    /// Adds `member` durably to the counted members in the member mark, because this target sends a
    /// request about the member to management in `epoch`. [`CountedMembers`] lists the kinds of
    /// requests. `version` is a version of the cluster map that contains the member. The caller
    /// must call this function before it sends the request. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn count(&mut self, epoch: Epoch, version: MapVersion, member: TargetId) -> Result<()> {
        let present = self.present();
        let counted = present.counted.with(epoch, version, member);
        let record = present.record.clone().with_member(epoch, member);
        self.write(MemberMark { counted, record, ..present })
    }

    /// Stores durably in the member mark that this target has received the cluster map of the
    /// version `version`, in which its group has the epoch `epoch`. So a start with an older map
    /// finds that the map is old. A member must call this function before it confirms records or
    /// replies in this epoch. Blocks.
    ///
    /// `record` becomes the recorded state of the group. The caller passes the present recorded
    /// state if the map may come from a management that was restored from a backup. The function
    /// adds the counted members to `record`: an older program, or a start with a restored
    /// directory, has counted these members without a record.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn reach_epoch(
        &mut self,
        epoch: Epoch,
        version: MapVersion,
        record: GroupRecord,
    ) -> Result<()> {
        let present = self.present();
        let counted = present.counted.after_map(epoch, version);
        let members = counted.members.iter();
        let record =
            members.fold(record, |record, member| record.with_member(counted.epoch, *member));
        self.write(MemberMark { counted, record, ..present })
    }

    /// Removes the recorded state of the group durably, because the directory was restored from a
    /// backup, so the record may be old. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn forget_record(&mut self) -> Result<()> {
        self.write(MemberMark { record: GroupRecord::default(), ..self.present() })
    }

    /// Returns the bound of the member's promises. The bound is a time span: no promise ends later
    /// than this span from now. Zero if the target has never been a member of a group of several
    /// targets.
    pub fn promise_bound(&self) -> Duration {
        // Each batch of a member calls this function, so it copies no lists.
        let bound_ms = self.written.as_ref().map_or(0, |mark| mark.promise_bound_ms);
        Duration::from_millis(bound_ms.into())
    }

    /// Stores another bound of the member's promises durably, rounded up to milliseconds. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn bound_promises(&mut self, bound: Duration) -> Result<()> {
        if bound == self.promise_bound() {
            return Ok(());
        }
        let promise_bound_ms = u32::try_from(bound.as_micros().div_ceil(1000)).unwrap_or(u32::MAX);
        self.write(MemberMark { promise_bound_ms, ..self.present() })
    }

    /// Durably marks store and log as out of date. The caller removes them only after this call.
    /// Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn discard(&mut self) -> Result<()> {
        self.write(MemberMark { contents: MemberContents::Discarded, ..self.present() })
    }

    /// Durably marks the store as incomplete, after the caller has removed store and log. After
    /// this call, a copy of this group's store begins. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn begin_copy(&mut self, group: GroupId) -> Result<()> {
        let (contents, (counted, record)) = (MemberContents::Incomplete, self.of_group(group));
        self.write(MemberMark { group, contents, counted, record, ..self.present() })
    }

    /// Durably marks the store as complete, after its copy is on the device. `copied` and
    /// `copied_epoch` are the LSN and the epoch of the last log record whose changes the copy has.
    /// Epoch zero means that the epoch is not known. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn end_copy(&mut self, (copied, copied_epoch): (Lsn, Epoch)) -> Result<()> {
        let contents = MemberContents::Whole;
        self.write(MemberMark { contents, copied, copied_epoch, ..self.present() })
    }

    /// Returns the LSN and the epoch of the last record in the store when its last copy ended. The
    /// LSN is zero if the store is no copy, and the epoch is zero if it is not known.
    pub fn copied(&self) -> (Lsn, Epoch) {
        let present = self.present();
        (present.copied, present.copied_epoch)
    }

    /// Stores durably in the member mark that the member has all records that it has confirmed to
    /// its group. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn become_whole(&mut self) -> Result<()> {
        self.write(self.of_host())?;
        self.lacks_records = false;
        Ok(())
    }

    /// Stores durably in the member mark that the member may lack confirmed records although its
    /// host has not lost power. Its device may have failed, or its directory may be an old backup.
    /// Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn distrust(&mut self) -> Result<()> {
        if self.exists() {
            self.write(MemberMark { host: NO_HOST, clean: false, ..self.present() })?;
            self.lacks_records = true;
        }
        Ok(())
    }

    /// At the end of the process, stores durably in the member mark that the device has all
    /// records. Does nothing if the directory has no member mark, or if the member may lack
    /// records. Blocks.
    ///
    /// # Errors
    /// Errors of the file system, which name the path.
    pub fn end(&mut self) -> Result<()> {
        if !self.exists() || self.lacks_records {
            return Ok(());
        }
        self.write(MemberMark { clean: true, ..self.of_host() })
    }

    /// Returns the current mark, or the first mark of a new member if there is no mark file.
    fn present(&self) -> MemberMark {
        let first = || MemberMark {
            host: self.host,
            clean: false,
            group: GroupId::default(),
            contents: MemberContents::Whole,
            counted: CountedMembers::default(),
            record: GroupRecord::default(),
            promise_bound_ms: 0,
            copied: Lsn::default(),
            copied_epoch: Epoch::default(),
        };
        self.written.clone().unwrap_or_else(first)
    }

    /// Returns the counted members and the recorded state of `group`. Both values are empty if the
    /// member mark belongs to another group, because epochs of different groups cannot be compared.
    fn of_group(&self, group: GroupId) -> (CountedMembers, GroupRecord) {
        let present = self.present();
        match present.group == group {
            true => (present.counted, present.record),
            false => Default::default(),
        }
    }

    /// Returns the member mark of a member that may confirm records in the current page cache.
    fn of_host(&self) -> MemberMark {
        MemberMark { host: self.host, clean: false, ..self.present() }
    }

    fn write(&mut self, mark: MemberMark) -> Result<()> {
        if self.written.as_ref() == Some(&mark) {
            return Ok(());
        }
        replace_atomically(&self.path, &mark.to_file())?;
        self.written = Some(mark);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostMark = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };
    const OTHER: HostMark = HostMark { boot_id: 2, ..HOST };

    const GROUP: GroupId = GroupId::new(7);

    fn lacks(directory: &Path, host: HostMark) -> bool {
        MemberMarkFile::read_at(directory, host).unwrap().lacks_records()
    }

    #[test]
    fn loss_of_records_is_remembered_until_the_member_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        assert!(!mark.exists() && !mark.lacks_records());
        mark.begin(GROUP).unwrap();
        assert!(!lacks(path, HOST), "a killed process has lost nothing");
        for _ in 0..2 {
            let mut mark = MemberMarkFile::read_at(path, OTHER).unwrap();
            mark.begin(GROUP).unwrap();
            mark.end().unwrap();
            assert!(mark.lacks_records(), "a further start changes nothing");
        }
        MemberMarkFile::read_at(path, OTHER).unwrap().become_whole().unwrap();
        assert!(!lacks(path, OTHER) && lacks(path, HOST));
    }

    #[test]
    fn reboot_loses_records_unless_the_member_ended_cleanly() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        mark.begin(GROUP).unwrap();
        mark.end().unwrap();
        assert!(!lacks(path, OTHER));
        MemberMarkFile::read_at(path, HOST).unwrap().begin(GROUP).unwrap();
        assert!(lacks(path, OTHER), "the member has confirmed later records");
    }

    #[test]
    fn failed_device_counts_as_a_loss_of_records() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        mark.distrust().unwrap();
        assert!(!mark.lacks_records(), "a target outside of groups has confirmed nothing");
        mark.begin(GROUP).unwrap();
        mark.distrust().unwrap();
        assert!(mark.lacks_records() && lacks(path, HOST));
    }

    /// Makes every change of a mark that must keep the counted members and the bound of promises.
    fn change_all_but_bounds(mark: &mut MemberMarkFile, group: GroupId) {
        mark.begin(group).unwrap();
        mark.distrust().unwrap();
        mark.become_whole().unwrap();
        mark.discard().unwrap();
        mark.begin_copy(GROUP).unwrap();
        mark.end_copy((Lsn::new(7), Epoch::new(3))).unwrap();
        mark.end().unwrap();
    }

    #[test]
    fn counted_members_survive_restarts_until_a_new_group_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let counted = || MemberMarkFile::read_at(path, HOST).unwrap().counted();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        mark.begin(GROUP).unwrap();
        assert_eq!(counted(), CountedMembers::default());
        let (epoch, version, member) = (Epoch::new(4), MapVersion::new(9), TargetId::new(2));
        mark.count(epoch, version, member).unwrap();
        let expected = CountedMembers { epoch, version, members: vec![member] };
        assert_eq!(counted(), expected);
        change_all_but_bounds(&mut mark, GROUP);
        assert_eq!(counted(), expected, "no other change of the mark removes counted members");
        let record = GroupRecord::default();
        mark.reach_epoch(epoch, version, record.clone()).unwrap();
        assert_eq!(counted(), expected, "the requests are still valid");
        let (epoch, version) = (Epoch::new(5), MapVersion::new(10));
        mark.reach_epoch(epoch, version, record).unwrap();
        assert_eq!(counted(), CountedMembers { epoch, version, members: Vec::new() });
        mark.begin(GroupId::new(8)).unwrap();
        assert_eq!(counted(), CountedMembers::default(), "the mark belongs to another group");
    }

    /// If management is restored from a backup, the record names the members that may have served
    /// last.
    #[test]
    fn record_of_the_group_survives_restarts_and_later_requests() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let record = || MemberMarkFile::read_at(path, HOST).unwrap().record();
        let (epoch, version) = (Epoch::new(4), MapVersion::new(9));
        let of = |ids: &[u32]| GroupRecord {
            epoch,
            members: ids.iter().map(|id| TargetId::new(*id)).collect(),
        };
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        mark.begin(GROUP).unwrap();
        mark.reach_epoch(epoch, version, of(&[1])).unwrap();
        mark.count(epoch, version, TargetId::new(2)).unwrap();
        assert_eq!(record(), of(&[1, 2]));
        mark.count(Epoch::new(3), version, TargetId::new(5)).unwrap();
        assert_eq!(record(), of(&[1, 2]), "management refuses a request of another epoch");
        change_all_but_bounds(&mut mark, GROUP);
        assert_eq!(record(), of(&[1, 2]), "no other change of the mark removes the record");
        mark.begin_copy(GroupId::new(8)).unwrap();
        assert_eq!(record(), GroupRecord::default(), "the mark belongs to another group");
        mark.reach_epoch(epoch, version, of(&[1])).unwrap();
        mark.forget_record().unwrap();
        assert_eq!(record(), GroupRecord::default());
    }

    /// An older program counted target 2, that is, it sent a request about target 2 to management.
    /// The older program stored no record of the group in the mark.
    #[test]
    fn first_record_of_an_epoch_contains_the_members_counted_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut mark = MemberMarkFile::read_at(directory.path(), HOST).unwrap();
        let (one, two) = (TargetId::new(1), TargetId::new(2));
        let (epoch, version) = (Epoch::new(5), MapVersion::new(9));
        let alone = |epoch| GroupRecord { epoch, members: vec![one] };
        mark.begin(GROUP).unwrap();
        mark.count(epoch, version, two).unwrap();
        assert_eq!(mark.record(), GroupRecord::default());
        mark.reach_epoch(epoch, version, alone(epoch)).unwrap();
        assert_eq!(mark.record().members, [one, two], "the request may still succeed");
        let next = Epoch::new(6);
        mark.reach_epoch(next, MapVersion::new(10), alone(next)).unwrap();
        assert_eq!(mark.record(), alone(next), "the epoch has revoked the request");
    }

    #[test]
    fn bound_of_promises_is_durable_until_it_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let bound = || MemberMarkFile::read_at(path, HOST).unwrap().promise_bound();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        mark.begin(GROUP).unwrap();
        assert_eq!(bound(), Duration::ZERO);
        mark.bound_promises(Duration::from_micros(12_000_001)).unwrap();
        let expected = Duration::from_millis(12_001);
        assert_eq!(bound(), expected, "the mark stores whole milliseconds, rounded up");
        change_all_but_bounds(&mut mark, GroupId::new(8));
        assert_eq!(bound(), expected, "no other change of the mark lowers the bound");
        mark.bound_promises(Duration::from_secs(2)).unwrap();
        assert_eq!(bound(), Duration::from_secs(2));
    }

    #[test]
    fn store_copy_is_marked_incomplete_until_durable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let contents = || MemberMarkFile::read_at(path, HOST).unwrap().contents();
        let mut mark = MemberMarkFile::read_at(path, HOST).unwrap();
        assert_eq!((mark.contents(), mark.group()), (MemberContents::Whole, None));
        mark.begin(GROUP).unwrap();
        mark.discard().unwrap();
        assert_eq!(contents(), MemberContents::Discarded);
        mark.begin_copy(GroupId::new(8)).unwrap();
        mark.end().unwrap();
        assert_eq!(contents(), MemberContents::Incomplete, "a clean end does not complete a copy");
        let mut mark = MemberMarkFile::read_at(path, OTHER).unwrap();
        assert_eq!(mark.copied(), (Lsn::default(), Epoch::default()));
        mark.end_copy((Lsn::new(7), Epoch::new(3))).unwrap();
        let copied = MemberMarkFile::read_at(path, HOST).unwrap().copied();
        assert_eq!(copied, (Lsn::new(7), Epoch::new(3)));
        assert_eq!((contents(), mark.group()), (MemberContents::Whole, Some(GroupId::new(8))));
    }
}

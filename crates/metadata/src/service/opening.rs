//! Opens the store and the log of a target at the start of a role, and checks whether the target
//! may use their contents.
//!
//! This module does not own the choice of the role ([`super::roles`]), or a store that is an
//! incomplete copy ([`super::copying`]).

use super::log_reads;
use crate::engine::Engine;
use crate::engine::fjall_engine::FjallEngine;
use crate::limits::Limits;
use crate::shipping::succession::Succession;
use crate::target::{Start, SyncPolicy};
use crate::term::Membership;
use skep_cluster::groups::{has_skipped, is_undecided};
use skep_cluster::limits::MAX_TAKE_OVER_AFTER_MS;
use skep_format::log::{LogOwner, Record};
use skep_store::log::{Log, Recovered};
use skep_store::page_cache::MemberMarkFile;
use skep_store::restored::{self, RESTORED_MARK};
use skep_types::{Epoch, Error, ErrorCode, GroupId, Lsn, Result, TargetId};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The store and the log records of a target at the beginning of a role.
pub(super) struct Contents {
    pub(super) engine: FjallEngine,
    pub(super) records: Vec<Record>,
    /// Epoch of the last log record.
    pub(super) epoch: Epoch,
    /// LSN and epoch of a record that the log may lack. This record was the last record in the
    /// store when a copy of the store, or the role of a backup member, ended. Epoch zero means that
    /// the epoch is not known.
    pub(super) previous: (Lsn, Epoch),
    /// The last synced log record. `None` means that all records are synced.
    pub(super) synced: Option<Lsn>,
    /// The time from which the target may reply to clients as the primary.
    pub(super) succession: Succession,
}

impl Contents {
    /// Whether the target has neither log records nor a store.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.records.is_empty() && self.engine.applied()?.is_none())
    }
}

/// Returns the parameters for the start of a role.
pub(super) fn start_of(
    membership: &Membership,
    policy: SyncPolicy,
    (epoch, synced): (Epoch, Option<Lsn>),
    counted: Vec<TargetId>,
) -> Start {
    Start {
        group: membership.group,
        target: membership.target,
        epoch,
        counted,
        synced,
        policy,
        limits: Limits::default(),
        map: Arc::clone(&membership.map),
        now: skep_env::now(),
        wall: skep_env::wall_time(),
    }
}

/// Returns the time from which a process that starts at `now` as the primary may reply to clients.
/// `promise_bound` is the bound of promises in the member mark of the target.
///
/// An earlier process of this target may have acknowledged a request of the previous primary, whose
/// lease may not have ended yet. The lease matters even if the group has no other member any more,
/// because the previous primary may not have received the map that removed it from the group. The
/// bound is zero if the earlier process has already waited.
pub(super) fn succession_at_start(
    membership: &Membership,
    promise_bound: Duration,
    now: Duration,
) -> Succession {
    match membership.had_other_primary() {
        true => Succession::at(now + promise_bound),
        false => Succession::default(),
    }
}

/// Opens the log of a target whose store is complete. Refuses data that were copied from another
/// target. Notes in `mark` if store and log may lack records that this member has confirmed.
pub(super) fn open_whole(
    path: &Path,
    owner: LogOwner,
    (membership, engine): (&Membership, FjallEngine),
    mark: &mut MemberMarkFile,
) -> Result<(Log, Contents)> {
    let (mut log, mut contents) = open_log(path, owner, engine)?;
    log_reads::shorten(&mut log, &contents.engine, (&membership.map, membership.group))?;
    let is_restored = may_be_restored(membership, contents.epoch, mark);
    contents.previous = mark.copied();
    let is_joining = membership.is_new() || !membership.serves(owner.target);
    if is_joining && membership.has_others(owner.target, true) && !mark.exists() {
        refuse_used(path, membership, &contents)?;
    }
    if restored::has(path, RESTORED_MARK)? && membership.has_others(owner.target, false) {
        note_restored(membership.group, mark)?;
    }
    let is_empty = contents.is_empty()?;
    if is_restored || is_empty && mark.exists() {
        // Another member may have newer records, because management was restored from a backup, or
        // because the data of this target were removed.
        mark.distrust()?;
    }
    Ok((log, contents))
}

/// Gives a directory the mark `restored` if the directory is an old backup or was emptied. Such a
/// directory has no member mark, although its target serves beside another member. A target writes
/// its member mark before management lets it serve beside another member. In two exceptions, this
/// function changes nothing:
///
/// - In the first epoch of a group, new targets serve without a mark.
/// - In an undecided epoch, all members serve, also a target that was added shortly before and a
///   target that has always served alone. No member leads in this epoch.
///
/// A member of a new group of three is marked too, if its first start follows the drop of another
/// member. This member has no changes to lose, and it receives the changes of the primary.
///
/// # Errors
/// Errors of the file system, which name the path.
pub(super) fn mark_old_backup(
    path: &Path,
    membership: &Membership,
    mark: &MemberMarkFile,
) -> Result<()> {
    let Membership { group, target, .. } = *membership;
    let serves = membership.serves(target) && membership.has_others(target, true);
    let may_lack_mark = membership.is_new() || is_undecided(membership.epoch());
    if !serves || may_lack_mark || mark.exists() || restored::has(path, RESTORED_MARK)? {
        return Ok(());
    }
    tracing::warn!(
        "the directory {} is an old backup, was emptied, or was never used: target {target} serves \
         in metadata group {group}, and the directory is from before that; the target gets the \
         changes that it lacks from the other members",
        path.display()
    );
    restored::mark(path, RESTORED_MARK)
}

/// Notes in `mark` that the directory of a member of `group` was restored from a backup. Each other
/// member may have records that the backup lacks, even if the member mark was made after the
/// backup.
fn note_restored(group: GroupId, mark: &mut MemberMarkFile) -> Result<()> {
    mark.begin(group)?;
    mark.distrust()?;
    mark.bound_promises(Duration::from_millis(MAX_TAKE_OVER_AFTER_MS.into()))
}

/// Whether management may have been restored from a backup since the newest epoch in the log or in
/// the member mark of the target. `log_epoch` is the highest epoch of a record in its log.
pub(super) fn may_be_restored(
    membership: &Membership,
    log_epoch: Epoch,
    mark: &MemberMarkFile,
) -> bool {
    let (record, epoch) = (mark.record(), membership.epoch());
    is_undecided(epoch)
        || has_skipped(log_epoch.max(record.epoch), epoch)
        || membership.precedes(&record, &mark.counted())
}

/// Opens the log of a target, whose store is already open.
fn open_log(path: &Path, owner: LogOwner, engine: FjallEngine) -> Result<(Log, Contents)> {
    let next = Lsn::new(engine.applied()?.unwrap_or_default().raw() + 1);
    let Recovered { log, records, epoch, truncated_bytes } =
        Log::open(&path.join("log"), owner, next)?;
    if !records.is_empty() {
        tracing::info!("target {} replays its log (records: {})", owner.target, records.len());
    }
    if truncated_bytes > 0 {
        tracing::info!(
            "target {}: the target removed {truncated_bytes} bytes at the end of its log, since a \
             crash left an unfinished write there",
            owner.target
        );
    }
    let (previous, succession) = ((Lsn::default(), Epoch::default()), Succession::default());
    let contents = Contents { engine, records, epoch, previous, synced: None, succession };
    Ok((log, contents))
}

/// Refuses a directory with data for a target that joins a group of several targets. The directory
/// has no member mark, so the data are a copy of another target's data, or a backup that was made
/// before the target joined the group.
fn refuse_used(path: &Path, membership: &Membership, contents: &Contents) -> Result<()> {
    if contents.is_empty()? {
        return Ok(());
    }
    let context = format!(
        "cannot serve {} in group {}: the data is from before the target joined the group, or \
         from another target; run `skep target restored`, then move `log` and `store` away: the \
         target gets the data of its group",
        path.display(),
        membership.group
    );
    Err(Error::new(ErrorCode::Configuration, context))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, ClusterMap, Group, GroupMember, MemberState, TargetKind};

    /// The previous primary may still hold its lease when an administrator has removed it from the
    /// group.
    #[test]
    fn restart_waits_until_the_lease_of_a_removed_primary_ends() {
        let (group, target) = (GroupId::new(1), TargetId::new(2));
        let now = Duration::from_secs(100);
        let answers_from = |since, bound| {
            let mut map = ClusterMap::empty(ClusterId::default());
            map.groups.push(Group::of_one(group, TargetKind::Metadata, target));
            map.groups[0].primary_since = Epoch::new(since);
            let membership = Membership { group, target, map: Arc::new(map) };
            succession_at_start(&membership, Duration::from_secs(bound), now).answers_from()
        };
        assert_eq!(answers_from(2, 12), Duration::from_secs(112));
        assert_eq!(answers_from(2, 0), now, "an earlier process has waited");
        assert_eq!(answers_from(1, 12), Duration::ZERO, "no other primary exists");
    }

    /// Hole H196 in `docs/tests/holes.md`. A backup that was made before the target was in a group
    /// with other members has no member mark, and the administrator has not marked it as restored.
    #[test]
    fn directory_without_a_member_mark_counts_as_an_old_backup() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (group, target) = (GroupId::new(1), TargetId::new(2));
        let counts = |epoch, state, mark: &MemberMarkFile| {
            let mut map = ClusterMap::empty(ClusterId::default());
            let mut entry = Group::of_one(group, TargetKind::Metadata, target);
            entry.members.push(GroupMember { target: TargetId::new(3), state });
            entry.epoch = Epoch::new(epoch);
            map.groups.push(entry);
            let membership = Membership { group, target, map: Arc::new(map) };
            mark_old_backup(path, &membership, mark).unwrap();
            restored::has(path, RESTORED_MARK).unwrap()
        };
        let mut mark = MemberMarkFile::read(path).unwrap();
        let (waits, serves) = (MemberState::Waiting, MemberState::Serving);
        assert!(!counts(5, waits, &mark), "the target has always served alone");
        assert!(!counts(1, serves, &mark), "the group is new");
        assert!(!counts(1 << 32, serves, &mark), "the other member may never have served");
        assert!(counts(5, serves, &mark));
        restored::unmark(path, RESTORED_MARK).unwrap();
        mark.begin(group).unwrap();
        assert!(!counts(5, serves, &mark), "the target has served in the group");
    }

    /// A backup that was made before the target was in a group with other members has no member
    /// mark.
    #[test]
    fn restored_member_without_a_mark_counts_as_lacking_records() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let (group, target) = (GroupId::new(1), TargetId::new(2));
        let mut map = ClusterMap::empty(ClusterId::default());
        let mut entry = Group::of_one(group, TargetKind::Metadata, target);
        let (absent, state) = (TargetId::new(3), MemberState::Waiting);
        entry.members.push(GroupMember { target: absent, state });
        entry.epoch = Epoch::new(5);
        map.groups.push(entry);
        let membership = Membership { group, target, map: Arc::new(map) };
        let owner = LogOwner { cluster: ClusterId::default(), target };
        let open = |mark: &mut MemberMarkFile| {
            let engine = FjallEngine::open(&path.join("store"), 1 << 20).unwrap();
            open_whole(path, owner, (&membership, engine), mark).unwrap();
        };
        let mut mark = MemberMarkFile::read(path).unwrap();
        open(&mut mark);
        assert!(!mark.lacks_records() && !mark.exists());
        restored::mark(path, RESTORED_MARK).unwrap();
        open(&mut mark);
        assert!(mark.lacks_records());
        assert_eq!(mark.promise_bound(), Duration::from_millis(MAX_TAKE_OVER_AFTER_MS.into()));
    }
}

//! The role of a target whose store is an incomplete copy of the primary's store, and the removal
//! of a store that a copy replaces.
//!
//! # Crash rule
//! The member mark states whether store and log are complete (`skep_store::page_cache`). The target
//! first marks both as discarded, then removes them, then marks the store as incomplete. The target
//! marks the store as complete only when it has synced the whole copy. So after a crash at any
//! moment, the next start either removes store and log, or continues the copy, or finds a complete
//! store.
//!
//! # When a store may be removed
//! Only a member that does not serve removes its store, and only in two cases. Either the primary
//! of its group requests the removal in the current epoch, or the data belong to a group that the
//! target has left. In both cases the data lack changes, so no target may serve them again. If the
//! recorded state of the former group is newer than the cluster map, management was restored from a
//! backup. The target may then still be a member of that group.
//!
//! This module does not own the protocol ([`crate::shipping::copy_receiver`]).

use super::Shell;
use crate::engine::fjall_engine::FjallEngine;
use crate::free_space::FreeSpaceGauge;
use crate::shipping::copy_receiver::{CopyOutcome, CopyReceiver};
use crate::target::{Action, Event};
use crate::term::{self, Membership};
use skep_format::member_mark::MemberContents;
use skep_store::atomic::sync_directory;
use skep_store::page_cache::MemberMarkFile;
use skep_types::{Error, ErrorCode, MapVersion, Result, TargetId};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// Removes the store and the log of a target if they are marked as discarded or belong to a group
/// that the target has left. After the removal, returns whether the store is an incomplete copy.
/// This call blocks the calling thread.
///
/// # Errors
/// - `Configuration` if the target serves a group, but its data belong to another group.
/// - `Configuration` if the data may have the newest changes of another group.
/// - Errors of the file system, which name the path.
pub(super) fn is_incomplete(
    path: &Path,
    target: TargetId,
    membership: &Membership,
    mark: &mut MemberMarkFile,
) -> Result<bool> {
    let group = membership.group;
    let former = mark.group().filter(|it| *it != group);
    if let Some(former) = former
        && membership.serves(target)
    {
        let what = format!(
            "cannot serve {} as a member of group {group}: the data in this directory belongs to \
             group {former}; name the directory that target {target} has used as a member of group \
             {group}",
            path.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    if let Some(entry) = former.and_then(|former| membership.map.group(former))
        && mark.record().is_after(entry)
    {
        let what = format!(
            "cannot use {} as a member of group {group}: the data in this directory belongs to \
             group {}, and target {target} may have the newest changes of that group, because \
             management was restored from a backup; run `skep group remove {} {}`, and the target \
             returns to its group",
            path.display(),
            entry.id,
            group.raw(),
            target.raw()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    if former.is_some() || mark.contents() == MemberContents::Discarded {
        mark.discard()?;
        for name in ["log", "store"] {
            remove(&path.join(name))?;
        }
        sync_directory(path)?;
        mark.begin_copy(group)?;
        tracing::info!(
            "target {target} begins with an empty store, and gets a copy of the data of metadata \
             group {group}"
        );
    }
    Ok(mark.contents() == MemberContents::Incomplete)
}

fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::from(error).within(directory.display()))
        }
        _ => Ok(()),
    }
}

/// Receives the copy of the primary's store until the service ends. Returns `Deposed` when the
/// target must begin another role.
pub(super) async fn run(
    shell: &Rc<Shell>,
    receiver: &mut CopyReceiver<FjallEngine>,
    mark: &mut MemberMarkFile,
    (free_space, membership): (&mut FreeSpaceGauge, &Membership),
) -> Result<()> {
    let (group, target) = (membership.group, membership.target);
    let began = skep_env::now();
    while !shell.is_stopping.get() {
        membership.check_same(Arc::clone(receiver.map()))?;
        let mut events = shell.next_events(receiver.next_tick()).await?;
        let now = skep_env::now();
        shell.meter.borrow_mut().begin_batch(&events, now);
        events.extend(free_space.look(now));
        events.push(Event::Tick);
        let mut actions = receiver.handle(events, now)?;
        shell.measure_backup(&mut actions);
        super::members::add_record(&mut actions, mark);
        for action in actions {
            match action {
                Action::Reply { connection, request, result } => {
                    shell.reply(connection, request, result, MapVersion::default());
                }
                Action::AskTakeOver(request) => super::members::ask_to_take_over(shell, request),
                Action::Checkpoint { lsn } => shell.start_checkpoint(receiver.engine(), lsn)?,
                other => unreachable!("a member with an incomplete store asks for {other:?}"),
            }
        }
        match receiver.outcome() {
            CopyOutcome::Running => {}
            CopyOutcome::Complete => {
                mark.end_copy(receiver.last_record())?;
                shell.meter.borrow_mut().role().copied(now.saturating_sub(began));
                tracing::info!(
                    "target {target} has a complete copy of the data of metadata group {group}"
                );
                return Err(term::ended(group));
            }
            CopyOutcome::Discard => {
                mark.discard()?;
                return Err(term::ended(group));
            }
        }
    }
    receiver.engine().checkpoint()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_format::chunk::HostMark;
    use skep_types::{
        ClusterId, ClusterMap, Epoch, Group, GroupId, GroupMember, GroupRecord, MemberState,
        TargetKind,
    };

    /// Management was restored from a backup in which the target is a member of group 7. After that
    /// backup, the target was moved to group 5.
    #[test]
    fn restored_map_removes_no_store_of_a_newer_group() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::create_dir(path.join("store")).unwrap();
        let host = HostMark { boot_id: 1, device: 2, mount: 3, directory: 4 };
        let mut mark = MemberMarkFile::read_at(path, host).unwrap();
        let (own, newest, version) = (TargetId::new(2), Epoch::new(9), MapVersion::new(9));
        mark.begin(GroupId::new(5)).unwrap();
        let record = GroupRecord { epoch: newest, members: vec![own] };
        mark.reach_epoch(newest, version, record).unwrap();
        let mut map = ClusterMap::empty(ClusterId::default());
        let group = |id, target| {
            Group::of_one(GroupId::new(id), TargetKind::Metadata, TargetId::new(target))
        };
        map.groups = vec![group(5, 1), group(7, 3)];
        map.groups[1].members.push(GroupMember { target: own, state: MemberState::Waiting });
        let group = GroupId::new(7);
        let mut check = |map: &ClusterMap| {
            let membership = Membership { group, target: own, map: Arc::new(map.clone()) };
            is_incomplete(path, own, &membership, &mut mark)
        };
        let refused = check(&map).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Configuration);
        assert!(refused.context().contains("skep group remove 7 2"), "{refused}");
        assert!(path.join("store").exists());
        // The map has a newer state of group 5 than the record in the member mark, so the target
        // has left group 5.
        map.groups[0].epoch = Epoch::new(10);
        assert!(check(&map).unwrap());
        assert!(!path.join("store").exists());
    }
}

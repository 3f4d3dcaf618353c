//! Creation of groups, and changes of their members. Checks the targets, and updates the
//! consistency of a target whenever its state as a member changes.
//!
//! Does not own the rules for members and epochs ([`crate::groups`]).

use super::{Durable, insert_sorted};
use crate::command::{GroupRevision, Outcome};
use crate::groups;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::map::Consistency;
use skep_types::{
    Error, ErrorCode, Group, GroupId, MemberState, Result, Target, TargetId, TargetKind,
};

impl Durable {
    /// Creates a group from targets that have no group. A retry of the command changes nothing.
    pub(super) fn create_group(&mut self, targets: &[TargetId]) -> Result<Outcome> {
        if let Some(group) = self.group_of_exactly(targets) {
            return Ok(Outcome { group, ..Outcome::default() });
        }
        let mut kind = None;
        for target in targets {
            let target = self.target_without_group(*target)?;
            if *kind.get_or_insert(target.kind) != target.kind {
                let context = format!(
                    "cannot create the group: target {} is of another kind than the first target \
                     of the group",
                    target.id
                );
                return Err(Error::new(ErrorCode::InvalidArgument, context));
            }
        }
        for target in targets {
            if self.map.target(*target).is_some_and(|it| it.consistency != Consistency::Good) {
                // The target's data is an old copy of the data of the group that it left.
                let context = format!(
                    "cannot make target {target} a member of a new group: it was a member of \
                     another group, and its data is not complete"
                );
                return Err(Error::new(ErrorCode::NotPermitted, context));
            }
        }
        if kind == Some(TargetKind::Storage) && targets.len() > 1 {
            let context = "cannot create a group of several storage targets: this version mirrors \
                           metadata targets only; create one group for each target";
            return Err(Error::new(ErrorCode::Unsupported, context));
        }
        let id = GroupId::new(self.next_group);
        let group = groups::create(id, kind.unwrap_or(TargetKind::Metadata), targets)?;
        self.next_group += 1;
        self.put_group(group);
        Ok(Outcome { group: id, ..Outcome::default() })
    }

    /// Changes the members of a group.
    pub(super) fn change_group(&mut self, change: &GroupChange) -> Result<Outcome> {
        let group = self.map.group(change.group).ok_or_else(|| unknown_group(change.group))?;
        let next = groups::apply(group, change)?;
        if next != *group && change.change == MemberChange::Add {
            let target = self.target_without_group(change.target)?;
            if target.kind != group.kind {
                let context = format!(
                    "cannot add target {}: it is of another kind than group {}",
                    target.id, next.id
                );
                return Err(Error::new(ErrorCode::InvalidArgument, context));
            }
        }
        let id = next.id;
        self.put_group(next);
        Ok(Outcome { group: id, ..Outcome::default() })
    }

    /// Begins an undecided epoch of a metadata group, above the newest epoch that a member has
    /// reported. Adds the targets that may have all changes of the group. Leaves out targets that
    /// the map does not have, and members of other groups.
    pub(super) fn revise_group(&mut self, revision: &GroupRevision) -> Result<Outcome> {
        let GroupRevision { group: id, epoch, above, members } = revision;
        let group = self.map.group(*id).filter(|group| group.kind == TargetKind::Metadata);
        let group = group.ok_or_else(|| unknown_group(*id))?;
        if group.epoch != *epoch {
            let context = format!(
                "cannot set the members of group {id} in epoch {epoch} after a restore: another \
                 change was faster, and the group now has epoch {}; repeat the change",
                group.epoch
            );
            return Err(Error::new(ErrorCode::StaleMap, context));
        }
        groups::check_reported_epoch(*id, *above)?;
        let may_join = |target: &TargetId| {
            let found = self.map.target(*target);
            found.is_some_and(|it| it.kind == TargetKind::Metadata)
                && self.map.group_of(*target).is_none_or(|other| other.id == *id)
        };
        let needed: Vec<TargetId> = members.iter().copied().filter(may_join).collect();
        let next = groups::reopen(group, *above, &needed);
        self.put_group(next);
        Ok(Outcome { group: *id, ..Outcome::default() })
    }

    /// Returns the target with this id, if it has no group.
    fn target_without_group(&self, id: TargetId) -> Result<&Target> {
        let Some(target) = self.map.target(id) else {
            return Err(Error::new(
                ErrorCode::NotFound,
                format!(
                    "cannot find target {id}: it does not exist; `skep target list` shows all \
                     targets"
                ),
            ));
        };
        match self.map.group_of(id) {
            None => Ok(target),
            Some(group) => {
                let context = format!(
                    "cannot add target {id} to a group: it is a member of group {} already",
                    group.id
                );
                Err(Error::new(ErrorCode::Exists, context))
            }
        }
    }

    fn group_of_exactly(&self, targets: &[TargetId]) -> Option<GroupId> {
        let group = self.map.group_of(*targets.first()?)?;
        let members = group.members.iter().map(|member| member.target);
        members.eq(targets.iter().copied()).then_some(group.id)
    }

    /// Stores a group. Marks the data of each member that does not serve as `NeedsResync`, because
    /// such a member lacks data. The consistency of a target that leaves the group does not change.
    pub(super) fn put_group(&mut self, group: Group) {
        for member in &group.members {
            let consistency = match member.state {
                MemberState::Serving => Consistency::Good,
                _ => Consistency::NeedsResync,
            };
            if let Ok(at) = self.map.targets.binary_search_by_key(&member.target, |it| it.id) {
                self.map.targets[at].consistency = consistency;
            }
        }
        insert_sorted(&mut self.map.groups, group, |group| group.id);
    }
}

fn unknown_group(id: GroupId) -> Error {
    let context =
        format!("cannot find group {id}: it does not exist; `skep group list` shows all groups");
    Error::new(ErrorCode::NotFound, context)
}

#[cfg(test)]
mod tests;

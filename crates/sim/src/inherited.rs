//! The part of the reference model for access control lists, permissions and stripe patterns. The
//! model defines the values that a new inode inherits from its directory, and how a change of one
//! value changes the other values. The model calculates lists and patterns with functions of the
//! real code, but decides independently when to call these functions.

use crate::model::Inode;
use skep_cluster::patterns;
use skep_types::map::Policy;
use skep_types::{
    ACCESS_ACL, Acl, Chooser, ClusterMap, DEFAULT_ACL, FileKind, InodeId, PatternOrigin,
    PatternRequest, StripePattern, TargetKind,
};
use skep_wire::metadata::NewInode;
use std::sync::Arc;

const SET_GROUP_ID: u32 = 0o2000;
const CLASS_BITS: u32 = 0o777;

impl Inode {
    fn acl(&self, name: &[u8]) -> Option<Acl> {
        self.xattrs.get(name).and_then(|bytes| Acl::from_xattr(bytes).ok())
    }

    /// Whether the inode has an access control list.
    pub(crate) fn has_acl(&self) -> bool {
        [ACCESS_ACL, DEFAULT_ACL].iter().any(|name| self.xattrs.contains_key(*name))
    }

    /// Returns a new inode with the settings that it inherits from this directory. `directory` is
    /// the id of this directory.
    pub(crate) fn child(
        &self,
        directory: InodeId,
        kind: FileKind,
        new: &NewInode,
        requested: Option<&PatternRequest>,
        map: &ClusterMap,
    ) -> Self {
        let mut child = Self::new(kind, directory, new.permissions);
        if self.hands_down_project {
            child.project = self.project;
            child.hands_down_project = kind == FileKind::Directory;
        }
        match kind {
            FileKind::Symlink => return child,
            FileKind::Directory => child.pattern.clone_from(&self.pattern),
            FileKind::Regular => {
                let default = self.pattern.as_deref().map(PatternRequest::from_record);
                let default = default.transpose().expect("`set_pattern` set it");
                let merged = patterns::merge(requested, default.as_ref());
                child.pattern = Some(of_file(&merged, 1, map));
            }
            _ => {}
        }
        match self.acl(DEFAULT_ACL) {
            None => child.permissions &= !(new.umask & CLASS_BITS),
            Some(handed_down) => {
                let access = handed_down.inherited(new.permissions);
                child.permissions = new.permissions & !CLASS_BITS | access.mode();
                if !access.is_just_a_mode() {
                    child.xattrs.insert(ACCESS_ACL.to_vec(), access.to_xattr());
                }
                if kind == FileKind::Directory {
                    child.xattrs.insert(DEFAULT_ACL.to_vec(), handed_down.to_xattr());
                }
            }
        }
        if kind == FileKind::Directory {
            child.permissions |= self.permissions & SET_GROUP_ID;
        }
        child
    }

    /// Sets permissions like `chmod`, which also changes the access control list.
    pub(crate) fn set_permissions(&mut self, permissions: u32) {
        self.permissions = permissions;
        if let Some(mut acl) = self.acl(ACCESS_ACL) {
            acl.set_mode(permissions);
            self.xattrs.insert(ACCESS_ACL.to_vec(), acl.to_xattr());
        }
    }

    /// Sets an extended attribute, which may be an access control list.
    pub(crate) fn set_xattr(&mut self, name: &[u8], value: &[u8], clear_set_group_id: bool) {
        if name == ACCESS_ACL
            && let Ok(acl) = Acl::from_xattr(value)
        {
            self.permissions = self.permissions & !CLASS_BITS | acl.mode();
            if clear_set_group_id {
                self.permissions &= !SET_GROUP_ID;
            }
            if acl.is_just_a_mode() {
                self.xattrs.remove(name);
                return;
            }
        }
        self.xattrs.insert(name.to_vec(), value.to_vec());
    }

    /// Sets the default pattern of a directory, or the pattern of an empty file.
    pub(crate) fn set_pattern(&mut self, requested: Option<&PatternRequest>, map: &ClusterMap) {
        if self.kind == FileKind::Directory {
            self.pattern = requested.map(|requested| {
                let origin = PatternOrigin::Directory;
                Arc::new(PatternRequest { origin, ..requested.clone() }.to_record())
            });
            return;
        }
        let base = self.pattern.as_deref().map(PatternRequest::with_policies_of);
        let merged = patterns::merge(requested, base.as_ref());
        let generation = self.pattern.as_ref().map_or(0, |old| old.generation) + 1;
        self.pattern = Some(of_file(&merged, generation, map));
        self.inline.clear();
    }

    /// Sets the pattern of a file that a replay creates again to the pattern of its first creation.
    /// The default pattern of the directory may have changed after the first attempt.
    pub(crate) fn repeat_pattern(&mut self, first: &StripePattern) {
        self.pattern = Some(Arc::new(without_choice(first)));
    }

    /// Whether `found` equals the expected pattern. Does not compare groups that a placement policy
    /// has chosen, because the model does not predict the policy's choice.
    pub(crate) fn has_pattern(&self, found: Option<&StripePattern>) -> bool {
        let (Some(expected), Some(found)) = (&self.pattern, found) else {
            return self.pattern.is_none() && found.is_none();
        };
        let is_of_file = self.kind == FileKind::Regular;
        let mut on_groups = found.components.iter().filter(|it| !it.is_inline());
        let have_groups = on_groups.all(|component| {
            let mut groups = component.groups.clone();
            groups.sort_unstable();
            groups.dedup();
            groups.len() == component.groups.len()
                && (1..=usize::from(component.wanted)).contains(&groups.len())
        });
        let found = if is_of_file { without_choice(found) } else { found.clone() };
        **expected == found && (have_groups || !is_of_file)
    }
}

fn of_file(merged: &PatternRequest, generation: u32, map: &ClusterMap) -> Arc<StripePattern> {
    let storages = map.groups.iter().filter(|it| it.kind == TargetKind::Storage).count();
    // With only one storage target, a pattern has no second component with more groups from the
    // offset `stripe_from` on.
    let stripe_from = if storages == 1 { 0 } else { map.policy.stripe_from };
    let policy = Policy { stripe_from, ..map.policy.clone() };
    Arc::new(StripePattern { generation, ..patterns::resolve(merged, &policy) })
}

/// Returns the pattern without the groups that a placement policy has chosen.
fn without_choice(pattern: &StripePattern) -> StripePattern {
    let mut pattern = pattern.clone();
    let chosen = pattern.components.iter_mut().filter(|it| it.chooser != Chooser::Listed);
    chosen.for_each(|component| component.groups.clear());
    pattern
}

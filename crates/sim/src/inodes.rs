//! The inodes of the reference model. A copy of the model is cheap: copies share each inode until a
//! copy changes the inode. The checker copies the model for each record of a log.

use crate::model::Inode;
use skep_types::InodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Inodes by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inodes(Arc<BTreeMap<InodeId, Arc<Inode>>>);

impl Inodes {
    /// Returns an inode.
    pub(crate) fn get(&self, id: &InodeId) -> Option<&Inode> {
        self.0.get(id).map(|inode| &**inode)
    }

    /// Returns an inode that the caller changes.
    pub(crate) fn get_mut(&mut self, id: &InodeId) -> Option<&mut Inode> {
        Arc::make_mut(&mut self.0).get_mut(id).map(Arc::make_mut)
    }

    /// Whether the inode exists.
    pub(crate) fn contains_key(&self, id: &InodeId) -> bool {
        self.0.contains_key(id)
    }

    /// Adds or replaces an inode.
    pub(crate) fn insert(&mut self, id: InodeId, inode: Inode) {
        Arc::make_mut(&mut self.0).insert(id, Arc::new(inode));
    }

    /// Removes an inode.
    pub(crate) fn remove(&mut self, id: &InodeId) {
        Arc::make_mut(&mut self.0).remove(id);
    }

    /// Iterates over all inodes in ascending order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&InodeId, &Inode)> {
        self.0.iter().map(|(id, inode)| (id, &**inode))
    }
}

//! Attributes, extended attributes and patterns of the file system in memory.

use super::{CHMOD, Memory, Tree, fail};
use skep_client::{
    HandleId, InodeAttributes, Patterns, Queries, SetAttributes, SetTime, Stat, XattrMode, Xattrs,
};
use skep_types::{
    Attributes, Error, ErrorCode, InodeId, PatternRequest, Result, SessionId, Timestamp,
};

impl InodeAttributes for Memory {
    async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.with(|tree| {
            let node = tree.node(inode)?;
            let found = node.attributes.clone();
            if node.xattrs.remove(CHMOD.as_bytes()).is_some() {
                node.attributes.permissions = 0o4600;
            }
            Ok(found)
        })
    }

    async fn stat(&self, inode: InodeId) -> Result<Stat> {
        let attributes = self.with(|tree| Ok(tree.node(inode)?.attributes.clone()))?;
        let allocated_bytes = if attributes.is_sparse {
            // Pages that contain only zeros count as holes.
            let is_full = |page: &&[u8]| page.iter().any(|byte| *byte != 0);
            let full = |data: &[u8]| data.chunks(4096).filter(is_full).map(<[u8]>::len).sum();
            self.with(|tree| Ok::<usize, Error>(full(&tree.node(inode)?.data)))? as u64
        } else {
            attributes.size
        };
        Ok(Stat { attributes, allocated_bytes })
    }

    fn check_handle(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| match tree.handles.contains_key(&handle.raw()) {
            true => Ok(()),
            false => Err(ErrorCode::Stale.into()),
        })
    }

    async fn set_attributes(&self, change: SetAttributes) -> Result<Attributes> {
        self.with(|tree| {
            let node = tree.node(change.inode)?;
            if let Some(size) = change.size {
                node.attributes.is_sparse |= size > node.attributes.size;
                Tree::resize(node, size);
            }
            let it = &mut node.attributes;
            it.permissions = change.permissions_after(it.permissions);
            it.uid = change.uid.unwrap_or(it.uid);
            it.gid = change.gid.unwrap_or(it.gid);
            it.accessed = change.accessed.map_or(it.accessed, chosen);
            it.modified = change.modified.map_or(it.modified, chosen);
            it.changed = skep_env::wall_time();
            Ok(it.clone())
        })
    }

    fn note_shown(&self, _attributes: &Attributes) {}

    fn note_shown_with_name(&self, _attributes: &Attributes) -> bool {
        false
    }

    fn set_forget(&self, _forget: skep_client::Forget) {}
}

impl Xattrs for Memory {
    async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.with(|tree| {
            let node = tree.node(inode)?;
            if name == b"user.syncs" {
                return Ok(node.syncs.to_string().into_bytes());
            }
            let value = node.xattrs.get(name).cloned();
            value.ok_or_else(|| ErrorCode::NoAttribute.into())
        })
    }

    async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        _clear_set_group_id: bool,
    ) -> Result<()> {
        self.with(|tree| {
            let xattrs = &mut tree.node(inode)?.xattrs;
            match (mode, xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return fail(ErrorCode::Exists),
                (XattrMode::Replace, false) => return fail(ErrorCode::NoAttribute),
                _ => {}
            }
            xattrs.insert(name.to_vec(), value.to_vec());
            Ok(())
        })
    }

    async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        self.with(|tree| Ok(tree.node(inode)?.xattrs.keys().cloned().collect()))
    }

    async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        self.with(|tree| {
            let removed = tree.node(inode)?.xattrs.remove(name);
            removed.map(|_| ()).ok_or_else(|| ErrorCode::NoAttribute.into())
        })
    }
}

impl Patterns for Memory {
    async fn pattern(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    async fn entry_info(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    fn cluster_map(&self) -> std::sync::Arc<skep_types::ClusterMap> {
        skep_types::ClusterMap::empty(skep_types::ClusterId::new([0; 16])).into()
    }

    async fn pattern_map(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    fn read_pattern(&self, _text: &[u8]) -> Result<PatternRequest> {
        Err(ErrorCode::Unsupported.into())
    }

    async fn set_pattern(&self, _inode: InodeId, _text: Option<&[u8]>, _uid: u32) -> Result<()> {
        Err(ErrorCode::Unsupported.into())
    }
}

impl Queries for Memory {
    async fn file_users(&self, _inode: InodeId, _after: (SessionId, InodeId)) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }

    async fn ancestors(&self, _inode: InodeId) -> Result<Vec<u8>> {
        Err(ErrorCode::NoAttribute.into())
    }
}

fn chosen(time: SetTime) -> Timestamp {
    if time.now { skep_env::wall_time() } else { time.at }
}

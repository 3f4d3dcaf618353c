//! Opens, reads and writes of the file system in memory.

use super::{Memory, Tree, fail};
use skep_client::{
    Allocates, Allocation, Closes, Copies, CreateRequest, Created, HandleId, LockKind, NewInode,
    OpenMode, OpenedFile, Opens, Reads, SeekTarget, Syncs, Writes,
};
use skep_env::Buf;
use skep_types::{ErrorCode, FileKind, InodeId, PatternRequest, Result};
use std::ops::Range;
use std::time::Duration;

impl Opens for Memory {
    async fn create(&self, request: CreateRequest) -> Result<Created> {
        if *request.name == *b"slow" {
            self.0.lock().unwrap().waiting += 1;
            while self.with(|tree| tree.find(InodeId::ROOT, b"go")).is_err() {
                skep_env::sleep(Duration::from_millis(5)).await;
            }
            self.0.lock().unwrap().waiting -= 1;
        }
        self.with(|tree| {
            let CreateRequest { directory, ref name, kind, new, .. } = request;
            if tree.find(InodeId::ROOT, b"flaps").ok() == Some(directory) {
                let _ = tree.make(directory, name, kind, new);
                return fail(ErrorCode::Exists);
            }
            let inode = tree.make(directory, name, kind, new)?;
            tree.node(inode)?.attributes.device = request.device;
            let handle = match request.open {
                OpenMode::No => None,
                OpenMode::Read | OpenMode::Write => Some(tree.open(inode)?),
            };
            let attributes = tree.node(inode)?.attributes.clone();
            Ok(Created { attributes, handle, created: true })
        })
    }

    async fn create_unnamed(
        &self,
        directory: InodeId,
        new: NewInode,
        _mode: OpenMode,
        _pattern: Option<PatternRequest>,
    ) -> Result<Created> {
        self.with(|tree| {
            let inode = tree.add_node(directory, FileKind::Regular, new);
            let handle = Some(tree.open(inode)?);
            let of = &mut tree.node(inode)?.attributes;
            of.links = 0;
            Ok(Created { attributes: of.clone(), handle, created: true })
        })
    }

    async fn open(&self, inode: InodeId, _mode: OpenMode, truncate: bool) -> Result<OpenedFile> {
        self.with(|tree| {
            tree.replace_name_of(inode)?;
            let node = tree.node(inode)?;
            if node.attributes.links == 0 && node.opens == node.holds {
                return Err(ErrorCode::Stale.into());
            }
            tree.opened_file(inode, truncate)
        })
    }

    async fn hold(&self, inode: InodeId) -> Result<HandleId> {
        self.with(|tree| {
            tree.node(inode)?.holds += 1;
            let handle = tree.open(inode)?;
            tree.holds.insert(handle.raw());
            Ok(handle)
        })
    }

    async fn open_held(&self, inode: InodeId, _: OpenMode, truncate: bool) -> Result<OpenedFile> {
        self.with(|tree| {
            tree.replace_name_of(inode)?;
            tree.opened_file(inode, truncate)
        })
    }
}

impl Closes for Memory {
    async fn flush(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| tree.opened(handle).map(|_| ()))
    }

    async fn close(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| {
            let is_hold = tree.holds.remove(&handle.raw());
            let node = tree.opened(handle)?;
            node.opens -= 1;
            node.holds -= u32::from(is_hold);
            node.locks.retain(|(held, _)| *held != (LockKind::Flock, handle.raw()));
            let inode = tree.handles.remove(&handle.raw());
            inode.map_or(Ok(()), |inode| tree.dispose(inode))
        })
    }
}

impl Syncs for Memory {
    fn set_synced(&self, handle: HandleId) {
        let _ = self.with(|tree| Ok(tree.synced.insert(handle)));
    }

    fn is_synced(&self, handle: HandleId) -> bool {
        self.with(|tree| Ok(tree.synced.contains(&handle))).unwrap()
    }

    async fn fsync(&self, handle: HandleId) -> Result<()> {
        self.with(|tree| tree.opened(handle).map(|node| node.syncs += 1))
    }

    async fn sync_names(&self, _directory: InodeId) -> Result<()> {
        Ok(())
    }

    async fn sync_all(&self) -> Result<()> {
        Ok(())
    }
}

impl Reads for Memory {
    async fn read(&self, handle: HandleId, offset: u64, into: Buf) -> Result<usize> {
        self.with(|tree| {
            let node = tree.opened(handle)?;
            if node.is_shared() {
                node.reads += 1;
                let count = node.reads.to_le_bytes();
                node.data[..count.len()].copy_from_slice(&count);
            }
            let start = node.data.len().min(offset as usize);
            let part = &node.data[start..node.data.len().min(start + into.len())];
            into.write(0, part);
            Ok(part.len())
        })
    }

    fn is_shared(&self, inode: InodeId) -> bool {
        self.with(|tree| tree.node(inode).map(|node| node.is_shared())).unwrap_or(false)
    }
}

impl Writes for Memory {
    async fn write(&self, handle: HandleId, offset: u64, data: Buf) -> Result<()> {
        self.with(|tree| {
            let node = tree.opened(handle)?;
            let end = offset as usize + data.len();
            let size = node.data.len().max(end) as u64;
            Tree::resize(node, size);
            node.data[offset as usize..end].copy_from_slice(&data.bytes());
            Ok(())
        })
    }

    async fn append(&self, handle: HandleId, _expected: u64, data: Buf) -> Result<()> {
        let end = self.with(|tree| tree.opened(handle).map(|node| node.data.len()))?;
        self.write(handle, end as u64, data).await
    }
}

impl Allocates for Memory {
    async fn allocate(
        &self,
        handle: HandleId,
        range: Range<u64>,
        what: Allocation,
        keeps_size: bool,
    ) -> Result<()> {
        self.with(|tree| {
            let node = tree.opened(handle)?;
            let size = node.data.len() as u64;
            if what != Allocation::Reserve {
                let end = range.end.min(size);
                node.data[range.start.min(end) as usize..end as usize].fill(0);
                node.attributes.is_sparse = true;
            }
            let grows = !keeps_size && what != Allocation::Punch;
            Tree::resize(node, if grows { size.max(range.end) } else { size });
            Ok(())
        })
    }

    /// Pages that contain only zeros count as holes.
    async fn seek(&self, handle: HandleId, offset: u64, what: SeekTarget) -> Result<Option<u64>> {
        self.with(|tree| {
            let data = &tree.opened(handle)?.data;
            let found = (offset as usize..data.len()).find(|at| {
                let page = at / 4096 * 4096;
                let is_hole = data[page..data.len().min(page + 4096)].iter().all(|it| *it == 0);
                is_hole == (what == SeekTarget::Hole)
            });
            let end = what == SeekTarget::Hole && offset < data.len() as u64;
            Ok(found.or(end.then_some(data.len())).map(|at| at as u64))
        })
    }
}

impl Copies for Memory {
    async fn copy(
        &self,
        (from, from_offset): (HandleId, u64),
        (to, to_offset): (HandleId, u64),
        length: u64,
    ) -> Result<u64> {
        let bytes = Buf::new(length as usize);
        let count = self.read(from, from_offset, bytes.clone()).await?;
        self.write(to, to_offset, bytes.slice(0..count)).await?;
        Ok(count as u64)
    }
}

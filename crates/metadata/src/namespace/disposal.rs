//! Disposal: the removal of inodes without a name that no session has open.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_cluster::striping;
use skep_format::metadata::{InodeRecord, Key};
use skep_types::{ChunkFileKey, FileKind, Result};

impl<E: Engine> Context<'_, E> {
    /// Removes one hard link of an inode. If that was the last link and no session has the inode
    /// open, disposes of the inode.
    pub(crate) fn drop_link(&mut self, mut record: InodeRecord) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        // The subtraction saturates, because a wrong link count in the store must not stop the
        // target.
        record.attributes.links = record.attributes.links.saturating_sub(1);
        if record.attributes.links == 0 && self.opens(inode)?.is_zero() {
            return self.dispose(&record);
        }
        self.touch_changed(&mut record.attributes);
        self.put_inode(&record);
        Ok(())
    }

    /// Removes an inode, and adds one `Removal` record for each chunk file that storage has to
    /// remove. A background job sends these removals to storage.
    pub(crate) fn dispose(&mut self, record: &InodeRecord) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        let reach = self.reach(record)?;
        if let Some(pattern) = &record.pattern
            && record.attributes.kind == FileKind::Regular
        {
            for chunk in striping::chunk_sizes(pattern, reach).filter(|chunk| chunk.size > 0) {
                let key = ChunkFileKey {
                    inode,
                    generation: pattern.generation,
                    component: chunk.component,
                    index: chunk.index,
                };
                self.put_raw(&Key::Removal(chunk.group, key), &[]);
            }
        }
        self.dispose_of_inline(record, reach)?;
        self.remove_inode(record)
    }

    /// Removes the record of an inode, with its extended attributes, size recovery and truncation.
    /// The caller must remove the inline bytes of a file before this call.
    pub(crate) fn remove_inode(&mut self, record: &InodeRecord) -> Result<(), Stop> {
        let inode = record.attributes.inode;
        if record.has_xattrs {
            for key in self.scan_keys(&Key::xattrs_of(inode), &[], usize::MAX)? {
                self.delete_raw(key);
            }
        }
        // Only regular files can be opened and truncated, so only they have these records.
        if record.attributes.kind == FileKind::Regular {
            if self.has_size_recovery(inode)? {
                self.delete(&Key::SizeRecovery(inode));
            }
            if self.shared.truncations.get(inode).is_some() {
                self.delete(&Key::Truncation(inode));
            }
        }
        self.delete(&Key::Inode(inode));
        Ok(())
    }
}

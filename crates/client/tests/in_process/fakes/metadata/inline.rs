//! Inline bytes of the fake metadata target.

use super::{FakeInode, FakeMetadata, code};
use skep_types::codec::{Bytes, crc32c};
use skep_types::{ErrorCode, Result, SessionId};
use skep_wire::inline::{
    InlineContents, ReadInline, ReadInlineReply, RemoveInline, RemoveInlineReply, SyncInline,
    SyncInlineReply, WriteInline, WriteInlineReply,
};

impl FakeInode {
    /// Ends the inline component of a file without inline bytes. Returns whether the component has
    /// ended.
    pub(super) fn end_inline(&mut self) -> bool {
        self.has_moved_inline |= self.attributes.size == 0 && self.inline.is_empty();
        self.has_moved_inline
    }

    /// Returns the bytes of a file that has only inline bytes, for the reply to an open.
    pub(super) fn contents(&self, limit: u32) -> Option<InlineContents> {
        let size = self.attributes.size;
        let is_whole = size > 0 && size <= u64::from(limit) && size == self.inline.len() as u64;
        let bytes = Bytes::from(&self.inline[..]);
        is_whole.then(|| InlineContents { checksum: crc32c(&bytes), bytes })
    }
}

impl FakeMetadata {
    pub(super) fn write_inline(&mut self, request: &WriteInline) -> Result<WriteInlineReply> {
        let FakeInode { attributes, inline, has_moved_inline, .. } = self.inode(request.inode)?;
        if *has_moved_inline {
            return code(ErrorCode::Stale);
        }
        let has_moved = request.appends && request.offset < attributes.size;
        if request.truncate_generation != attributes.truncate_generation || has_moved {
            return code(ErrorCode::EndMoved);
        }
        let (start, end) = (request.offset as usize, request.offset as usize + request.bytes.len());
        inline.resize(inline.len().max(end), 0);
        inline[start..end].copy_from_slice(&request.bytes);
        if request.extends {
            attributes.size = attributes.size.max(end as u64);
        }
        attributes.change_counter += 1;
        let attributes = attributes.clone();
        Ok(WriteInlineReply { mark: self.next_mark(), attributes })
    }

    pub(super) fn read_inline(&mut self, request: &ReadInline) -> Result<ReadInlineReply> {
        let FakeInode { attributes, inline, has_moved_inline, .. } = self.inode(request.inode)?;
        if *has_moved_inline {
            return code(ErrorCode::Stale);
        }
        let start = (request.offset as usize).min(inline.len());
        let end = (start + request.length as usize).min(inline.len());
        let bytes = Bytes::from(&inline[start..end]);
        let truncate_generation = attributes.truncate_generation;
        Ok(ReadInlineReply { truncate_generation, checksum: crc32c(&bytes), bytes })
    }

    pub(super) fn sync_inline(&mut self, request: &SyncInline) -> Result<SyncInlineReply> {
        let attributes = self.inodes.get(&request.inode).map(|it| it.attributes.clone());
        let is_lost = request.written.iter().any(|mark| self.is_lost(mark));
        Ok(SyncInlineReply { is_lost, attributes })
    }

    pub(super) fn remove_inline(
        &mut self,
        session: SessionId,
        request: &RemoveInline,
    ) -> Result<RemoveInlineReply> {
        let most = self.behaviour.inline_bytes;
        let inode = self.inode(request.inode)?;
        let is_empty = inode.attributes.size == 0 && inode.inline.is_empty();
        let is_removed = crc32c(&inode.inline) == request.checksum
            && inode.attributes.truncate_generation == request.truncate_generation
            && (inode.attributes.size > most || is_empty)
            && inode.opens.keys().all(|other| *other == session);
        if is_removed {
            inode.inline.clear();
            inode.has_moved_inline = true;
            if !is_empty {
                inode.synced.insert(0);
            }
        }
        let is_lost = request.written.iter().any(|mark| self.is_lost(mark));
        Ok(RemoveInlineReply { is_removed, is_lost, mark: self.next_mark() })
    }
}

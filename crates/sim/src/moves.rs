//! Clients that move the inline bytes of files to storage, or that end an unused inline component
//! (docs/design/0009-first-bytes-in-metadata.md, "Moving the bytes").
//!
//! A simulated storage target has no file contents. At the offset of the inline bytes in a chunk
//! file, the target records the checksum of the copy that a client has written at this offset. When
//! a metadata target has replied that it has removed inline bytes, the storage target must have a
//! copy of these bytes, or newer writes, on its device. This module does not check the bytes of
//! later writes.
//!
//! After each open of a file, its pattern must not be older than the pattern in the reply to any
//! earlier open.

use crate::client::{Handle, Write};
use crate::knobs::PlantedBug;
use crate::network::{Node, Purpose};
use crate::operation::Op;
use crate::world::{World, message};
use skep_cluster::striping;
use skep_types::codec::crc32c;
use skep_types::{ChunkFileKey, GroupId, InodeId, StripePattern};
use skep_wire::frame::{FLAG_DURABLE, Header};
use skep_wire::inline::RemoveInline;
use skep_wire::storage as st;

/// Upper bound of the number of inline bytes of a simulated file.
const MOST_INLINE_BYTES: u64 = 8 << 10;

/// The contents of a chunk file at the offset of the inline bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FirstBytes {
    /// No client has written at this offset.
    #[default]
    Hole,
    /// A copy of the inline bytes with this checksum.
    Copy(u32),
    /// Other bytes, or a truncation.
    Other,
}

/// The first bytes of one chunk file, in the page cache and on the device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoredFirstBytes {
    cached: FirstBytes,
    synced: FirstBytes,
}

impl StoredFirstBytes {
    /// Applies a write. Only a request that writes a copy of inline bytes contains the checksum of
    /// its bytes.
    pub(crate) fn write(&mut self, write: &st::WriteChunk, is_durable: bool) {
        match write.checksums[..] {
            [checksum] => self.cached = FirstBytes::Copy(checksum),
            _ if write.offset < MOST_INLINE_BYTES => self.cached = FirstBytes::Other,
            _ => {}
        }
        if is_durable {
            self.sync();
        }
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        if size < MOST_INLINE_BYTES {
            *self = Self { cached: FirstBytes::Other, synced: FirstBytes::Other };
        }
    }

    pub(crate) fn sync(&mut self) {
        self.synced = self.cached;
    }

    pub(crate) fn lose_power(&mut self) {
        self.cached = self.synced;
    }
}

impl World {
    /// Begins to move the inline bytes of an open file. Returns `false` if the client cannot move
    /// the bytes now. A real client reads the bytes, and delays its own writes until the end of the
    /// move. The simulated client takes the bytes from the reference model, and does not stop its
    /// inline writes, so that the target must detect these writes.
    pub(crate) fn move_inline(&mut self, client: usize, task: usize, index: usize) -> bool {
        let handle = self.clients[client].handles[index].clone();
        let (inode, pattern) = (handle.inode, handle.pattern.as_ref());
        let Some((pattern, moved)) =
            pattern.and_then(|it| Some((it, striping::without_inline(it)?)))
        else {
            return false;
        };
        let Some(file) = self.witness.model.inodes.get(&inode) else { return false };
        let is_current = |it: &StripePattern| {
            (it.generation, it.inline_bytes()) == (pattern.generation, pattern.inline_bytes())
        };
        let inline = pattern.inline_bytes();
        if !file.pattern.as_deref().is_some_and(is_current) {
            return false;
        }
        let removal = RemoveInline {
            inode,
            generation: pattern.generation,
            truncate_generation: file.truncate_generation,
            checksum: crc32c(&file.inline),
            written: Vec::new(),
        };
        let is_empty = file.size == 0;
        let may_move = is_empty || file.size > inline;
        let piece = striping::pieces(&moved, 0..inline).ok().and_then(|mut pieces| pieces.next());
        let Some((piece, group)) = piece.and_then(|it| Some((it, it.group?))) else { return false };
        if !may_move || !self.clients[client].moving.insert(inode) {
            return false;
        }
        if is_empty {
            // The inline component of an empty file can end without a copy.
            let removal = RemoveInline { checksum: crc32c(&[]), ..removal };
            let is_durable = self.random.percent(50);
            self.begin(client, task, Op::RemoveInline(removal), is_durable);
            return true;
        }
        let key = ChunkFileKey {
            inode,
            generation: pattern.generation,
            component: piece.component,
            index: piece.index,
        };
        let (header, body) = message(&st::WriteChunk {
            key,
            stripe: st::StripeHint { chunk_bytes: 0, width: 0, component_start: 0 },
            offset: piece.offset_in_chunk_file,
            truncate_generation: removal.truncate_generation,
            must_exist: false,
            checksums: vec![removal.checksum],
        });
        let mut header =
            Header { session: handle.session, data_bytes: piece.length as u32, ..header };
        if self.knobs.plant != Some(PlantedBug::CopyWithoutSync) {
            header.flags |= FLAG_DURABLE;
        }
        let write = Write { chunks: None, under_way: 1, has_failed: false, removal: Some(removal) };
        self.begin_write(client, task, &handle, write);
        self.call(Node::Client(client), group, header, body, Purpose::Write(task));
        true
    }

    /// Uses the new pattern for all handles of a client, after a target has removed the inline
    /// bytes of a file. Checks that storage has these bytes, and that no other client uses the
    /// inline bytes.
    pub(crate) fn inline_removed(&mut self, client: usize, removal: &RemoveInline) {
        let inode = removal.inode;
        let place = self.inline_ended(client, inode);
        let Some(group) = place.filter(|_| !self.witness.is_blind) else { return };
        // An empty component needs no copy. Storage may still have an earlier copy, if a power loss
        // of a metadata target has reverted the size of the file after that copy. A real client
        // ends the component only of a file to which it has never written.
        let is_empty = removal.checksum == crc32c(&[]);
        if is_empty || !self.witness.model.inodes.contains_key(&inode) {
            return;
        }
        let key = ChunkFileKey { inode, generation: removal.generation, component: 1, index: 0 };
        let storage = &self.storages[self.storage_of(group)];
        let found = storage.first_bytes.get(&key).map_or(FirstBytes::Hole, |it| it.synced);
        if found != FirstBytes::Copy(removal.checksum) && found != FirstBytes::Other {
            self.fail(format!(
                "file {inode}: its inline bytes were removed, but storage has not synced its copy: \
                 {found:?}, expected the checksum {}",
                removal.checksum
            ));
        }
    }

    /// Checks that a file has at least the newest pattern that an open has returned to a client
    /// with an open handle. An open must not show a pattern that a power loss can revert.
    pub(crate) fn check_shown_patterns(&mut self, inode: InodeId) {
        let model = &self.witness.model;
        let Some(file) = model.inodes.get(&inode).filter(|_| !self.witness.is_blind) else {
            return;
        };
        let Some(pattern) = file.pattern.as_deref() else { return };
        let current = (pattern.generation, pattern.has_moved_inline());
        let handles = self.clients.iter().flat_map(|it| &it.handles);
        let shown = handles.filter(|it| it.inode == inode).filter_map(|it| it.shown).max();
        if let Some(shown) = shown.filter(|it| *it > current) {
            self.fail(format!(
                "file {inode}: an open has shown a pattern that a power loss has reverted; its \
                 generation, and whether its inline bytes were moved: {shown:?}, now {current:?}"
            ));
        }
    }

    /// Uses the new pattern for all handles of a client, after a target has ended the inline
    /// component of a file. Checks that no other client uses the inline bytes. Returns the group of
    /// the first bytes.
    pub(crate) fn inline_ended(&mut self, client: usize, inode: InodeId) -> Option<GroupId> {
        self.check_unused(client, inode);
        let handles = self.clients[client].handles.iter_mut().filter(|it| it.inode == inode);
        let mut place = None;
        for pattern in handles.filter_map(|handle| handle.pattern.as_mut()) {
            if let Some(moved) = striping::without_inline(pattern) {
                *pattern = moved;
            }
            place = pattern.components.get(1).and_then(|it| it.groups.first().copied());
        }
        place
    }

    /// Checks that no other client uses the inline bytes of a file whose inline bytes were removed.
    /// Ignores opens that a power loss has reverted. A power loss may also have reverted the
    /// removal while its reply was in flight, if the reply was not durable.
    fn check_unused(&mut self, client: usize, inode: InodeId) {
        let Some(file) = self.witness.model.inodes.get(&inode) else { return };
        if !file.pattern.as_deref().is_some_and(StripePattern::has_moved_inline) {
            return;
        }
        for (other, process) in self.clients.iter().enumerate().filter(|(it, _)| *it != client) {
            let uses_inline = |it: &&Handle| {
                it.inode == inode
                    && it.pattern.as_ref().is_some_and(|pattern| pattern.inline_bytes() > 0)
                    && file.opens.contains_key(&it.session)
                    && self.witness.is_done(it.opened_by)
            };
            if let Some(handle) = process.handles.iter().find(uses_inline) {
                let session = handle.session;
                return self.fail(format!(
                    "file {inode}: its inline bytes were removed, but client {other} has it open \
                     in session {session}"
                ));
            }
        }
    }
}

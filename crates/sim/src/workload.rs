//! The workload of clients. Clients run random operations on a small set of names, directories and
//! files, so that their operations conflict.

use crate::client::{Current, Handle, Write};
use crate::files::{ChunkWrite, FileChange, observe};
use crate::names::Names;
use crate::network::{Node, Purpose};
use crate::operation::Op;
use crate::random::Random;
use crate::world::{Phase, World, message};
use skep_client::WriteGuard;
use skep_cluster::striping::{Piece, pieces};
use skep_types::codec::{Bytes, Codec};
use skep_types::{
    ACCESS_ACL, Acl, AclEntry, AclTag, Chooser, ChunkFileKey, ComponentRequest, DEFAULT_ACL,
    FileKind, GroupId, InodeId, PatternOrigin, PatternRequest, Placement,
};
use skep_wire::file_locks::{LockKind, LockMode, LockRequest, SetLock};
use skep_wire::frame::Header;
use skep_wire::limits::LOCK_END;
use skep_wire::metadata as md;
use skep_wire::storage as st;

const NAMES: &[&str] = &["a", "b", "c", "d", "e"];
const XATTRS: &[&[u8]] = &[b"user.x", b"user.y", ACCESS_ACL, DEFAULT_ACL];

impl Names for World {
    fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    fn name(&mut self) -> Bytes {
        let name = self.random.index(NAMES.len());
        NAMES[name].as_bytes().into()
    }

    fn any_directory(&mut self) -> InodeId {
        let known = std::mem::take(&mut self.directories);
        let recent = self.recent(&known).filter(|_| self.random.percent(80));
        self.directories = known;
        recent.unwrap_or(InodeId::ROOT)
    }

    fn any_file(&mut self) -> InodeId {
        let known = std::mem::take(&mut self.files);
        let recent = self.recent(&known);
        self.files = known;
        recent.unwrap_or(InodeId::ROOT)
    }
}

impl World {
    /// Begins the next operation of a task.
    pub(crate) fn next_operation(&mut self, client: usize, life: u64, task: usize) {
        let process = &self.clients[client];
        let is_idle = process.life == life && process.is_running;
        if !is_idle || process.tasks[task].current.is_some() || self.phase != Phase::Busy {
            return;
        }
        self.check_sizes_alone(client);
        if self.steps_left == 0 {
            return;
        }
        self.steps_left -= 1;
        let is_durable = self.random.percent(10);
        if self.random.percent(20) && self.use_handle(client, task, is_durable) {
            return;
        }
        if self.random.percent(10)
            && let Some(op) = self.sync_inline(client)
        {
            return self.begin(client, task, op, is_durable);
        }
        let op = match self.random.below(100) {
            0..4 => self.create_unnamed(),
            4..20 => self.create(),
            20..32 => Op::MakeDirectory(md::MakeDirectory {
                directory: self.any_directory(),
                name: self.name(),
                new: self.new_inode(true),
            }),
            32..36 => Op::MakeSymlink(md::MakeSymlink {
                directory: self.any_directory(),
                name: self.name(),
                link_target: b"over/there"[..].into(),
                new: self.new_inode(false),
            }),
            36..44 => self.link(),
            44..56 => self.unlink(),
            56..64 => self.remove_directory(),
            64..68 => Op::Exchange(md::Exchange {
                from_directory: self.any_directory(),
                from_name: self.name(),
                to_directory: self.any_directory(),
                to_name: self.name(),
            }),
            68..78 => self.rename(),
            78..82 => self.change_attributes(),
            82..88 => self.xattr(),
            88..91 => self.set_pattern(),
            _ => self.read(),
        };
        self.begin(client, task, op, is_durable);
    }

    fn recent(&mut self, list: &[InodeId]) -> Option<InodeId> {
        let from = list.len().saturating_sub(self.knobs.working_set);
        self.random.pick(&list[from..])
    }

    fn any_inode(&mut self) -> InodeId {
        if self.random.percent(75) { self.any_file() } else { self.any_directory() }
    }

    fn new_inode(&mut self, is_directory: bool) -> md::NewInode {
        let permissions =
            if is_directory { [0o700, 0o755, 0o2777] } else { [0o600, 0o644, 0o4755] };
        let umask = [0, 0o022, 0o077][self.random.index(3)];
        md::NewInode { permissions: permissions[self.random.index(3)], umask, uid: 1, gid: 1 }
    }

    /// Returns a random pattern for a request. Some fields are not set, so that the values of the
    /// directory or the cluster apply.
    fn any_pattern(&mut self) -> PatternRequest {
        let is_listed = self.random.percent(30);
        let first = self.knobs.targets as u32 + 1;
        let mut groups: Vec<_> =
            (first..first + self.knobs.storages as u32).map(GroupId::new).collect();
        let start = self.random.index(groups.len());
        groups.rotate_left(start);
        groups.truncate(1 + self.random.index(groups.len()));
        let choosers = [None, Some(Chooser::RoundRobin), Some(Chooser::Randomized)];
        let inline = self.random.percent(50).then(|| [4 << 10, 8 << 10][self.random.index(2)]);
        let chunk_bytes = [None, Some(64 << 10), Some(128 << 10)][self.random.index(3)];
        let (width, placement) = if is_listed {
            (None, Some(Placement::Groups(groups)))
        } else {
            let width = Some(self.random.below(4) as u16).filter(|width| *width != 0);
            (width, choosers[self.random.index(3)].map(Placement::Policy))
        };
        let component = ComponentRequest { start: 0, chunk_bytes, width, placement };
        let components = vec![component];
        PatternRequest { origin: PatternOrigin::Asked, inline_bytes: inline, components }
    }

    fn set_pattern(&mut self) -> Op {
        let inode = if self.random.percent(50) { self.any_file() } else { self.any_directory() };
        let pattern = self.random.percent(80).then(|| self.any_pattern());
        let uid = if self.random.percent(90) { 0 } else { 7 };
        Op::SetPattern(md::SetPattern { inode, pattern, uid })
    }

    fn create_unnamed(&mut self) -> Op {
        let open = [md::OpenMode::Read, md::OpenMode::Write];
        Op::CreateUnnamed(md::CreateUnnamed {
            directory: self.any_directory(),
            new: self.new_inode(false),
            open: open[self.random.index(2)],
            pattern: self.random.percent(20).then(|| self.any_pattern()),
        })
    }

    /// Returns a random access control list. The list has only the basic entries, or additionally a
    /// mask, or additionally a user and a mask.
    fn acl(&mut self) -> Vec<u8> {
        let mut any = |tag| AclEntry { tag, permissions: self.random.below(8) as u32 };
        let (owner, group, other) =
            (any(AclTag::Owner), any(AclTag::OwningGroup), any(AclTag::Other));
        let (user, mask) = (any(AclTag::User(5)), any(AclTag::Mask));
        let entries = match self.random.below(4) {
            0 => vec![owner, group, other],
            1 => vec![owner, group, mask, other],
            _ => vec![owner, user, group, mask, other],
        };
        Acl::new(entries).map(|acl| acl.to_xattr()).unwrap_or_default()
    }

    fn create(&mut self) -> Op {
        let open = [md::OpenMode::No, md::OpenMode::Read, md::OpenMode::Write];
        let kind = if self.random.percent(90) { FileKind::Regular } else { FileKind::Fifo };
        Op::Create(md::Create {
            directory: self.any_directory(),
            name: self.name(),
            kind,
            new: self.new_inode(false),
            device: 0,
            exclusive: self.random.percent(50),
            open: open[self.random.index(3)],
            pattern: self.random.percent(10).then(|| self.any_pattern()),
        })
    }

    fn change_attributes(&mut self) -> Op {
        if self.random.percent(30) {
            return self.change_project();
        }
        let size = self.random.percent(60).then(|| self.random.below(300_000));
        Op::SetAttributes(md::SetAttributes {
            inode: self.any_inode(),
            permissions: Some([0o640, 0o777, 0o2750][self.random.index(3)]),
            cleared_permissions: 0,
            uid: None,
            gid: None,
            project: None,
            hands_down_project: None,
            size,
            accessed: None,
            modified: None,
        })
    }

    /// Returns a request that changes the project of a random inode. Most inodes keep the same
    /// project, so that some renames still succeed.
    fn change_project(&mut self) -> Op {
        let inode = self.any_inode();
        Op::SetAttributes(md::SetAttributes {
            inode,
            permissions: None,
            cleared_permissions: 0,
            uid: None,
            gid: None,
            project: Some(u32::from(self.random.percent(40))),
            hands_down_project: Some(self.random.percent(50)),
            size: None,
            accessed: None,
            modified: None,
        })
    }

    fn xattr(&mut self) -> Op {
        let inode = self.any_inode();
        let name: Bytes = XATTRS[self.random.index(XATTRS.len())].into();
        if self.random.percent(30) {
            return Op::RemoveXattr(md::RemoveXattr { inode, name });
        }
        if name.0 == ACCESS_ACL || name.0 == DEFAULT_ACL {
            let (value, mode) = (self.acl().into(), md::XattrMode::Any);
            let clear_set_group_id = self.random.percent(30);
            return Op::SetXattr(md::SetXattr { inode, name, value, mode, clear_set_group_id });
        }
        let modes = [md::XattrMode::Any, md::XattrMode::Create, md::XattrMode::Replace];
        let mode = modes[self.random.index(3)];
        let value = self.random.bits().to_le_bytes()[..].into();
        Op::SetXattr(md::SetXattr { inode, name, value, mode, clear_set_group_id: false })
    }

    fn read(&mut self) -> Op {
        match self.random.below(10) {
            0..3 => Op::Lookup(md::Lookup { directory: self.any_directory(), name: self.name() }),
            3..5 => Op::GetAttributes(md::GetAttributes { inode: self.any_inode() }),
            5 => Op::ReadLink(md::ReadLink { inode: self.any_file() }),
            6 => Op::GetXattr(md::GetXattr {
                inode: self.any_inode(),
                name: XATTRS[self.random.index(XATTRS.len())].into(),
            }),
            7 => Op::ListXattrs(md::ListXattrs { inode: self.any_inode() }),
            _ => Op::ReadDirectory(md::ReadDirectory {
                directory: self.any_directory(),
                cursor: 0,
                max_bytes: self.random.within(1, 400) as u32,
                with_attributes: self.random.percent(50),
            }),
        }
    }

    /// Closes several files in one request. Skips handles whose writes are not reported yet. The
    /// request may also contain an inode that is not open. Returns `false` if there is no file to
    /// close.
    fn close_many(&mut self, client: usize, task: usize, is_durable: bool) -> bool {
        let handles = &mut self.clients[client].handles;
        let is_clean = |handle: &Handle| !handle.is_busy && handle.state.unreported().is_none();
        let Some(session) = handles.iter().find(|it| is_clean(it)).map(|it| it.session) else {
            return false;
        };
        let closed = |inode, open| md::ClosedFile { inode, open, ends_inline: None };
        let removed: Vec<_> =
            handles.extract_if(.., |it| is_clean(it) && it.session == session).collect();
        let mut files: Vec<_> = removed.iter().map(|it| closed(it.inode, it.mode)).collect();
        let change = FileChange::close(removed, None);
        let group = self.map.shard_group(files[0].inode.shard());
        // Use a directory as the inode that is not open. If this inode were a file, the log would
        // not show whether another task had opened the file before this close.
        let other = self.any_directory();
        if self.map.shard_group(other.shard()) == group && self.random.percent(50) {
            files.push(closed(other, md::OpenMode::Read));
        }
        let op = Op::CloseMany(md::CloseMany { files });
        self.begin_change(client, task, op, is_durable, change);
        true
    }

    /// Begins an open, a write, a report or a close of a file. Returns `false` if the client has no
    /// suitable file.
    fn use_handle(&mut self, client: usize, task: usize, is_durable: bool) -> bool {
        if self.random.percent(15) && self.close_many(client, task, is_durable) {
            return true;
        }
        let free: Vec<usize> = self.clients[client]
            .handles
            .iter()
            .enumerate()
            .filter(|(_, handle)| !handle.is_busy)
            .map(|(index, _)| index)
            .collect();
        let Some(index) = self.random.pick(&free).filter(|_| self.random.percent(80)) else {
            if self.files.is_empty() {
                return false;
            }
            let modes = [md::OpenMode::Read, md::OpenMode::Write];
            let open = modes[self.random.index(2)];
            let truncate = open == md::OpenMode::Write && self.random.percent(30);
            let must_have_name = self.random.percent(50);
            let inline_limit = if open == md::OpenMode::Read { 8 << 10 } else { 0 };
            let inode = self.any_file();
            let open = md::Open { inode, open, truncate, must_have_name, inline_limit };
            let op = Op::Open(open);
            self.begin(client, task, op, is_durable);
            return true;
        };
        let handle = self.clients[client].handles[index].clone();
        let report = self.unreported(&handle);
        let is_writer = handle.mode == md::OpenMode::Write;
        if is_writer && self.random.percent(15) && self.move_inline(client, task, index) {
            return true;
        }
        if self.random.percent(40) {
            let op = self.lock(client, handle.inode);
            self.begin(client, task, op, is_durable);
        } else if let Some(op) = self.inline(client, index).filter(|_| self.random.percent(60)) {
            let is_write = matches!(op, Op::WriteInline(_));
            self.begin(client, task, op, is_durable);
            if is_write {
                self.keep_busy(client, task, handle.id);
            }
        } else if is_writer
            && self.random.percent(50)
            && handle.pattern.is_some()
            && let Some(writing) = handle.state.try_write()
        {
            self.write(client, task, &handle, writing);
        } else if is_writer
            && let Some(report) = report
            && self.random.percent(30)
        {
            // A real client sends this request only for a file that it has created and that has no
            // inline bytes. The target must refuse the request for other files.
            let inline = handle.pattern.as_ref().filter(|it| it.inline_bytes() > 0);
            let ends_inline = inline
                .filter(|_| !handle.is_shared && self.random.percent(30))
                .map(|it| it.generation);
            let op = Op::ReportWritten(md::ReportWritten {
                inode: handle.inode,
                written: Some(md::WrittenExtent { ends_inline, ..report.extent }),
                synced: None,
            });
            let change = FileChange::Report { state: handle.state, report };
            self.begin_change(client, task, op, is_durable, change);
        } else {
            let removed = self.clients[client].handles.remove(index);
            // Like the reports of sizes, closes contain no pattern generation, because the model
            // does not compare pattern generations.
            let written =
                report.map(|it| md::ClosingReport { extent: it.extent, pattern_generation: None });
            let op = Op::Close(md::Close { inode: handle.inode, open: handle.mode, written });
            let change = FileChange::close(vec![removed], report);
            self.begin_change(client, task, op, is_durable, change);
        }
        true
    }

    /// Returns a request that locks or unlocks a random range of a file for one of two lock owners.
    fn lock(&mut self, client: usize, inode: InodeId) -> Op {
        let modes = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)];
        let start = self.random.below(6);
        let lock = LockRequest {
            inode,
            kind: if self.random.percent(80) { LockKind::Posix } else { LockKind::Flock },
            owner: self.random.below(2),
            mode: modes[self.random.index(3)],
            start,
            end: if self.random.percent(10) { LOCK_END } else { start + self.random.within(1, 5) },
            pid: 1,
        };
        let mut wait = 0;
        if lock.mode.is_some() && self.random.percent(40) {
            let process = &mut self.clients[client];
            process.last_wait += 1;
            wait = process.last_wait;
        }
        Op::SetLock(SetLock { lock, wait })
    }

    fn write(&mut self, client: usize, task: usize, handle: &Handle, writing: WriteGuard) {
        let offset = self.random.below(200_000);
        let end = offset + self.random.within(1, 100_000);
        let Some(pattern) = &handle.pattern else { return };
        // The simulated storage targets ignore the stripe hint.
        let stripe = st::StripeHint { chunk_bytes: 0, width: 0, component_start: 0 };
        // This write begins after the inline bytes. Another kind of operation writes the inline
        // bytes.
        let (offset, end) = (offset + pattern.inline_bytes(), end + pattern.inline_bytes());
        let pieces: Vec<_> =
            pieces(pattern, offset..end).map(Iterator::collect).unwrap_or_default();
        let (inode, session) = (handle.inode, handle.session);
        let key_of = |piece: &Piece| ChunkFileKey {
            inode,
            generation: pattern.generation,
            component: piece.component,
            index: piece.index,
        };
        let written = pieces.iter().filter_map(|it| Some((key_of(it), it.group?))).collect();
        let chunks = ChunkWrite::new(handle, writing, offset..end, pattern, written);
        let truncate_generation = chunks.generation;
        let under_way = pieces.len();
        let write = Write { chunks: Some(chunks), under_way, has_failed: false, removal: None };
        self.begin_write(client, task, handle, write);
        for piece in pieces {
            let (header, body) = message(&st::WriteChunk {
                key: key_of(&piece),
                stripe,
                offset: piece.offset_in_chunk_file,
                truncate_generation,
                must_exist: false,
                checksums: Vec::new(),
            });
            let header = Header { session, data_bytes: piece.length as u32, ..header };
            let group = piece.group.unwrap_or_default();
            self.call(Node::Client(client), group, header, body, Purpose::Write(task));
        }
    }

    /// Applies a reply to the client's state.
    pub(crate) fn apply_reply(&mut self, client: usize, current: &Current, reply: &[u8]) {
        match &current.op {
            Op::Create(md::Create { open, .. })
            | Op::CreateUnnamed(md::CreateUnnamed { open, .. })
            | Op::Open(md::Open { open, .. }) => {
                let Ok(opened) = md::OpenReply::from_bytes(reply) else { return };
                self.remember_inode(opened.attributes.inode, opened.attributes.kind);
                let inode = opened.attributes.inode;
                self.keep_handle(client, *open, current, opened);
                self.check_sharing(inode);
            }
            Op::Lookup(_) => {
                if let Ok(entry) = md::EntryReply::from_bytes(reply) {
                    self.remember_inode(entry.inode, entry.kind);
                }
            }
            Op::MakeDirectory(_) | Op::MakeSymlink(_) => {
                if let Ok(md::NewEntryReply { entry, .. }) = md::NewEntryReply::from_bytes(reply) {
                    self.remember_inode(entry.inode, entry.kind);
                }
            }
            _ => {}
        }
    }

    fn remember_inode(&mut self, inode: InodeId, kind: FileKind) {
        let known = match kind {
            FileKind::Directory => &mut self.directories,
            _ => &mut self.files,
        };
        known.retain(|it| *it != inode);
        known.push(inode);
    }

    fn keep_handle(
        &mut self,
        client: usize,
        mode: md::OpenMode,
        current: &Current,
        opened: md::OpenReply,
    ) {
        let Some(opened_by) = current.instance else { return };
        let md::OpenReply { attributes, pattern, is_shared, .. } = opened;
        let process = &mut self.clients[client];
        let before = current.notifications_before;
        let arrived = process.notifications.arrived.get(before..).unwrap_or_default();
        // A client treats a file as shared until it has closed its last handle of the file.
        let mut of_file = process.handles.iter().filter(|it| it.inode == attributes.inode);
        let is_known = of_file.any(|handle| handle.is_shared);
        let is_shared = is_shared || is_known || arrived.contains(&attributes.inode);
        if is_shared {
            let others = process.handles.iter_mut().filter(|it| it.inode == attributes.inode);
            others.for_each(|handle| handle.is_shared = true);
        }
        let session = opened_by.0;
        let is_current = process.sessions.values().any(|it| it.id == session);
        if mode != md::OpenMode::No && attributes.kind == FileKind::Regular && is_current {
            let shown = pattern.as_ref().map(|it| (it.generation, it.has_moved_inline()));
            // Without `sizes`, the reply may be older than a loss of log records.
            let losses = current.sizes.as_ref().map_or(u64::MAX, |_| self.witness.losses);
            let state = process.files.open(attributes.inode, losses);
            let inode = attributes.inode;
            observe(self.knobs.plant, &state, &attributes, self.now);
            if mode == md::OpenMode::Write {
                state.opened_for_writing();
            }
            // The reply may be older than a change of the file by this client. Like a mount, the
            // client then requests the size before each use.
            if is_shared || process.files.has_changed_since(current.changes_before, inode) {
                state.set_shared();
            }
            process.next_handle += 1;
            process.handles.push(Handle {
                id: process.next_handle,
                inode: attributes.inode,
                state,
                mode,
                session,
                opened_by,
                generation: attributes.truncate_generation,
                pattern,
                shown,
                is_shared,
                is_busy: false,
            });
            self.check_shown_patterns(attributes.inode);
        }
    }
}

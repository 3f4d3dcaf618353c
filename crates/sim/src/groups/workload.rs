//! The operations of clients: names, attributes, opens and file locks, on few names and files, so
//! that the operations conflict.
//!
//! In some runs, clients also open files for writing. In these runs, several clients share files in
//! the sense of `docs/design/0008-shared-files.md`, and opens wait for notifications (`sharing`).
//! In other runs, clients open files for reading only. Clients write no data in any run.

use super::cluster::Cluster;
use super::sharing::Handle;
use crate::names::Names;
use crate::operation::Op;
use crate::random::Random;
use crate::witness::InstanceId;
use skep_types::codec::{Bytes, Codec};
use skep_types::{FileKind, InodeId};
use skep_wire::file_locks::{LockKind, LockMode, LockRequest, SetLock};
use skep_wire::limits::LOCK_END;
use skep_wire::metadata as md;

const NAMES: &[&str] = &["a", "b", "c", "d", "e", "f"];
/// The operation with this number and all operations with a higher number only read.
const FIRST_READ: u64 = 80;
/// Number of recent directories and files that the workload uses.
const WORKING_SET: usize = 6;

impl Names for Cluster {
    fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    fn name(&mut self) -> Bytes {
        let name = self.random.index(NAMES.len());
        NAMES[name].as_bytes().into()
    }

    fn any_directory(&mut self) -> InodeId {
        let is_root = self.random.percent(40);
        let known = &self.directories[self.directories.len().saturating_sub(WORKING_SET)..];
        self.random.pick(known).filter(|_| !is_root).unwrap_or(InodeId::ROOT)
    }

    fn any_file(&mut self) -> InodeId {
        let known = &self.files[self.files.len().saturating_sub(WORKING_SET)..];
        self.random.pick(known).unwrap_or(InodeId::ROOT)
    }
}

impl Cluster {
    /// Begins the next operation of a task.
    pub(super) fn next_operation(&mut self, client: usize, task: usize) {
        if !self.is_busy || self.clients[client].tasks[task].is_some() {
            return;
        }
        let is_durable = self.random.percent(15);
        let least = if self.only_reads.contains(&self.now) { FIRST_READ } else { 0 };
        let op = match self.random.within(least, 99) {
            0..16 => self.create(),
            16..24 => Op::MakeDirectory(md::MakeDirectory {
                directory: self.any_directory(),
                name: self.name(),
                new: new_inode(0o755),
            }),
            24..30 => self.link(),
            30..40 => self.unlink(),
            40..44 => self.remove_directory(),
            44..52 => self.rename(),
            52..56 => Op::SetXattr(md::SetXattr {
                inode: self.any_file(),
                name: b"user.x"[..].into(),
                value: self.random.bits().to_le_bytes()[..].into(),
                mode: md::XattrMode::Any,
                clear_set_group_id: false,
            }),
            56..64 => self.open_file(),
            64..80 => self.use_open(client),
            80..92 => Op::Lookup(md::Lookup { directory: self.any_directory(), name: self.name() }),
            _ => Op::GetAttributes(md::GetAttributes { inode: self.any_file() }),
        };
        self.begin_operation(client, task, op, is_durable);
    }

    fn open_file(&mut self) -> Op {
        Op::Open(md::Open {
            inode: self.any_file(),
            open: self.open_mode(),
            truncate: false,
            must_have_name: true,
            inline_limit: 0,
        })
    }

    /// Returns the mode in which a client opens a file.
    fn open_mode(&mut self) -> md::OpenMode {
        match self.knobs.shares_files && self.random.percent(40) {
            true => md::OpenMode::Write,
            false => md::OpenMode::Read,
        }
    }

    fn create(&mut self) -> Op {
        Op::Create(md::Create {
            directory: self.any_directory(),
            name: self.name(),
            kind: FileKind::Regular,
            new: new_inode(0o644),
            device: 0,
            exclusive: self.random.percent(50),
            open: match self.random.index(2) {
                0 => md::OpenMode::No,
                _ => self.open_mode(),
            },
            pattern: None,
        })
    }

    /// Returns a lock, an unlock or a close of a file that the client has open.
    fn use_open(&mut self, client: usize) -> Op {
        let handles = self.clients[client].handles.len();
        if handles == 0 {
            return Op::GetAttributes(md::GetAttributes { inode: InodeId::ROOT });
        }
        let chosen = self.random.index(handles);
        let inode = self.clients[client].handles[chosen].inode;
        if self.random.percent(25) {
            let process = &mut self.clients[client];
            let handle = process.handles.remove(chosen);
            let open = handle.mode;
            process.closed.push(handle);
            return Op::Close(md::Close { inode, open, written: None });
        }
        if self.random.percent(20) {
            return Op::GetAttributes(md::GetAttributes { inode });
        }
        let modes = [None, Some(LockMode::Shared), Some(LockMode::Exclusive)];
        let start = self.random.below(4);
        let is_whole = self.random.percent(30);
        let lock = LockRequest {
            inode,
            kind: LockKind::Posix,
            owner: self.random.below(2),
            mode: modes[self.random.index(3)],
            start,
            end: if is_whole { LOCK_END } else { start + self.random.within(1, 4) },
            pid: 1,
        };
        Op::SetLock(SetLock { lock, wait: 0 })
    }

    /// Records the inodes and open handles in a reply, so that later operations can use them.
    pub(super) fn apply_reply(
        &mut self,
        client: usize,
        op: &Op,
        (instance, notifications_before): (Option<InstanceId>, usize),
        reply: &[u8],
    ) {
        match op {
            Op::Create(md::Create { open, .. }) | Op::Open(md::Open { open, .. }) => {
                let Ok(opened) = md::OpenReply::from_bytes(reply) else { return };
                let inode = opened.attributes.inode;
                if opened.attributes.kind != FileKind::Regular {
                    return;
                }
                self.files.retain(|it| *it != inode);
                self.files.push(inode);
                if let (true, Some(opened_by)) = (*open != md::OpenMode::No, instance) {
                    let is_shared = opened.is_shared;
                    let handle = Handle { inode, mode: *open, is_shared, opened_by };
                    self.keep_handle(client, handle, notifications_before);
                }
            }
            Op::MakeDirectory(_) => {
                if let Ok(made) = md::NewEntryReply::from_bytes(reply) {
                    self.directories.push(made.entry.inode);
                }
            }
            _ => {}
        }
    }
}

fn new_inode(permissions: u32) -> md::NewInode {
    md::NewInode { permissions, umask: 0o022, uid: 1, gid: 1 }
}

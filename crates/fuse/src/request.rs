//! From the bytes of one request to a [`Call`]: everything that an operation needs, owned by it.
//!
//! A call keeps no bytes of the transport's memory but those of a read or a write, so that an
//! operation whose caller was killed can go on by itself while the memory serves the next request.

// The `record!` macro makes its structs `pub`; this module is private to the crate.
#![allow(unreachable_pub)]

use crate::abi::{
    self, AllocateIn, CopyIn, CreateIn, FsyncIn, GetAttrIn, GetXattrIn, InHeader, IoctlIn, LinkIn,
    LockIn, MkDirIn, MkNodIn, Opcode, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SeekIn,
    SetAttrIn, SetXattrIn, WriteIn,
};
use crate::limits;
use ioctl::FsXattr;
use skep_client::{Allocation, FileLock, LockKind, LockMode, Sought};
use skep_client::{CreateRequest, HandleId, NewInode, OpenMode, SetAttributes, SetTime, XattrMode};
use skep_env::Buf;
use skep_types::codec::{Codec, Reader};
use skep_types::{FileKind, InodeId, Timestamp};

pub(crate) mod ioctl;
mod parts;
pub(crate) mod set_attr;

pub(crate) use parts::{
    Allocate, Copy, FlagsForm, Lock, Open, Read, Rename, RenameKind, Write, XattrChange,
};

/// One request, as a transport hands it over.
#[derive(Debug)]
pub(crate) struct Request {
    /// What it starts with.
    pub(crate) header: InHeader,
    /// The operation's fixed struct, perhaps with more behind it.
    pub(crate) arguments: Buf,
    /// Names and data.
    pub(crate) payload: Buf,
    /// Room for the reply.
    pub(crate) reply: Buf,
}

/// An operation to perform.
#[derive(Debug)]
pub(crate) enum Call {
    Lookup { directory: InodeId, name: Vec<u8> },
    Attributes { inode: InodeId, is_for_reading: bool },
    Statx { inode: InodeId },
    SetAttributes { change: SetAttributes, handle: Option<HandleId>, kill_privileges: bool },
    ReadLink { inode: InodeId },
    MakeSymlink { directory: InodeId, name: Vec<u8>, link_target: Vec<u8>, new: NewInode },
    MakeDirectory { directory: InodeId, name: Vec<u8>, new: NewInode },
    MakeNode { request: CreateRequest },
    Create { request: CreateRequest, is_exclusive: bool, appends: bool, is_synced: bool },
    CreateUnnamed { directory: InodeId, new: NewInode, mode: OpenMode, is_synced: bool },
    Unlink { directory: InodeId, name: Vec<u8> },
    RemoveDirectory { directory: InodeId, name: Vec<u8> },
    Rename { rename: Rename },
    Link { inode: InodeId, directory: InodeId, name: Vec<u8> },
    Open { open: Open },
    OpenDirectory { directory: InodeId },
    Read { read: Read },
    Write { write: Write },
    Allocate { allocate: Allocate },
    Seek { inode: InodeId, handle: HandleId, offset: u64, what: Sought },
    Copy { copy: Copy },
    Flush { handle: HandleId, owner: u64 },
    Close { handle: HandleId },
    Fsync { handle: HandleId },
    TestLock { lock: Lock },
    SetLock { lock: Lock, waits: bool },
    SyncNames,
    SyncAll,
    ReadDirectory { directory: InodeId, cursor: u64, max_bytes: u32, with_attributes: bool },
    GetXattr { inode: InodeId, name: Vec<u8>, max_bytes: u32 },
    SetXattr { change: XattrChange },
    ListXattrs { inode: InodeId, uid: u32, max_bytes: u32 },
    RemoveXattr { inode: InodeId, name: Vec<u8>, uid: u32 },
    StatFs,
    ReadFlags { inode: InodeId, form: FlagsForm, max_bytes: u32 },
    SetFlags { inode: InodeId, hands_down_project: bool, project: Option<u32> },
    Nothing,
}

impl Call {
    /// Whether its future may be dropped when its caller is killed. The others run to their end.
    pub(crate) fn may_be_dropped(&self) -> bool {
        matches!(
            self,
            Self::Lookup { .. }
                | Self::Attributes { .. }
                | Self::Statx { .. }
                | Self::ReadLink { .. }
                | Self::Read { .. }
                | Self::Write { .. }
                | Self::Allocate { .. }
                | Self::Seek { .. }
                | Self::Copy { .. }
                | Self::OpenDirectory { .. }
                | Self::ReadDirectory { .. }
                | Self::GetXattr { .. }
                | Self::ListXattrs { .. }
                | Self::ReadFlags { .. }
                | Self::StatFs
                | Self::TestLock { .. }
        )
    }
}

/// The first name in `bytes` and what follows its zero byte.
fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), i32> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(libc::EINVAL)?;
    match end {
        0 => Err(libc::EINVAL),
        _ => Ok((&bytes[..end], &bytes[end + 1..])),
    }
}

/// A name of an entry. The kernel lets FUSE file systems have longer ones than others have.
fn checked_name(name: &[u8]) -> Result<Vec<u8>, i32> {
    if name.len() > skep_types::MAX_NAME_BYTES {
        return Err(libc::ENAMETOOLONG);
    }
    Ok(name.to_vec())
}

fn inode(nodeid: u64) -> InodeId {
    InodeId::new(nodeid)
}

impl Request {
    /// A request as a read of `/dev/fuse` gives it, in one piece; `None` if it has no header.
    /// `SETXATTR` may have its short form.
    pub(crate) fn from_bytes(bytes: &Buf, reply: Buf, has_long_set_xattr: bool) -> Option<Self> {
        let header = InHeader::decode(&mut Reader::new(bytes.bytes())).ok()?;
        let len = match Opcode::from_number(header.opcode) {
            Some(Opcode::SetXattr) if !has_long_set_xattr => abi::SHORT_SET_XATTR_BYTES,
            opcode => opcode.map_or(0, Opcode::argument_bytes),
        };
        let end = abi::IN_HEADER_BYTES + len;
        let end = end.min(bytes.len());
        let arguments = bytes.slice(abi::IN_HEADER_BYTES..end);
        let payload = bytes.slice(end..bytes.len());
        Some(Self { header, arguments, payload, reply })
    }

    fn arguments<T: Codec>(&self) -> Result<T, i32> {
        T::decode(&mut Reader::new(self.arguments.bytes())).map_err(|_| libc::EINVAL)
    }

    fn name(&self) -> Result<Vec<u8>, i32> {
        checked_name(split_name(self.payload.bytes())?.0)
    }

    fn two_names(&self) -> Result<(Vec<u8>, Vec<u8>), i32> {
        let (first, rest) = split_name(self.payload.bytes())?;
        Ok((checked_name(first)?, checked_name(split_name(rest)?.0)?))
    }

    fn node(&self) -> InodeId {
        inode(self.header.nodeid)
    }

    fn new_inode(&self, mode: u32, umask: u32) -> NewInode {
        let (uid, gid) = (self.header.uid, self.header.gid);
        NewInode { permissions: mode & 0o7777, umask, uid, gid }
    }

    /// The operation that is asked for.
    ///
    /// # Errors
    /// The error number to answer with: `ENOSYS` for what Skep leaves to the kernel.
    pub(crate) fn parse(&self) -> Result<Call, i32> {
        let opcode = Opcode::from_number(self.header.opcode).ok_or(libc::ENOSYS)?;
        Ok(match opcode {
            Opcode::Lookup => Call::Lookup { directory: self.node(), name: self.name()? },
            Opcode::GetAttr => {
                let arguments: GetAttrIn = self.arguments()?;
                let is_for_reading = arguments.flags & abi::GETATTR_HANDLE != 0;
                Call::Attributes { inode: self.node(), is_for_reading }
            }
            Opcode::StatX => Call::Statx { inode: self.node() },
            Opcode::SetAttr => self.set_attributes()?,
            Opcode::ReadLink => Call::ReadLink { inode: self.node() },
            Opcode::Symlink => {
                let (name, rest) = split_name(self.payload.bytes())?;
                let (name, link_target) = (checked_name(name)?, split_name(rest)?.0.to_vec());
                let new = self.new_inode(0o777, 0);
                Call::MakeSymlink { directory: self.node(), name, link_target, new }
            }
            Opcode::MkDir => {
                let arguments: MkDirIn = self.arguments()?;
                let new = self.new_inode(arguments.mode, arguments.umask);
                Call::MakeDirectory { directory: self.node(), name: self.name()?, new }
            }
            Opcode::MkNod => self.make_node()?,
            Opcode::Create => self.create()?,
            // The name that comes with it is the kernel's own.
            Opcode::TmpFile => {
                let arguments: CreateIn = self.arguments()?;
                let new = self.new_inode(arguments.mode, arguments.umask);
                let mode = open_mode(arguments.flags);
                let is_synced = has_flag(arguments.flags, libc::O_DSYNC);
                Call::CreateUnnamed { directory: self.node(), new, mode, is_synced }
            }
            Opcode::Unlink => Call::Unlink { directory: self.node(), name: self.name()? },
            Opcode::RmDir => Call::RemoveDirectory { directory: self.node(), name: self.name()? },
            Opcode::Rename => {
                let arguments: RenameIn = self.arguments()?;
                self.rename(arguments.new_directory, 0)?
            }
            Opcode::Rename2 => {
                let arguments: Rename2In = self.arguments()?;
                self.rename(arguments.new_directory, arguments.flags)?
            }
            Opcode::Link => {
                let arguments: LinkIn = self.arguments()?;
                let old = inode(arguments.old_nodeid);
                Call::Link { inode: old, directory: self.node(), name: self.name()? }
            }
            Opcode::Open
            | Opcode::Read
            | Opcode::Write
            | Opcode::Flush
            | Opcode::Release
            | Opcode::Fsync => self.file_call(opcode)?,
            Opcode::GetLock => Call::TestLock { lock: self.lock()? },
            Opcode::SetLock => Call::SetLock { lock: self.lock()?, waits: false },
            Opcode::SetLockWait => Call::SetLock { lock: self.lock()?, waits: true },
            Opcode::FAllocate => self.allocate()?,
            Opcode::LSeek => self.seek()?,
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                self.copy(opcode == Opcode::CopyFileRange64)?
            }
            Opcode::FsyncDir => Call::SyncNames,
            Opcode::SyncFs => Call::SyncAll,
            Opcode::OpenDir => Call::OpenDirectory { directory: self.node() },
            Opcode::ReadDir | Opcode::ReadDirPlus => {
                let arguments: ReadIn = self.arguments()?;
                Call::ReadDirectory {
                    directory: self.node(),
                    cursor: arguments.offset,
                    max_bytes: arguments.size.min(self.reply.len() as u32),
                    with_attributes: opcode == Opcode::ReadDirPlus,
                }
            }
            Opcode::GetXattr | Opcode::SetXattr | Opcode::ListXattr | Opcode::RemoveXattr => {
                self.xattr_call(opcode)?
            }
            Opcode::Ioctl => self.ioctl()?,
            Opcode::StatFs => Call::StatFs,
            Opcode::Destroy | Opcode::ReleaseDir => Call::Nothing,
            // Answered by the transports, before an operation is thought of.
            Opcode::Init
            | Opcode::Forget
            | Opcode::BatchForget
            | Opcode::Interrupt
            | Opcode::NotifyReply => return Err(libc::EINVAL),
            // What the kernel does itself once it is told that nobody else does: access by
            // permission bits.
            Opcode::Access
            | Opcode::Bmap
            | Opcode::Poll
            | Opcode::SetupMapping
            | Opcode::RemoveMapping => return Err(libc::ENOSYS),
        })
    }

    /// The kernel lets no other modes through to FUSE (6.18): shifting what follows in a file by a
    /// part of a stripe would move all of it.
    fn allocate(&self) -> Result<Call, i32> {
        let arguments: AllocateIn = self.arguments()?;
        let end = arguments.offset.checked_add(arguments.length).ok_or(libc::EFBIG)?;
        let mode = arguments.mode as i32;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
            libc::FALLOC_FL_PUNCH_HOLE => Allocation::Punch,
            _ => return Err(libc::EOPNOTSUPP),
        };
        let allocate = Allocate {
            inode: self.node(),
            handle: HandleId::new(arguments.handle),
            range: arguments.offset..end,
            what,
            keeps_size,
            uid: self.header.uid,
        };
        Ok(Call::Allocate { allocate })
    }

    fn seek(&self) -> Result<Call, i32> {
        let arguments: SeekIn = self.arguments()?;
        let what = match arguments.whence as i32 {
            libc::SEEK_DATA => Sought::Data,
            libc::SEEK_HOLE => Sought::Hole,
            _ => return Err(libc::EINVAL),
        };
        let (handle, offset) = (HandleId::new(arguments.handle), arguments.offset);
        Ok(Call::Seek { inode: self.node(), handle, offset, what })
    }

    fn copy(&self, is_long: bool) -> Result<Call, i32> {
        let arguments: CopyIn = self.arguments()?;
        if arguments.flags != 0 {
            return Err(libc::EINVAL);
        }
        let copy = Copy {
            from: (HandleId::new(arguments.handle), arguments.offset),
            inode: inode(arguments.to_node),
            to: (HandleId::new(arguments.to_handle), arguments.to_offset),
            length: arguments.length,
            uid: self.header.uid,
            is_long,
        };
        Ok(Call::Copy { copy })
    }

    fn set_attributes(&self) -> Result<Call, i32> {
        let arguments: SetAttrIn = self.arguments()?;
        let has = |bit: u32| arguments.valid & bit != 0;
        let time = |set: u32, now: u32, seconds: u64, nanoseconds: u32| {
            let at = Timestamp { seconds: seconds as i64, nanoseconds };
            has(set).then(|| SetTime { now: has(now), at })
        };
        let change = SetAttributes {
            inode: self.node(),
            permissions: has(set_attr::MODE).then_some(arguments.mode & 0o7777),
            uid: has(set_attr::UID).then_some(arguments.uid),
            gid: has(set_attr::GID).then_some(arguments.gid),
            project: None,
            hands_down_project: None,
            size: has(set_attr::SIZE).then_some(arguments.size),
            accessed: time(
                set_attr::ATIME,
                set_attr::ATIME_NOW,
                arguments.atime,
                arguments.atime_nanoseconds,
            ),
            modified: time(
                set_attr::MTIME,
                set_attr::MTIME_NOW,
                arguments.mtime,
                arguments.mtime_nanoseconds,
            ),
        };
        // A change of owner clears the bits too, and the kernel leaves that to us. Of one that
        // changes neither user nor group it tells nothing else at all.
        let owner = has(set_attr::UID | set_attr::GID);
        let is_empty = !has(set_attr::ALL_VALUES);
        let kill_privileges =
            change.permissions.is_none() && (owner || is_empty || has(set_attr::KILL_SUIDGID));
        let handle = has(set_attr::HANDLE).then_some(HandleId::new(arguments.handle));
        Ok(Call::SetAttributes { change, handle, kill_privileges })
    }

    fn make_node(&self) -> Result<Call, i32> {
        let arguments: MkNodIn = self.arguments()?;
        let kind = FileKind::from_mode(arguments.mode).ok_or(libc::EINVAL)?;
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(libc::EINVAL);
        }
        Ok(Call::MakeNode {
            request: CreateRequest {
                directory: self.node(),
                name: self.name()?.into(),
                kind,
                new: self.new_inode(arguments.mode, arguments.umask),
                device: abi::unpack_device(arguments.device),
                exclusive: true,
                open: OpenMode::No,
                pattern: None,
            },
        })
    }

    fn create(&self) -> Result<Call, i32> {
        let arguments: CreateIn = self.arguments()?;
        Ok(Call::Create {
            request: CreateRequest {
                directory: self.node(),
                name: self.name()?.into(),
                kind: FileKind::Regular,
                new: self.new_inode(arguments.mode, arguments.umask),
                device: 0,
                exclusive: true,
                open: open_mode(arguments.flags),
                pattern: None,
            },
            is_exclusive: has_flag(arguments.flags, libc::O_EXCL),
            appends: has_flag(arguments.flags, libc::O_APPEND),
            is_synced: has_flag(arguments.flags, libc::O_DSYNC),
        })
    }

    fn rename(&self, new_directory: u64, flags: u32) -> Result<Call, i32> {
        let has_whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let kind = match flags & !libc::RENAME_WHITEOUT {
            0 => RenameKind::Replace,
            libc::RENAME_NOREPLACE => RenameKind::OnlyIfFree,
            libc::RENAME_EXCHANGE if !has_whiteout => RenameKind::Exchange,
            _ => return Err(libc::EINVAL),
        };
        let (from_name, to_name) = self.two_names()?;
        Ok(Call::Rename {
            rename: Rename {
                from_directory: self.node(),
                from_name,
                to_directory: inode(new_directory),
                to_name,
                kind,
                whiteout: has_whiteout.then(|| self.new_inode(0, 0)),
            },
        })
    }

    fn file_call(&self, opcode: Opcode) -> Result<Call, i32> {
        Ok(match opcode {
            Opcode::Open => {
                let arguments: OpenIn = self.arguments()?;
                let open = Open {
                    inode: self.node(),
                    mode: open_mode(arguments.flags),
                    truncate: has_flag(arguments.flags, libc::O_TRUNC),
                    appends: has_flag(arguments.flags, libc::O_APPEND),
                    is_synced: has_flag(arguments.flags, libc::O_DSYNC),
                    kill_privileges: arguments.open_flags & abi::OPEN_KILL_SUIDGID != 0,
                };
                Call::Open { open }
            }
            Opcode::Read => {
                let arguments: ReadIn = self.arguments()?;
                let size = arguments.size as usize;
                if size > self.reply.len().min(limits::MAX_IO_BYTES) {
                    return Err(libc::EINVAL);
                }
                Call::Read {
                    read: Read {
                        handle: HandleId::new(arguments.handle),
                        offset: arguments.offset,
                        into: self.reply.slice(0..size),
                        is_direct: has_flag(arguments.flags, libc::O_DIRECT),
                    },
                }
            }
            Opcode::Write => {
                let arguments: WriteIn = self.arguments()?;
                let size = arguments.size as usize;
                if size > self.payload.len() {
                    return Err(libc::EINVAL);
                }
                Call::Write {
                    write: Write {
                        inode: self.node(),
                        handle: HandleId::new(arguments.handle),
                        offset: arguments.offset,
                        data: self.payload.slice(0..size),
                        appends: appends(&arguments),
                        is_direct: has_flag(arguments.flags, libc::O_DIRECT)
                            && arguments.write_flags & abi::WRITE_CACHE == 0,
                        is_synced: has_flag(arguments.flags, libc::O_DSYNC),
                        kill_privileges: arguments.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                    },
                }
            }
            Opcode::Fsync => {
                let arguments: FsyncIn = self.arguments()?;
                Call::Fsync { handle: HandleId::new(arguments.handle) }
            }
            // `fuse_flush_in` has handle and owner where `fuse_release_in` has them.
            Opcode::Flush => {
                let arguments: ReleaseIn = self.arguments()?;
                let owner = arguments.lock_owner;
                Call::Flush { handle: HandleId::new(arguments.handle), owner }
            }
            _ => {
                let arguments: ReleaseIn = self.arguments()?;
                Call::Close { handle: HandleId::new(arguments.handle) }
            }
        })
    }

    fn lock(&self) -> Result<Lock, i32> {
        let arguments: LockIn = self.arguments()?;
        let mode = match arguments.kind as i32 {
            libc::F_RDLCK => Some(LockMode::Shared),
            libc::F_WRLCK => Some(LockMode::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(libc::EINVAL),
        };
        let end = arguments.end.checked_add(1).ok_or(libc::EINVAL)?;
        let kind = match arguments.lock_flags & abi::LOCK_IS_FLOCK {
            0 => LockKind::Posix,
            _ => LockKind::Flock,
        };
        let (owner, pid, range) = (arguments.owner, arguments.pid, arguments.start..end);
        let lock = FileLock { kind, owner, mode, range, pid };
        Ok(Lock { inode: self.node(), handle: HandleId::new(arguments.handle), lock })
    }

    /// The project of an inode and whether a directory hands it down; other flags there aren't.
    fn ioctl(&self) -> Result<Call, i32> {
        let arguments: IoctlIn = self.arguments()?;
        let (inode, max_bytes) = (self.node(), arguments.out_bytes);
        let mut payload = Reader::new(self.payload.bytes());
        let only = |flags: u32, known: u32| match flags & !known {
            0 => Ok(flags != 0),
            _ => Err(libc::EOPNOTSUPP),
        };
        Ok(match arguments.command {
            ioctl::GET_FLAGS => Call::ReadFlags { inode, form: FlagsForm::Number, max_bytes },
            ioctl::GET_FS_XATTR => Call::ReadFlags { inode, form: FlagsForm::FsXattr, max_bytes },
            ioctl::SET_FLAGS => {
                let flags = u32::decode(&mut payload).map_err(|_| libc::EINVAL)?;
                let hands_down_project = only(flags, ioctl::FLAG_PROJECT_INHERIT)?;
                Call::SetFlags { inode, hands_down_project, project: None }
            }
            ioctl::SET_FS_XATTR => {
                let wanted = FsXattr::decode(&mut payload).map_err(|_| libc::EINVAL)?;
                if wanted.extent_bytes != 0 || wanted.copy_extent_bytes != 0 {
                    return Err(libc::EOPNOTSUPP);
                }
                let hands_down_project = only(wanted.flags, ioctl::XFLAG_PROJECT_INHERIT)?;
                Call::SetFlags { inode, hands_down_project, project: Some(wanted.project) }
            }
            _ => return Err(libc::ENOTTY),
        })
    }

    fn xattr_call(&self, opcode: Opcode) -> Result<Call, i32> {
        let inode = self.node();
        Ok(match opcode {
            Opcode::GetXattr => {
                let arguments: GetXattrIn = self.arguments()?;
                Call::GetXattr { inode, name: self.name()?, max_bytes: arguments.size }
            }
            Opcode::ListXattr => {
                let arguments: GetXattrIn = self.arguments()?;
                Call::ListXattrs { inode, uid: self.header.uid, max_bytes: arguments.size }
            }
            Opcode::SetXattr => {
                let mut fixed = self.arguments.bytes().to_vec();
                fixed.resize(fixed.len().max(Opcode::SetXattr.argument_bytes()), 0);
                let arguments = SetXattrIn::decode(&mut Reader::new(&fixed));
                let arguments = arguments.map_err(|_| libc::EINVAL)?;
                let (name, value) = split_name(self.payload.bytes())?;
                let value = value.get(..arguments.size as usize).ok_or(libc::EINVAL)?;
                const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
                let mode = match arguments.flags as i32 {
                    0 => Some(XattrMode::Any),
                    libc::XATTR_CREATE => Some(XattrMode::Create),
                    libc::XATTR_REPLACE => Some(XattrMode::Replace),
                    BOTH => None,
                    _ => return Err(libc::EINVAL),
                };
                let clear_set_group_id = arguments.more_flags & abi::SET_XATTR_KILL_SGID != 0;
                let (name, value, uid) = (name.to_vec(), value.to_vec(), self.header.uid);
                Call::SetXattr {
                    change: XattrChange { inode, name, value, mode, clear_set_group_id, uid },
                }
            }
            _ => Call::RemoveXattr { inode, name: self.name()?, uid: self.header.uid },
        })
    }
}

/// Takes any bytes as a request of the kernel: for fuzzing. Says whether they ask for an operation.
pub fn is_request(bytes: &[u8]) -> bool {
    let request = Request::from_bytes(&Buf::copy_of(bytes), Buf::new(limits::MAX_IO_BYTES), true);
    request.is_some_and(|request| request.parse().is_ok())
}

/// Whether all bits of an `open` flag are set: `O_SYNC` contains `O_DSYNC`.
fn has_flag(flags: u32, flag: i32) -> bool {
    flags & flag as u32 == flag as u32
}

/// Whether a write goes to the file's end, wherever that is. Not what the page cache writes back;
/// nor direct I/O, of which the kernel sends several parts at once that must keep their places.
fn appends(write: &WriteIn) -> bool {
    has_flag(write.flags, libc::O_APPEND)
        && !has_flag(write.flags, libc::O_DIRECT)
        && write.write_flags & abi::WRITE_CACHE == 0
}

fn open_mode(flags: u32) -> OpenMode {
    if flags as i32 & libc::O_ACCMODE == libc::O_RDONLY { OpenMode::Read } else { OpenMode::Write }
}

#[cfg(test)]
mod tests;

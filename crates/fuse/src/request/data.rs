//! Requests on a file's bytes: read, write, allocate, seek for holes, copy.
//!
//! Owns the kernel's argument structs of these requests and their parsing. `ops::data` and
//! `ops::allocation` perform the operations.

use super::{RawRequest, has_flag, inode};
use crate::abi::Opcode;
use crate::limits;
use skep_client::{Allocation, HandleId, SeekTarget};
use skep_env::Buf;
use skep_types::InodeId;
use skep_types::codec::record;
use std::ops::Range;

/// Flag in [`WriteIn::write_flags`]: the request is a write-back of the page cache. Its handle is
/// any open handle of the file.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;

/// Flag in [`ReadIn::read_flags`]: the request has a lock owner. The kernel sets it for each read
/// that bypasses the page cache, and for no other read (Linux 6.18: `fuse_send_read`).
const READ_LOCKOWNER: u32 = 1 << 1;

/// Flag in [`WriteIn::write_flags`]: the daemon must clear the set-user-id and set-group-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;

record! {
    /// `fuse_read_in`.
    pub struct ReadIn {
        pub handle: u64,
        pub offset: u64,
        pub size: u32,
        pub read_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_write_in`.
    pub struct WriteIn {
        pub handle: u64,
        pub offset: u64,
        pub size: u32,
        pub write_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_fallocate_in`.
    pub struct AllocateIn {
        pub handle: u64,
        pub offset: u64,
        pub length: u64,
        pub mode: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_lseek_in`.
    pub struct SeekIn {
        pub handle: u64,
        pub offset: u64,
        pub whence: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_copy_file_range_in`. The node in the header is the source.
    pub struct CopyIn {
        pub handle: u64,
        pub offset: u64,
        pub to_node: u64,
        pub to_handle: u64,
        pub to_offset: u64,
        pub length: u64,
        pub flags: u64,
    }
}

/// A request on the bytes of a file.
#[derive(Debug)]
pub(crate) enum DataRequest {
    Read(Read),
    Write(Write),
    Allocate(Allocate),
    Seek(Seek),
    Copy(Copy),
}

/// The arguments of a read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) handle: HandleId,
    pub(crate) offset: u64,
    /// The part of the reply buffer that the read fills.
    pub(crate) into: Buf,
    /// Whether the handle was opened with `O_DIRECT`. If true, the kernel caches none of the bytes.
    pub(crate) is_direct: bool,
    /// Whether the kernel puts the bytes into its page cache. False for each read that bypasses the
    /// page cache, even if the handle was opened without `O_DIRECT`.
    pub(crate) fills_pages: bool,
}

/// The arguments of a write.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    pub(crate) offset: u64,
    pub(crate) data: Buf,
    /// Whether the write goes to the current end of the file. If true, `offset` is the end that the
    /// kernel has cached, which is outdated if other mounts have appended since.
    pub(crate) appends: bool,
    /// Whether the handle was opened with `O_DIRECT` and this is not a write-back of the page
    /// cache.
    pub(crate) is_direct: bool,
    /// Whether this is a write-back of the page cache.
    pub(crate) is_write_back: bool,
    /// Whether the handle was opened with `O_SYNC` or `O_DSYNC`.
    pub(crate) is_synced: bool,
    pub(crate) kill_privileges: bool,
}

/// The arguments of `fallocate`. The call allocates space or punches a hole.
#[derive(Debug)]
pub(crate) struct Allocate {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    pub(crate) range: Range<u64>,
    pub(crate) kind: Allocation,
    pub(crate) keeps_size: bool,
    pub(crate) uid: u32,
}

/// The arguments of `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seek {
    pub(crate) inode: InodeId,
    pub(crate) handle: HandleId,
    pub(crate) offset: u64,
    pub(crate) target: SeekTarget,
}

/// The arguments of `copy_file_range`.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) from: (HandleId, u64),
    /// The inode of the destination file, whose handle is in `to`.
    pub(crate) inode: InodeId,
    pub(crate) to: (HandleId, u64),
    pub(crate) length: u64,
    pub(crate) uid: u32,
    /// Whether the reply contains the number of copied bytes as a 64-bit number. `false` means that
    /// the number has 32 bits.
    pub(crate) is_long: bool,
}

impl DataRequest {
    pub(super) fn parse(opcode: Opcode, raw: &RawRequest) -> Result<Self, i32> {
        match opcode {
            Opcode::Read => parse_read(raw),
            Opcode::Write => parse_write(raw),
            Opcode::FAllocate => parse_allocate(raw),
            Opcode::LSeek => parse_seek(raw),
            Opcode::CopyFileRange => parse_copy(raw, false),
            Opcode::CopyFileRange64 => parse_copy(raw, true),
            other => other.is_of_another_family(),
        }
    }

    /// Whether the worker may drop the operation's future when the caller is killed. Always true,
    /// because [`crate::FileSystem`] requires that reads and changes of a file's bytes are
    /// cancel-safe.
    pub(super) fn may_be_dropped(&self) -> bool {
        true
    }
}

impl DataRequest {
    /// Whether the request may be asynchronous direct I/O. The thread that submitted such a request
    /// may end before the reply.
    pub(super) fn may_be_asynchronous(&self) -> bool {
        match self {
            Self::Read(read) => read.is_direct,
            Self::Write(_) => true,
            Self::Allocate(_) | Self::Seek(_) | Self::Copy(_) => false,
        }
    }
}

fn parse_read(raw: &RawRequest) -> Result<DataRequest, i32> {
    let arguments: ReadIn = raw.arguments()?;
    let size = arguments.size as usize;
    if size > raw.reply.len().min(limits::MAX_IO_BYTES) {
        return Err(libc::EINVAL);
    }
    Ok(DataRequest::Read(Read {
        handle: HandleId::new(arguments.handle),
        offset: arguments.offset,
        into: raw.reply.slice(0..size),
        is_direct: has_flag(arguments.flags, libc::O_DIRECT),
        fills_pages: arguments.read_flags & READ_LOCKOWNER == 0,
    }))
}

fn parse_write(raw: &RawRequest) -> Result<DataRequest, i32> {
    let arguments: WriteIn = raw.arguments()?;
    let size = arguments.size as usize;
    if size > raw.payload.len() {
        return Err(libc::EINVAL);
    }
    let is_write_back = arguments.write_flags & WRITE_CACHE != 0;
    Ok(DataRequest::Write(Write {
        inode: raw.node(),
        handle: HandleId::new(arguments.handle),
        offset: arguments.offset,
        data: raw.payload.slice(0..size),
        appends: appends(&arguments),
        is_direct: has_flag(arguments.flags, libc::O_DIRECT) && !is_write_back,
        is_write_back,
        is_synced: has_flag(arguments.flags, libc::O_DSYNC),
        kill_privileges: arguments.write_flags & WRITE_KILL_SUIDGID != 0,
    }))
}

/// Whether a write goes to the current end of the file instead of to its offset. A write-back of
/// the page cache always goes to its offset.
fn appends(write: &WriteIn) -> bool {
    has_flag(write.flags, libc::O_APPEND) && write.write_flags & WRITE_CACHE == 0
}

/// Parses `fallocate`. The kernel passes only the modes below to FUSE (Linux 6.18). Skep could not
/// serve `FALLOC_FL_COLLAPSE_RANGE` and `FALLOC_FL_INSERT_RANGE` cheaply, because they would move
/// all following bytes of the file between targets.
fn parse_allocate(raw: &RawRequest) -> Result<DataRequest, i32> {
    let arguments: AllocateIn = raw.arguments()?;
    let end = arguments.offset.checked_add(arguments.length).ok_or(libc::EFBIG)?;
    let mode = arguments.mode as i32;
    let kind = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Allocation::Reserve,
        libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero,
        libc::FALLOC_FL_PUNCH_HOLE => Allocation::Punch,
        _ => return Err(libc::EOPNOTSUPP),
    };
    Ok(DataRequest::Allocate(Allocate {
        inode: raw.node(),
        handle: HandleId::new(arguments.handle),
        range: arguments.offset..end,
        kind,
        keeps_size: mode & libc::FALLOC_FL_KEEP_SIZE != 0,
        uid: raw.header.uid,
    }))
}

fn parse_seek(raw: &RawRequest) -> Result<DataRequest, i32> {
    let arguments: SeekIn = raw.arguments()?;
    let target = match arguments.whence as i32 {
        libc::SEEK_DATA => SeekTarget::Data,
        libc::SEEK_HOLE => SeekTarget::Hole,
        _ => return Err(libc::EINVAL),
    };
    let (handle, offset) = (HandleId::new(arguments.handle), arguments.offset);
    Ok(DataRequest::Seek(Seek { inode: raw.node(), handle, offset, target }))
}

fn parse_copy(raw: &RawRequest, is_long: bool) -> Result<DataRequest, i32> {
    let arguments: CopyIn = raw.arguments()?;
    if arguments.flags != 0 {
        return Err(libc::EINVAL);
    }
    Ok(DataRequest::Copy(Copy {
        from: (HandleId::new(arguments.handle), arguments.offset),
        inode: inode(arguments.to_node),
        to: (HandleId::new(arguments.to_handle), arguments.to_offset),
        length: arguments.length,
        uid: raw.header.uid,
        is_long,
    }))
}

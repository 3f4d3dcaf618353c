//! Parses the bytes of one request of the kernel. The result is a [`Request`]: an operation with
//! its arguments.
//!
//! Each family of operations has one file. The file owns the kernel's argument structs of the
//! family, the family's request type and the parsing. It also decides whether the worker may drop
//! the future of a request. [`RawRequest::parse`] only selects the family, by the table of opcodes.
//! `ops` performs requests, and has one file for each family too.
//!
//! A parsed request owns its arguments, but the bytes of a read or a write are in the buffers of
//! the port. So an operation without such bytes can continue after its caller was killed, while the
//! port already serves the next request.

// The `record!` macro makes its structs `pub`, although these modules are private to the crate.
#![allow(unreachable_pub)]

pub(crate) mod attributes;
pub(crate) mod data;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod ioctl;
pub(crate) mod locks;
pub(crate) mod names;
mod set_attr;
pub(crate) mod xattrs;

use crate::abi::{Family, IN_HEADER_BYTES, InHeader, Opcode};
use crate::following::EntryNames;
use crate::limits;
use attributes::AttributeRequest;
use data::DataRequest;
use directories::DirectoryRequest;
use files::FileRequest;
use ioctl::IoctlRequest;
use locks::LockRequest;
use names::NameRequest;
use skep_client::{NewInode, OpenMode};
use skep_env::Buf;
use skep_types::InodeId;
use skep_types::codec::{Codec, Reader};
use xattrs::{SHORT_SET_XATTR_BYTES, XattrRequest};

/// One request in the form in which a transport receives it.
#[derive(Debug)]
pub(crate) struct RawRequest {
    pub(crate) header: InHeader,
    /// The arguments of the request. The arguments start with the operation's fixed struct, and
    /// more bytes may follow.
    pub(crate) arguments: Buf,
    /// The names and data of the request.
    pub(crate) payload: Buf,
    /// The buffer for the reply.
    pub(crate) reply: Buf,
}

/// A parsed request of the kernel.
#[derive(Debug)]
pub(crate) enum Request {
    Names(NameRequest),
    Files(FileRequest),
    Data(DataRequest),
    Locks(LockRequest),
    Attributes(AttributeRequest),
    Directories(DirectoryRequest),
    Xattrs(XattrRequest),
    Ioctl(IoctlRequest),
    /// The daemon replies without doing any work.
    NoWork,
}

impl Request {
    /// Whether the worker may drop the operation's future when its caller is killed. If the result
    /// is `false`, the operation runs to completion.
    pub(crate) fn may_be_dropped(&self) -> bool {
        match self {
            Self::Names(request) => request.may_be_dropped(),
            Self::Files(request) => request.may_be_dropped(),
            Self::Data(request) => request.may_be_dropped(),
            Self::Locks(request) => request.may_be_dropped(),
            Self::Attributes(request) => request.may_be_dropped(),
            Self::Directories(request) => request.may_be_dropped(),
            Self::Xattrs(request) => request.may_be_dropped(),
            Self::Ioctl(request) => request.may_be_dropped(),
            Self::NoWork => false,
        }
    }

    /// Returns the names of entries in the request.
    pub(crate) fn names(&self) -> EntryNames {
        match self {
            Self::Names(request) => request.names(),
            Self::Files(request) => request.names(),
            _ => EntryNames::default(),
        }
    }

    /// Whether the kernel may send this request between its first and its second attempt to open
    /// one name.
    pub(crate) fn may_be_part_of_open(&self) -> bool {
        match self {
            Self::Names(request) => {
                matches!(request, NameRequest::Lookup { .. } | NameRequest::ReadLink { .. })
            }
            Self::Attributes(request) => {
                matches!(request, AttributeRequest::Get { .. } | AttributeRequest::Statx { .. })
            }
            Self::Files(request) => matches!(request, FileRequest::Open(_)),
            _ => false,
        }
    }

    /// Whether a program may wait for the reply although the thread that sent the request has
    /// ended.
    pub(crate) fn may_be_asynchronous(&self) -> bool {
        matches!(self, Self::Data(request) if request.may_be_asynchronous())
    }
}

impl RawRequest {
    /// Splits the bytes of one read of `/dev/fuse` into header, arguments and payload. `None` means
    /// that the bytes contain no complete header. `has_long_set_xattr` states whether the kernel
    /// sends the long form of `SETXATTR`.
    pub(crate) fn from_bytes(bytes: &Buf, reply: Buf, has_long_set_xattr: bool) -> Option<Self> {
        let header = InHeader::decode(&mut Reader::new(&bytes.bytes())).ok()?;
        let len = match Opcode::from_number(header.opcode) {
            Some(Opcode::SetXattr) if !has_long_set_xattr => SHORT_SET_XATTR_BYTES,
            opcode => opcode.map_or(0, Opcode::argument_bytes),
        };
        let end = (IN_HEADER_BYTES + len).min(bytes.len());
        let arguments = bytes.slice(IN_HEADER_BYTES..end);
        let payload = bytes.slice(end..bytes.len());
        Some(Self { header, arguments, payload, reply })
    }

    /// Parses the request into an operation with its arguments.
    ///
    /// # Errors
    /// Returns the error number for the reply. This is `ENOSYS` for operations that Skep leaves to
    /// the kernel.
    pub(crate) fn parse(&self) -> Result<Request, i32> {
        let opcode = Opcode::from_number(self.header.opcode).ok_or(libc::ENOSYS)?;
        Ok(match opcode.family() {
            Family::Names => Request::Names(NameRequest::parse(opcode, self)?),
            Family::Files => Request::Files(FileRequest::parse(opcode, self)?),
            Family::Data => Request::Data(DataRequest::parse(opcode, self)?),
            Family::Locks => Request::Locks(LockRequest::parse(opcode, self)?),
            Family::Attributes => Request::Attributes(AttributeRequest::parse(opcode, self)?),
            Family::Directories => Request::Directories(DirectoryRequest::parse(opcode, self)?),
            Family::Xattrs => Request::Xattrs(XattrRequest::parse(opcode, self)?),
            Family::Ioctl => Request::Ioctl(IoctlRequest::parse(opcode, self)?),
            Family::NoWork => Request::NoWork,
            Family::Transport => return Err(libc::EINVAL),
            Family::KernelsOwn => return Err(libc::ENOSYS),
        })
    }

    fn arguments<T: Codec>(&self) -> Result<T, i32> {
        T::decode(&mut Reader::new(&self.arguments.bytes())).map_err(|_| libc::EINVAL)
    }

    fn name(&self) -> Result<Vec<u8>, i32> {
        checked_name(split_name(&self.payload.bytes())?.0)
    }

    fn two_names(&self) -> Result<(Vec<u8>, Vec<u8>), i32> {
        let payload = self.payload.bytes();
        let (first, rest) = split_name(&payload)?;
        Ok((checked_name(first)?, checked_name(split_name(rest)?.0)?))
    }

    fn node(&self) -> InodeId {
        inode(self.header.nodeid)
    }

    fn new_inode(&self, mode: u32, umask: u32) -> NewInode {
        let (uid, gid) = (self.header.uid, self.header.gid);
        NewInode { permissions: mode & 0o7777, umask, uid, gid }
    }
}

/// Whether `bytes` is a request of the kernel that Skep can parse. `bytes` may be arbitrary, since
/// fuzzers call this function.
pub fn is_request(bytes: &[u8]) -> bool {
    let reply = Buf::new(limits::MAX_IO_BYTES);
    let request = RawRequest::from_bytes(&Buf::copy_of(bytes), reply, true);
    request.is_some_and(|request| request.parse().is_ok())
}

/// Returns the first name in `bytes`, and the bytes after the zero byte that ends the name.
fn split_name(bytes: &[u8]) -> Result<(&[u8], &[u8]), i32> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(libc::EINVAL)?;
    match end {
        0 => Err(libc::EINVAL),
        _ => Ok((&bytes[..end], &bytes[end + 1..])),
    }
}

/// Checks the length of an entry's name, and returns the name. The kernel allows longer names on
/// FUSE than on other file systems.
fn checked_name(name: &[u8]) -> Result<Vec<u8>, i32> {
    if name.len() > skep_types::MAX_NAME_BYTES {
        return Err(libc::ENAMETOOLONG);
    }
    Ok(name.to_vec())
}

fn inode(nodeid: u64) -> InodeId {
    InodeId::new(nodeid)
}

/// Whether all bits of the `open` flag `flag` are set in `flags`. One common bit is not enough,
/// since `O_SYNC` contains the bit of `O_DSYNC`.
fn has_flag(flags: u32, flag: i32) -> bool {
    flags & flag as u32 == flag as u32
}

fn open_mode(flags: u32) -> OpenMode {
    if flags as i32 & libc::O_ACCMODE == libc::O_RDONLY { OpenMode::Read } else { OpenMode::Write }
}

#[cfg(test)]
mod tests;

//! The first exchange of a mount with the kernel, in which both agree on version, limits and
//! features.

use crate::abi::{InHeader, OUT_HEADER_BYTES, Opcode, OutHeader};
use crate::limits;
use crate::transport::{TransportKind, kernel};
use skep_env::Buf;
use skep_types::codec::{Codec, Reader, Writer, record};
use skep_types::{Error, ErrorCode, Result};
use std::os::fd::OwnedFd;

mod flags;

use flags as flag;

/// Major version of the kernel's FUSE interface, the same for all kernels.
const MAJOR: u32 = 7;
/// The newest minor version of the interface whose structs this crate declares.
const MINOR: u32 = 45;
/// The oldest minor version that a mount serves (Linux 4.20). From this version on, no struct has a
/// short form for old kernels.
const OLDEST_MINOR: u32 = 28;
/// Minimum length in bytes of a buffer for reading `/dev/fuse`. The kernel refuses to read into a
/// shorter buffer.
const MIN_READ_BYTES: usize = 8192;

/// The features that Skep requests, if the kernel offers them. Three features are left out on
/// purpose:
/// - `WRITEBACK_CACHE`: the kernel would ignore the file sizes and times in the daemon's replies.
/// - `EXPLICIT_INVAL_DATA`: the kernel would keep cached pages until a mount invalidates them, and
///   no mount does this at every change.
/// - `NO_OPENDIR_SUPPORT`: the kernel would keep a cached listing until the directory's
///   modification time changes, and programs may set this time back to an earlier value.
///
/// The kernel caches targets of symbolic links. The target of a link never changes, and a new link
/// has a new inode id.
const REQUESTED_FLAGS: u64 = flag::ASYNC_READ
    | flag::POSIX_LOCKS
    | flag::FLOCK_LOCKS
    | flag::ATOMIC_O_TRUNC
    | flag::EXPORT_SUPPORT
    | flag::BIG_WRITES
    | flag::AUTO_INVAL_DATA
    | flag::DO_READDIRPLUS
    | flag::READDIRPLUS_AUTO
    | flag::ASYNC_DIO
    | flag::PARALLEL_DIROPS
    | flag::MAX_PAGES
    | flag::CACHE_SYMLINKS
    | flag::DONT_MASK
    | flag::POSIX_ACL
    | flag::HANDLE_KILLPRIV_V2
    | flag::SETXATTR_EXT
    | flag::DIRECT_IO_ALLOW_MMAP
    | flag::INIT_EXT;

record! {
    /// `fuse_init_in`.
    pub struct InitIn {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
    }
}

record! {
    /// `fuse_init_out`.
    pub struct InitOut {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
        pub max_background: u16,
        pub congestion_threshold: u16,
        pub max_write: u32,
        pub time_granularity: u32,
        pub max_pages: u16,
        pub map_alignment: u16,
        pub flags2: u32,
        pub max_stack_depth: u32,
        pub request_timeout: u16,
        pub unused: u16,
        pub unused2: u64,
        pub unused3: u64,
        pub unused4: u32,
    }
}

fn protocol(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::VersionMismatch, what)
}

/// The features that both kernel and daemon use on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelFeatures {
    /// The transport that the mount uses.
    pub(crate) transport: TransportKind,
    /// Whether the kernel sends the long form of `SETXATTR`.
    pub(crate) has_long_set_xattr: bool,
    /// Whether programs can map files whose I/O bypasses the page cache.
    pub(crate) has_direct_mmap: bool,
}

/// Reads the kernel's first request and replies to it. Returns the features that both sides then
/// use. The kernel's read-ahead is then at most `read_ahead_bytes`, and at most 128 KiB
/// (`mount_point::set_read_ahead` raises it).
///
/// # Errors
/// - `VersionMismatch`: the kernel is too old, or its first request is not `INIT`.
/// - `Io`: the mount has ended already.
pub(crate) fn negotiate(
    fd: &OwnedFd,
    preferred: TransportKind,
    read_ahead_bytes: u32,
) -> Result<KernelFeatures> {
    let request = Buf::new(MIN_READ_BYTES);
    let len = loop {
        match kernel::read(fd, &request) {
            Ok(len) => break len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(Error::from(error).within("cannot read the kernel's request INIT"));
            }
        }
    };
    let (header, init) = parse(&request.bytes()[..len])?;
    let (reply, transport) = reply_to(&init, preferred, read_ahead_bytes);
    let mut w = Writer::new();
    let body = reply.to_bytes();
    let len = (OUT_HEADER_BYTES + body.len()) as u32;
    OutHeader { len, error: 0, unique: header.unique }.encode(&mut w);
    w.raw(&body);
    kernel::write(fd, &Buf::copy_of(&w.finish()))
        .map_err(|error| Error::from(error).within("cannot reply to the kernel's request INIT"))?;
    let has_long_set_xattr = u64::from(reply.flags) & flag::SETXATTR_EXT != 0;
    let flags = u64::from(reply.flags) | u64::from(reply.flags2) << 32;
    let has_direct_mmap = flags & flag::DIRECT_IO_ALLOW_MMAP != 0;
    Ok(KernelFeatures { transport, has_long_set_xattr, has_direct_mmap })
}

struct Offer {
    minor: u32,
    flags: u64,
}

fn parse(bytes: &[u8]) -> Result<(InHeader, Offer)> {
    let mut reader = Reader::new(bytes);
    let header = InHeader::decode(&mut reader)?;
    if Opcode::from_number(header.opcode) != Some(Opcode::Init) {
        let what = format!(
            "cannot mount: the kernel's first request is operation {}, not INIT",
            header.opcode
        );
        return Err(protocol(what));
    }
    let init = InitIn::decode(&mut reader)?;
    if init.major != MAJOR || init.minor < OLDEST_MINOR {
        let what = format!(
            "cannot mount: the kernel supports FUSE {}.{}, and Skep needs 7.{} (Linux 4.20) or \
             later",
            init.major, init.minor, OLDEST_MINOR
        );
        return Err(protocol(what));
    }
    let mut flags = u64::from(init.flags);
    if flags & flag::INIT_EXT != 0 {
        flags |= u64::from(u32::decode(&mut reader)?) << 32;
    }
    Ok((header, Offer { minor: init.minor, flags }))
}

fn reply_to(
    offer: &Offer,
    preferred: TransportKind,
    read_ahead_bytes: u32,
) -> (InitOut, TransportKind) {
    let mut flags = REQUESTED_FLAGS & offer.flags;
    let mut transport = TransportKind::Device;
    if preferred == TransportKind::Uring && offer.flags & flag::OVER_IO_URING != 0 {
        flags |= flag::OVER_IO_URING;
        transport = TransportKind::Uring;
    }
    let reply = InitOut {
        major: MAJOR,
        minor: offer.minor.min(MINOR),
        max_readahead: read_ahead_bytes,
        flags: flags as u32,
        max_background: limits::MAX_BACKGROUND,
        congestion_threshold: limits::CONGESTION_THRESHOLD,
        max_write: limits::MAX_IO_BYTES as u32,
        time_granularity: 1,
        max_pages: limits::MAX_IO_PAGES,
        map_alignment: 0,
        flags2: (flags >> 32) as u32,
        max_stack_depth: 0,
        request_timeout: 0,
        unused: 0,
        unused2: 0,
        unused3: 0,
        unused4: 0,
    };
    (reply, transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> Offer {
        Offer { minor: 99, flags }
    }

    #[test]
    fn mount_uses_only_features_that_the_kernel_offers() {
        let (reply, transport) = reply_to(&offer(flag::BIG_WRITES), TransportKind::Uring, 65_536);
        assert_eq!(reply.flags, flag::BIG_WRITES as u32);
        assert_eq!((reply.flags2, transport), (0, TransportKind::Device));
        assert_eq!((reply.minor, reply.max_readahead), (MINOR, 65_536));
    }

    #[test]
    fn io_uring_is_used_when_requested_and_offered() {
        let all = offer(u64::MAX);
        let uring = |kind| reply_to(&all, kind, limits::READ_AHEAD_BYTES).0.flags2 & 1 << 9;
        assert_eq!(uring(TransportKind::Uring), 1 << 9);
        assert_eq!(uring(TransportKind::Device), 0);
    }

    #[test]
    fn malformed_or_too_old_init_requests_are_refused() {
        assert!(parse(&[]).is_err());
        assert!(parse(&[0; 104]).is_err());
        let mut bytes = [0; 104];
        bytes[4] = Opcode::Init as u8;
        bytes[40] = 7;
        bytes[44] = 27;
        assert_eq!(parse(&bytes).map(|_| ()).unwrap_err().code(), ErrorCode::VersionMismatch);
        bytes[44] = 31;
        assert!(parse(&bytes).is_ok());
        assert!(parse(&bytes[..50]).is_err());
    }
}

//! Encodes the outcome of an operation as the bytes of the reply to the kernel.

// The `record!` macro makes its structs `pub`, although these modules are private to the crate.
#![allow(unreachable_pub)]

mod attributes;
mod listing;

use crate::abi::{InHeader, operation_name};
use crate::following::EntryNames;
use crate::{errno, failure_lines};
use attributes::{
    STATX_SPARE_BYTES, attributes_out, blocks, entry, guessed_blocks, stat_fs, statx,
    uncached_entry,
};
use skep_client::{HandleId, HeldLock, LockMode, Stat, StatFs};
use skep_env::Buf;
use skep_metrics::LineLimit;
use skep_types::codec::{Codec, Writer, record};
use skep_types::{Attributes, Error, ErrorCode, InodeId};
use std::time::Duration;

thread_local! {
    /// Limits the log lines about a lack of space. Each worker has its own limit.
    static NO_SPACE: LineLimit = LineLimit::default();
}

pub(crate) use attributes::Validity;
pub(crate) use listing::{DOT, DOT_DOT, Listing};

/// Flag in [`OpenOut::open_flags`]: the kernel bypasses its page cache for this handle.
const OPEN_DIRECT_IO: u32 = 1 << 0;
/// Flag in [`OpenOut::open_flags`]: the kernel keeps its cached pages of the file.
const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// Flag in [`OpenOut::open_flags`]: the kernel caches the directory's listing.
const OPEN_CACHE_DIR: u32 = 1 << 3;
/// Flag in [`OpenOut::open_flags`]: the kernel sends no `FLUSH` (from Linux 5.16 on; earlier
/// kernels ignore the flag).
const OPEN_NO_FLUSH: u32 = 1 << 5;
/// Flag in [`OpenOut::open_flags`]: the kernel may have several direct writes in flight.
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

record! {
    /// `fuse_open_out`.
    pub struct OpenOut {
        pub handle: u64,
        pub open_flags: u32,
        pub backing_id: u32,
    }
}

record! {
    /// `fuse_write_out` and `fuse_getxattr_out`: a number of bytes.
    pub struct SizeOut {
        pub size: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_lseek_out` and `fuse_copy_file_range_out`: an offset, or a number of copied bytes.
    pub struct NumberOut {
        pub number: u64,
    }
}

record! {
    /// `fuse_lk_out`.
    pub struct LockOut {
        pub start: u64,
        pub end: u64,
        pub kind: u32,
        pub pid: u32,
    }
}

record! {
    /// `fuse_ioctl_out`.
    pub struct IoctlOut {
        pub result: u32,
        pub ioctl_flags: u32,
        pub in_vectors: u32,
        pub out_vectors: u32,
    }
}

/// The result of an operation.
pub(crate) type Outcome = Result<ReplyBody, Failure>;

/// The body of a reply, before encoding.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// The operation succeeded, and its reply has no body.
    Empty,
    /// The attributes of an entry that was looked up or created.
    Entry(Attributes),
    /// The attributes of an entry that was looked up. The kernel does not cache the name, and looks
    /// it up again before its next use.
    UncachedEntry(Attributes),
    /// The attributes of a file that was created and opened, its handle, and whether the kernel
    /// bypasses its page cache for the handle.
    Created(Attributes, HandleId, bool),
    /// The attributes of an inode after a change.
    Attributes(Attributes),
    /// Attributes that the kernel has seen already. The kernel may use them only for one read from
    /// its cached pages.
    SeenAttributes(Attributes),
    /// The attributes that `stat` requested.
    Stat(Stat),
    /// The attributes that `stat` requested, and how long the kernel may cache them. The kernel may
    /// cache them for a shorter time than usual, because the attributes arrived at the mount
    /// earlier.
    AgedStat(Stat, Duration),
    /// The attributes that `stat` requested. The kernel passes them to the program, but does not
    /// cache them.
    HiddenStat(Stat),
    /// The attributes that `statx` requested. The kernel passes them to the program, but does not
    /// cache them.
    HiddenStatx(Stat),
    /// The attributes that `statx` requested, with the creation time.
    Statx(Stat),
    /// The handle of an opened file, and how the kernel treats the handle.
    OpenReply(HandleId, OpenFlags),
    /// A directory was opened. True means that the kernel may keep its cached listing of the
    /// directory.
    OpenedDirectory(bool),
    /// Number of bytes of the data that is already in the reply buffer.
    Data(usize),
    /// Number of bytes that were written, or that the caller's buffer for an attribute must have.
    Size(u32),
    /// An offset in a file, or the number of bytes that were copied.
    Number(u64),
    /// The encoded bytes of the body.
    Bytes(Vec<u8>),
    /// Capacity and free space of the file system.
    StatFs(StatFs),
    /// The bytes that an `ioctl` returns.
    Ioctl(Vec<u8>),
    /// A lock that conflicts with the tested lock. `None` means that there is no conflict.
    Lock(Option<HeldLock>),
}

/// How the kernel treats an opened file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFlags {
    /// Whether the kernel keeps its cached pages of the file.
    pub(crate) keep_cache: bool,
    /// Whether the kernel sends no `FLUSH` at `close(2)`.
    pub(crate) no_flush: bool,
    /// Whether the kernel bypasses its page cache.
    pub(crate) is_direct: bool,
}

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error number that the FUSE layer itself chose.
    Errno(i32),
    /// An error that the file system returned.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<i32> for Failure {
    fn from(errno: i32) -> Self {
        Self::Errno(errno)
    }
}

impl Failure {
    /// Returns the error number of the failure. Logs nothing.
    pub(crate) fn number(&self) -> i32 {
        match self {
            Self::Errno(errno) => *errno,
            Self::Error(error) => errno::errno(error.code()),
        }
    }

    /// Returns the error number of the failure. Also logs errors of a broken cluster or connection,
    /// since the reply to the kernel contains only the error number. A log line names the process
    /// and the user, so that an administrator can warn the user. `names` are the names in the
    /// request. The mount does not have the path of the inode.
    pub(crate) fn errno(&self, header: &InHeader, names: &EntryNames) -> i32 {
        if let Self::Error(error) = self {
            let InHeader { nodeid, opcode, pid, uid, .. } = *header;
            let operation = operation_name(opcode).unwrap_or_default();
            let node = InodeId::new(nodeid);
            let path = || match names.name.is_empty() {
                true => format!("`skep entry path {node}` prints its path"),
                false => format!("`skep entry path {node}` prints the path of the directory"),
            };
            let now = skep_env::now();
            if errno::is_trouble(error.code(), &operation)
                && let Some(count) = failure_lines::count(nodeid, opcode, error.code(), now)
            {
                let times = match count {
                    1 => String::new(),
                    count => format!(" ({count} times since the last such line)"),
                };
                tracing::warn!(
                    "{operation} of {} by process {pid} of user {uid} failed{times}: {error}; {}",
                    names.object(node),
                    path()
                );
            }
            if error.code() == ErrorCode::NoSpace && NO_SPACE.with(|limit| limit.is_due(now)) {
                tracing::warn!(
                    "{operation} of {} by process {pid} of user {uid} fails with ENOSPC: {error}; \
                     {}",
                    names.object(node),
                    path()
                );
            }
        }
        self.number()
    }
}

/// An encoded reply: the number of bytes in the reply buffer, or an error number.
pub(crate) type EncodedReply = Result<usize, i32>;

/// Encodes a reply's body into the reply buffer.
pub(crate) fn encode(answer: ReplyBody, reply: &Buf, validity: &Validity<'_>) -> EncodedReply {
    let mut w = Writer::new();
    match answer {
        ReplyBody::Empty => return Ok(0),
        ReplyBody::Data(len) => return Ok(len),
        ReplyBody::Bytes(bytes) => w.raw(&bytes),
        ReplyBody::Size(size) => SizeOut { size, padding: 0 }.encode(&mut w),
        ReplyBody::Number(number) => NumberOut { number }.encode(&mut w),
        ReplyBody::Entry(attributes) => entry(&attributes, validity).encode(&mut w),
        ReplyBody::UncachedEntry(attributes) => {
            uncached_entry(&attributes, validity).encode(&mut w);
        }
        ReplyBody::Created(attributes, handle, is_direct) => {
            entry(&attributes, validity).encode(&mut w);
            // `keep_cache` is harmless, since the kernel cannot have cached stale pages of a new
            // file.
            let flags = OpenFlags { keep_cache: true, no_flush: false, is_direct };
            opened(handle, flags).encode(&mut w);
        }
        ReplyBody::OpenReply(handle, flags) => opened(handle, flags).encode(&mut w),
        ReplyBody::Attributes(attributes) => {
            (validity.note_shown)(&attributes);
            attributes_out(&attributes, guessed_blocks(&attributes, validity)).encode(&mut w);
        }
        ReplyBody::SeenAttributes(attributes) => {
            let blocks = attributes.size.div_ceil(512);
            attributes_out(&attributes, (blocks, Duration::ZERO)).encode(&mut w);
        }
        ReplyBody::AgedStat(stat, validity_left) => {
            (validity.note_shown)(&stat.attributes);
            attributes_out(&stat.attributes, (blocks(&stat), validity_left)).encode(&mut w);
        }
        ReplyBody::HiddenStat(stat) => {
            attributes_out(&stat.attributes, (blocks(&stat), Duration::ZERO)).encode(&mut w);
        }
        ReplyBody::HiddenStatx(stat) => {
            statx(&stat, Duration::ZERO).encode(&mut w);
            w.raw(&[0; STATX_SPARE_BYTES]);
        }
        ReplyBody::Stat(stat) => {
            (validity.note_shown)(&stat.attributes);
            let validity = validity.of(&stat.attributes);
            attributes_out(&stat.attributes, (blocks(&stat), validity)).encode(&mut w);
        }
        ReplyBody::Statx(stat) => {
            (validity.note_shown)(&stat.attributes);
            let validity = validity.of(&stat.attributes);
            statx(&stat, validity).encode(&mut w);
            w.raw(&[0; STATX_SPARE_BYTES]);
        }
        ReplyBody::Lock(held) => lock(held).encode(&mut w),
        ReplyBody::OpenedDirectory(keep_cache) => opened_directory(keep_cache).encode(&mut w),
        ReplyBody::StatFs(max_bytes) => stat_fs(&max_bytes).encode(&mut w),
        ReplyBody::Ioctl(bytes) => {
            let header = IoctlOut { result: 0, ioctl_flags: 0, in_vectors: 0, out_vectors: 0 };
            header.encode(&mut w);
            w.raw(&bytes);
        }
    }
    let bytes = w.finish();
    if bytes.len() > reply.len() {
        return Err(libc::EIO);
    }
    reply.write(0, &bytes);
    Ok(bytes.len())
}

/// Encodes a conflicting lock. In the kernel's struct, `end` is the last byte of the lock. In
/// `HeldLock`, `end` is the byte after the last byte.
fn lock(held: Option<HeldLock>) -> LockOut {
    let free = LockOut { start: 0, end: 0, kind: libc::F_UNLCK as u32, pid: 0 };
    held.map_or(free, |held| LockOut {
        start: held.start,
        end: held.end.saturating_sub(1),
        kind: match held.mode {
            LockMode::Shared => libc::F_RDLCK as u32,
            LockMode::Exclusive => libc::F_WRLCK as u32,
        },
        pid: held.pid,
    })
}

fn opened(handle: HandleId, flags: OpenFlags) -> OpenOut {
    let keep_cache = if flags.keep_cache { OPEN_KEEP_CACHE } else { 0 };
    let no_flush = if flags.no_flush { OPEN_NO_FLUSH } else { 0 };
    let direct = OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES;
    let direct = if flags.is_direct { direct } else { 0 };
    OpenOut { handle: handle.raw(), open_flags: keep_cache | no_flush | direct, backing_id: 0 }
}

/// Encodes the reply to an open of a directory. A directory needs no handle. The kernel keeps its
/// cached listing until a program opens the directory and the reply has `keep_cache` false.
fn opened_directory(keep_cache: bool) -> OpenOut {
    let keep_cache = if keep_cache { OPEN_KEEP_CACHE } else { 0 };
    OpenOut { handle: 0, open_flags: keep_cache | OPEN_CACHE_DIR, backing_id: 0 }
}

#[cfg(test)]
mod tests {
    use super::attributes::{Attr, AttrOut, ENTRY_OUT_BYTES, EntryOut, StatFsOut, StatxOut};
    use super::listing::{DIRENT_BYTES, Dirent};
    use super::*;
    use crate::abi::{IN_HEADER_BYTES, InHeader, OUT_HEADER_BYTES, OutHeader};
    use crate::init::InitOut;
    use crate::invalidation::InvalInodeOut;
    use crate::limits;
    use skep_types::FileKind;
    use skep_types::codec::Reader;

    /// Returns the length of an encoded record in bytes.
    fn len_of<T: Codec>() -> usize {
        let zeros = [0; 512];
        let mut reader = Reader::new(&zeros);
        T::decode(&mut reader).unwrap();
        zeros.len() - reader.left()
    }

    #[test]
    fn protocol_records_have_the_length_of_the_kernel_structs() {
        assert_eq!(len_of::<InHeader>(), IN_HEADER_BYTES);
        assert_eq!(len_of::<OutHeader>(), OUT_HEADER_BYTES);
        assert_eq!(len_of::<InitOut>(), 64);
        assert_eq!(len_of::<Attr>(), 88);
        assert_eq!(len_of::<EntryOut>(), ENTRY_OUT_BYTES);
        assert_eq!(len_of::<AttrOut>(), 104);
        assert_eq!(len_of::<StatxOut>() + STATX_SPARE_BYTES, 288);
        assert_eq!(len_of::<StatFsOut>(), 80);
        assert_eq!(len_of::<OpenOut>(), 16);
        assert_eq!(len_of::<SizeOut>(), 8);
        assert_eq!(len_of::<Dirent>(), DIRENT_BYTES);
        assert_eq!((len_of::<LockOut>(), len_of::<InvalInodeOut>()), (24, 24));
    }

    /// The validity on a mount that shares no inode with other mounts.
    fn validity_of(usual: &dyn Fn() -> Duration) -> Validity<'_> {
        Validity {
            usual,
            is_shared: &|_| false,
            note_shown: &|_| (),
            note_shown_with_name: &|_| false,
        }
    }

    #[test]
    fn kernel_caches_only_the_attributes_of_an_uncached_name() {
        let usual = limits::VALIDITY;
        let left = || usual;
        let validity = validity_of(&left);
        let now = skep_env::wall_time();
        let attributes = Attributes::new(InodeId::new(9), FileKind::Regular, 0o644, now);
        let times = |body| {
            let reply = Buf::new(ENTRY_OUT_BYTES);
            assert_eq!(encode(body, &reply, &validity), Ok(ENTRY_OUT_BYTES));
            let out = EntryOut::decode(&mut Reader::new(&reply.bytes())).unwrap();
            let of_name = Duration::new(out.entry_valid, out.entry_valid_nanoseconds);
            (of_name, Duration::new(out.attr_valid, out.attr_valid_nanoseconds))
        };
        assert_eq!(times(ReplyBody::Entry(attributes.clone())), (usual, usual));
        assert_eq!(times(ReplyBody::UncachedEntry(attributes)), (Duration::ZERO, usual));
    }

    #[test]
    fn a_reply_that_does_not_fit_is_an_error() {
        let validity = validity_of(&|| limits::VALIDITY);
        let fits = |len| encode(ReplyBody::Bytes(vec![0; len]), &Buf::new(8), &validity);
        assert_eq!((fits(9), fits(8)), (Err(libc::EIO), Ok(8)));
    }
}

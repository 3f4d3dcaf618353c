//! From the outcome of an operation to the bytes of its reply.

// The `record!` macro makes its structs `pub`; these modules are private to the crate.
#![allow(unreachable_pub)]

mod attributes;
mod listing;

use crate::errno;
use attributes::{
    STATX_SPARE_BYTES, attributes_out, blocks, entry, guessed_blocks, stat_fs, statx,
};
use skep_client::{HandleId, HeldLock, LockMode, Stat, StatFs};
use skep_env::Buf;
use skep_types::codec::{Codec, Writer, record};
use skep_types::{Attributes, Error, InodeId};

pub(crate) use attributes::Validity;
pub(crate) use listing::{DOT, DOT_DOT, Listing};

/// [`OpenOut::open_flags`]: I/O goes around the page cache.
const OPEN_DIRECT_IO: u32 = 1 << 0;
/// [`OpenOut::open_flags`]: keep what the page cache holds of the file.
const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// [`OpenOut::open_flags`]: keep a directory's listing.
const OPEN_CACHE_DIR: u32 = 1 << 3;
/// [`OpenOut::open_flags`]: send no `FLUSH` for it (Linux 5.16; others ignore it).
const OPEN_NO_FLUSH: u32 = 1 << 5;
/// [`OpenOut::open_flags`]: several direct writes at once.
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
    /// `fuse_write_out`, and `fuse_getxattr_out` too: a size.
    pub struct SizeOut {
        pub size: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_lseek_out`, and `fuse_copy_file_range_out` too: a number.
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

/// What an operation returns.
pub(crate) type Outcome = Result<ReplyBody, Failure>;

/// What an operation gives.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// Done.
    Empty,
    /// An entry.
    Entry(Attributes),
    /// An entry that was made and opened, and whether I/O goes around the page cache.
    Created(Attributes, HandleId, bool),
    /// Attributes that were changed.
    Attributes(Attributes),
    /// Attributes that were asked for.
    Stat(Stat),
    /// The same with the time of creation.
    Statx(Stat),
    /// An opened file.
    OpenReply(HandleId, OpenFlags),
    /// An opened directory; whether the kernel may keep what it knows of its entries.
    OpenedDirectory(bool),
    /// So many bytes, which lie in the reply's memory already.
    Data(usize),
    /// So many bytes were written, or would have to fit.
    Size(u32),
    /// A place in a file, or how many bytes were copied.
    Number(u64),
    /// These bytes.
    Bytes(Vec<u8>),
    /// Room in the file system.
    StatFs(StatFs),
    /// An `ioctl` was done, and gives these bytes.
    Ioctl(Vec<u8>),
    /// A lock that is in the way, if any is.
    Lock(Option<HeldLock>),
}

/// What the kernel may do with an opened file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFlags {
    /// Keep its pages.
    pub(crate) keep_cache: bool,
    /// Not say at `close(2)`.
    pub(crate) no_flush: bool,
    /// Go around its pages.
    pub(crate) is_direct: bool,
}

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error number, where the FUSE layer itself refuses.
    Errno(i32),
    /// An error of the file system.
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
    /// Its error number. What is broken is logged here, where the error ends its way.
    pub(crate) fn errno(&self, opcode: u32, node: InodeId) -> i32 {
        match self {
            Self::Errno(errno) => *errno,
            Self::Error(error) => {
                if errno::is_trouble(error.code()) {
                    tracing::warn!(opcode, %node, "a request failed: {error}");
                }
                errno::errno(error.code())
            }
        }
    }
}

/// What a reply says: its error number, or how many bytes of the reply's memory it has.
pub(crate) type Encoded = Result<usize, i32>;

/// Writes an answer to the reply's memory.
pub(crate) fn encode(answer: ReplyBody, reply: &Buf, validity: &Validity<'_>) -> Encoded {
    let mut w = Writer::new();
    match answer {
        ReplyBody::Empty => return Ok(0),
        ReplyBody::Data(len) => return Ok(len),
        ReplyBody::Bytes(bytes) => w.raw(&bytes),
        ReplyBody::Size(size) => SizeOut { size, padding: 0 }.encode(&mut w),
        ReplyBody::Number(number) => NumberOut { number }.encode(&mut w),
        ReplyBody::Entry(attributes) => entry(&attributes, validity).encode(&mut w),
        ReplyBody::Created(attributes, handle, is_direct) => {
            entry(&attributes, validity).encode(&mut w);
            // A file that was just made has nothing in the page cache that could be wrong.
            let flags = OpenFlags { keep_cache: true, no_flush: false, is_direct };
            opened(handle, flags).encode(&mut w);
        }
        ReplyBody::OpenReply(handle, flags) => opened(handle, flags).encode(&mut w),
        ReplyBody::Attributes(attributes) => {
            (validity.note_shown)(&attributes);
            attributes_out(&attributes, guessed_blocks(&attributes, validity)).encode(&mut w);
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
            let done = IoctlOut { result: 0, ioctl_flags: 0, in_vectors: 0, out_vectors: 0 };
            done.encode(&mut w);
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

/// The last byte is included here.
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

/// A directory needs no handle. Its listing may be kept until somebody opens it and is told that it
/// has changed.
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
    use skep_types::codec::Reader;

    /// Decodes zeros and gives the number of bytes that took.
    fn len_of<T: Codec>() -> usize {
        let zeros = [0; 512];
        let mut reader = Reader::new(&zeros);
        T::decode(&mut reader).unwrap();
        zeros.len() - reader.left()
    }

    #[test]
    fn records_are_as_long_as_the_structs_of_the_kernel() {
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

    #[test]
    fn an_answer_that_does_not_fit_is_an_error_and_no_panic() {
        let validity =
            Validity { usual: limits::VALIDITY, is_shared: &|_| false, note_shown: &|_| false };
        let fits = |len| encode(ReplyBody::Bytes(vec![0; len]), &Buf::new(8), &validity);
        assert_eq!((fits(9), fits(8)), (Err(libc::EIO), Ok(8)));
    }
}

//! From the outcome of an operation to the bytes of its reply.

use crate::abi::{
    self, Attr, AttrOut, Dirent, EntryOut, IoctlOut, LockOut, NumberOut, OpenOut, SizeOut,
    StatFsOut, Statx, StatxOut, StatxTime,
};
use crate::errno;
use crate::limits;
use skep_client::{DirectoryEntries, EntryReply, HandleId, HeldLock, LockMode, Stat, StatFs};
use skep_env::Buf;
use skep_types::codec::{Codec, Writer};
use skep_types::{Attributes, Error, FileKind, InodeId, Timestamp};
use std::time::Duration;

/// What an operation gives.
#[derive(Debug)]
pub(crate) enum Answer {
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

/// How long the kernel may remember what it is told.
pub(crate) struct Validity<'a> {
    /// Names, and attributes of what isn't shared.
    pub(crate) usual: Duration,
    /// Of which inodes other mounts may change what the kernel would keep.
    pub(crate) is_shared: &'a dyn Fn(InodeId) -> bool,
    /// Notes, once for each, attributes that the kernel is shown; says whether it may remember
    /// access control lists of the inode from before another mount changed it. It forgets them when
    /// it asks for attributes, or looks at a name that it knows; not so when it comes by another
    /// name to an inode that it knows (Linux 6.18). If what it is shown under a name isn't valid,
    /// it asks before it checks any permission. (Telling it to forget the lists is no way: it then
    /// doesn't take the attributes of this answer, and goes on with an owner of long ago.)
    pub(crate) note_shown: &'a dyn Fn(&Attributes) -> bool,
}

impl Validity<'_> {
    fn of(&self, attributes: &Attributes) -> Duration {
        match attributes.kind == FileKind::Regular && (self.is_shared)(attributes.inode) {
            true => Duration::ZERO,
            false => self.usual,
        }
    }
}

/// Writes an answer to the reply's memory.
pub(crate) fn encode(answer: Answer, reply: &Buf, validity: &Validity<'_>) -> Encoded {
    let mut w = Writer::new();
    match answer {
        Answer::Empty => return Ok(0),
        Answer::Data(len) => return Ok(len),
        Answer::Bytes(bytes) => w.raw(&bytes),
        Answer::Size(size) => SizeOut { size, padding: 0 }.encode(&mut w),
        Answer::Number(number) => NumberOut { number }.encode(&mut w),
        Answer::Entry(attributes) => entry(&attributes, validity).encode(&mut w),
        Answer::Created(attributes, handle, is_direct) => {
            entry(&attributes, validity).encode(&mut w);
            // A file that was just made has nothing in the page cache that could be wrong.
            let flags = OpenFlags { keep_cache: true, no_flush: false, is_direct };
            opened(handle, flags).encode(&mut w);
        }
        Answer::OpenReply(handle, flags) => opened(handle, flags).encode(&mut w),
        Answer::Attributes(attributes) => {
            (validity.note_shown)(&attributes);
            attributes_out(&attributes, guessed_blocks(&attributes, validity)).encode(&mut w);
        }
        Answer::Stat(stat) => {
            (validity.note_shown)(&stat.attributes);
            let validity = validity.of(&stat.attributes);
            attributes_out(&stat.attributes, (blocks(&stat), validity)).encode(&mut w);
        }
        Answer::Statx(stat) => {
            (validity.note_shown)(&stat.attributes);
            let validity = validity.of(&stat.attributes);
            statx(&stat, validity).encode(&mut w);
            w.raw(&[0; abi::STATX_SPARE_BYTES]);
        }
        Answer::Lock(held) => lock(held).encode(&mut w),
        Answer::OpenedDirectory(keep_cache) => opened_directory(keep_cache).encode(&mut w),
        Answer::StatFs(max_bytes) => stat_fs(&max_bytes).encode(&mut w),
        Answer::Ioctl(bytes) => {
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

fn blocks(stat: &Stat) -> u64 {
    stat.allocated_bytes.div_ceil(512)
}

/// Blocks as the attributes alone tell, and how long the kernel may rely on them: a file with holes
/// takes less than its size, and only its chunk files know how much, so whoever wants to know asks.
fn guessed_blocks(attributes: &Attributes, validity: &Validity<'_>) -> (u64, Duration) {
    let validity = match attributes.is_sparse {
        true => Duration::ZERO,
        false => validity.of(attributes),
    };
    (attributes.size.div_ceil(512), validity)
}

fn mode(attributes: &Attributes) -> u32 {
    attributes.kind.mode_bits() | attributes.permissions & 0o7777
}

fn attributes_out(attributes: &Attributes, (blocks, validity): (u64, Duration)) -> AttrOut {
    AttrOut {
        attr_valid: validity.as_secs(),
        attr_valid_nanoseconds: validity.subsec_nanos(),
        padding: 0,
        attr: attr(attributes, blocks),
    }
}

fn attr(attributes: &Attributes, blocks: u64) -> Attr {
    Attr {
        ino: attributes.inode.raw(),
        size: attributes.size,
        blocks,
        atime: attributes.accessed.seconds as u64,
        mtime: attributes.modified.seconds as u64,
        ctime: attributes.changed.seconds as u64,
        atime_nanoseconds: attributes.accessed.nanoseconds,
        mtime_nanoseconds: attributes.modified.nanoseconds,
        ctime_nanoseconds: attributes.changed.nanoseconds,
        mode: mode(attributes),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: abi::pack_device(attributes.device),
        block_size: limits::PREFERRED_IO_BYTES,
        flags: 0,
    }
}

fn entry(attributes: &Attributes, validity: &Validity<'_>) -> EntryOut {
    let (blocks, of_attributes) = guessed_blocks(attributes, validity);
    let must_ask = (validity.note_shown)(attributes);
    let of_attributes = if must_ask { Duration::ZERO } else { of_attributes };
    let validity = validity.usual;
    EntryOut {
        nodeid: attributes.inode.raw(),
        // Ids are never used again, so there is one generation of each.
        generation: 0,
        entry_valid: validity.as_secs(),
        attr_valid: of_attributes.as_secs(),
        entry_valid_nanoseconds: validity.subsec_nanos(),
        attr_valid_nanoseconds: of_attributes.subsec_nanos(),
        attr: attr(attributes, blocks),
    }
}

fn opened(handle: HandleId, flags: OpenFlags) -> OpenOut {
    let keep_cache = if flags.keep_cache { abi::OPEN_KEEP_CACHE } else { 0 };
    let no_flush = if flags.no_flush { abi::OPEN_NO_FLUSH } else { 0 };
    let direct = abi::OPEN_DIRECT_IO | abi::OPEN_PARALLEL_DIRECT_WRITES;
    let direct = if flags.is_direct { direct } else { 0 };
    OpenOut { handle: handle.raw(), open_flags: keep_cache | no_flush | direct, backing_id: 0 }
}

/// A directory needs no handle. Its listing may be kept until somebody opens it and is told that it
/// has changed.
fn opened_directory(keep_cache: bool) -> OpenOut {
    let keep_cache = if keep_cache { abi::OPEN_KEEP_CACHE } else { 0 };
    OpenOut { handle: 0, open_flags: keep_cache | abi::OPEN_CACHE_DIR, backing_id: 0 }
}

fn statx_time(time: Timestamp) -> StatxTime {
    StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}

fn statx(stat: &Stat, validity: Duration) -> StatxOut {
    let attributes = &stat.attributes;
    StatxOut {
        attr_valid: validity.as_secs(),
        attr_valid_nanoseconds: validity.subsec_nanos(),
        flags: 0,
        spare: 0,
        statx: Statx {
            mask: abi::STATX_BASIC_AND_BTIME,
            block_size: limits::PREFERRED_IO_BYTES,
            attributes: 0,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            mode: mode(attributes) as u16,
            spare: 0,
            ino: attributes.inode.raw(),
            size: attributes.size,
            blocks: blocks(stat),
            attributes_mask: 0,
            atime: statx_time(attributes.accessed),
            btime: statx_time(attributes.created),
            ctime: statx_time(attributes.changed),
            mtime: statx_time(attributes.modified),
            device_major: (attributes.device >> 32) as u32,
            device_minor: attributes.device as u32,
            own_device_major: 0,
            own_device_minor: 0,
        },
    }
}

fn stat_fs(max_bytes: &StatFs) -> StatFsOut {
    const BLOCK: u64 = 4096;
    StatFsOut {
        blocks: max_bytes.total_bytes / BLOCK,
        free_blocks: max_bytes.free_bytes / BLOCK,
        available_blocks: max_bytes.free_bytes / BLOCK,
        files: max_bytes.files,
        free_files: max_bytes.free_files,
        block_size: BLOCK as u32,
        name_bytes: max_bytes.name_max,
        fragment_size: BLOCK as u32,
        padding: 0,
        spare: 0,
        spare2: 0,
    }
}

/// Entries of a directory as the kernel wants them, as many as fit.
pub(crate) struct Listing<'a> {
    w: Writer,
    max_bytes: usize,
    /// Whether entries have their attributes, and how long the kernel may remember them.
    validity: Option<Validity<'a>>,
}

/// Cursors of the two entries that every directory has; all others are larger.
pub(crate) const DOT: u64 = 1;
/// See [`DOT`].
pub(crate) const DOT_DOT: u64 = 2;

impl<'a> Listing<'a> {
    /// An empty one with room for so many bytes.
    pub(crate) fn new(max_bytes: u32, validity: Option<Validity<'a>>) -> Self {
        Self { w: Writer::new(), max_bytes: max_bytes as usize, validity }
    }

    /// Whether nothing was added yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.w.is_empty()
    }

    /// The bytes.
    pub(crate) fn finish(self) -> Answer {
        Answer::Bytes(self.w.finish())
    }

    /// Adds `.` or `..`: neither gets attributes, the kernel knows them.
    pub(crate) fn push_dot(&mut self, cursor: u64, inode: InodeId) -> bool {
        let name: &[u8] = if cursor == DOT { b"." } else { b".." };
        let kind = skep_types::FileKind::Directory;
        self.push(cursor, name, &EntryReply { inode, kind, attributes: None })
    }

    /// Adds entries until one doesn't fit.
    pub(crate) fn push_all(&mut self, entries: &DirectoryEntries) {
        for one in &entries.entries {
            if !self.push(one.cursor, &one.name, &one.entry) {
                return;
            }
        }
    }

    /// Adds an entry; false if it doesn't fit.
    fn push(&mut self, cursor: u64, name: &[u8], it: &EntryReply) -> bool {
        let prefix = if self.validity.is_some() { abi::ENTRY_OUT_BYTES } else { 0 };
        let unpadded = prefix + abi::DIRENT_BYTES + name.len();
        let padded = unpadded.next_multiple_of(8);
        if self.w.len() + padded > self.max_bytes {
            return false;
        }
        if let Some(validity) = &self.validity {
            // Without attributes the node id is zero, on which the kernel asks when it needs them
            // (unlike in LOOKUP, where zero says that there is no such entry).
            match &it.attributes {
                Some(attributes) => entry(attributes, validity).encode(&mut self.w),
                None => self.w.raw(&[0; abi::ENTRY_OUT_BYTES]),
            }
        }
        Dirent {
            ino: it.inode.raw(),
            offset: cursor,
            name_bytes: name.len() as u32,
            kind: it.kind.mode_bits() >> 12,
        }
        .encode(&mut self.w);
        self.w.raw(name);
        self.w.raw(&[0; 8][..padded - unpadded]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_are_padded_and_stop_where_the_room_ends() {
        let mut listing = Listing::new(100, None);
        assert!(listing.push_dot(DOT, InodeId::ROOT));
        assert!(listing.push_dot(DOT_DOT, InodeId::ROOT));
        let entry = EntryReply { inode: InodeId::new(7), kind: FileKind::Fifo, attributes: None };
        assert!(!listing.push(300, b"longer than what is left", &entry));
        assert!(listing.push(300, b"a", &entry));
        let Answer::Bytes(bytes) = listing.finish() else { panic!("bytes") };
        assert_eq!(bytes.len(), 96);
        assert_eq!(bytes[64..72], 7_u64.to_le_bytes());
        assert_eq!(bytes[72..80], 300_u64.to_le_bytes());
        assert_eq!(bytes[84], 1, "DT_FIFO");
        assert_eq!(bytes[88..], *b"a\0\0\0\0\0\0\0");
    }

    #[test]
    fn an_answer_that_does_not_fit_is_an_error_and_no_panic() {
        let validity =
            Validity { usual: limits::VALIDITY, is_shared: &|_| false, note_shown: &|_| false };
        let fits = |len| encode(Answer::Bytes(vec![0; len]), &Buf::new(8), &validity);
        assert_eq!((fits(9), fits(8)), (Err(libc::EIO), Ok(8)));
    }
}

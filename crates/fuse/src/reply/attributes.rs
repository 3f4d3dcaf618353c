//! Attributes in replies: the kernel's structs, and how long the kernel may cache them.

use crate::abi::pack_device;
use crate::limits;
use skep_client::{Stat, StatFs};
use skep_types::codec::record;
use skep_types::{Attributes, FileKind, InodeId, Timestamp};
use std::time::Duration;

/// Length of [`EntryOut`] in bytes.
pub(crate) const ENTRY_OUT_BYTES: usize = 128;
/// Number of zero bytes that follow [`StatxOut`].
pub(crate) const STATX_SPARE_BYTES: usize = 14 * 8;
/// Value of [`Statx::mask`]: all basic fields and the creation time are valid.
const STATX_BASIC_AND_BTIME: u32 = 0x0fff;

record! {
    /// `fuse_attr`.
    pub struct Attr {
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atime_nanoseconds: u32,
        pub mtime_nanoseconds: u32,
        pub ctime_nanoseconds: u32,
        pub mode: u32,
        pub links: u32,
        pub uid: u32,
        pub gid: u32,
        pub device: u32,
        pub block_size: u32,
        pub flags: u32,
    }
}

record! {
    /// `fuse_entry_out`. A `nodeid` of zero means that there is no such entry. In `READDIRPLUS` it
    /// means that the reply has no attributes of the entry.
    pub struct EntryOut {
        pub nodeid: u64,
        pub generation: u64,
        pub entry_valid: u64,
        pub attr_valid: u64,
        pub entry_valid_nanoseconds: u32,
        pub attr_valid_nanoseconds: u32,
        pub attr: Attr,
    }
}

record! {
    /// `fuse_attr_out`.
    pub struct AttrOut {
        pub attr_valid: u64,
        pub attr_valid_nanoseconds: u32,
        pub padding: u32,
        pub attr: Attr,
    }
}

record! {
    /// `fuse_sx_time`.
    pub struct StatxTime {
        pub seconds: i64,
        pub nanoseconds: u32,
        pub reserved: u32,
    }
}

record! {
    /// `fuse_statx` without the spare words at its end ([`STATX_SPARE_BYTES`]).
    pub struct Statx {
        pub mask: u32,
        pub block_size: u32,
        pub attributes: u64,
        pub links: u32,
        pub uid: u32,
        pub gid: u32,
        pub mode: u16,
        pub spare: u16,
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub attributes_mask: u64,
        pub atime: StatxTime,
        pub btime: StatxTime,
        pub ctime: StatxTime,
        pub mtime: StatxTime,
        pub device_major: u32,
        pub device_minor: u32,
        pub own_device_major: u32,
        pub own_device_minor: u32,
    }
}

record! {
    /// `fuse_statx_out` without the 14 spare words at the end of `fuse_statx`, which are zero.
    pub struct StatxOut {
        pub attr_valid: u64,
        pub attr_valid_nanoseconds: u32,
        pub flags: u32,
        pub spare: u128,
        pub statx: Statx,
    }
}

record! {
    /// `fuse_kstatfs`.
    pub struct StatFsOut {
        pub blocks: u64,
        pub free_blocks: u64,
        pub available_blocks: u64,
        pub files: u64,
        pub free_files: u64,
        pub block_size: u32,
        pub name_bytes: u32,
        pub fragment_size: u32,
        pub padding: u32,
        pub spare: u64,
        pub spare2: u128,
    }
}

/// How long the kernel may cache the names and attributes in a reply.
pub(crate) struct Validity<'a> {
    /// Returns how long after the reply the kernel may cache names, and attributes of inodes that
    /// this mount does not share with other mounts.
    pub(crate) usual: &'a dyn Fn() -> Duration,
    /// Whether other mounts may change the attributes and pages of an inode while the kernel caches
    /// them.
    pub(crate) is_shared: &'a dyn Fn(InodeId) -> bool,
    /// Records that a reply to a request for attributes, or to a change of them, passes these
    /// attributes to the kernel.
    pub(crate) note_shown: &'a dyn Fn(&Attributes),
    /// Records that a reply passes these attributes to the kernel together with a name. Returns
    /// true if the kernel may still cache an access control list of the inode that another mount
    /// has changed since.
    ///
    /// # Hazard: cached access control lists
    /// The kernel drops the cached access control lists of an inode when it requests the inode's
    /// attributes, or when it looks up a cached name of the inode. But the kernel keeps the lists
    /// if it looks up an uncached name and finds a cached inode (Linux 6.18). So the reply to that
    /// lookup makes the attributes invalid immediately, and the kernel requests the attributes
    /// before it checks any permission. Invalidating the inode instead would not work, because the
    /// kernel would then ignore the attributes of this reply, and continue with an outdated owner.
    pub(crate) note_shown_with_name: &'a dyn Fn(&Attributes) -> bool,
}

impl Validity<'_> {
    pub(super) fn of(&self, attributes: &Attributes) -> Duration {
        if attributes.kind == FileKind::Regular && (self.is_shared)(attributes.inode) {
            Duration::ZERO
        } else {
            (self.usual)()
        }
    }
}

pub(super) fn blocks(stat: &Stat) -> u64 {
    stat.allocated_bytes.div_ceil(512)
}

/// Returns the number of blocks of a file, estimated from its attributes, and how long the kernel
/// may cache the attributes. A file with holes takes less space than its size, and only its chunk
/// files have the exact number of blocks. So the kernel must not cache the attributes of a file
/// with holes, and requests them at each `stat`.
pub(super) fn guessed_blocks(attributes: &Attributes, validity: &Validity<'_>) -> (u64, Duration) {
    let validity = match attributes.is_sparse {
        true => Duration::ZERO,
        false => validity.of(attributes),
    };
    (attributes.size.div_ceil(512), validity)
}

fn mode(attributes: &Attributes) -> u32 {
    attributes.kind.mode_bits() | attributes.permissions & 0o7777
}

pub(super) fn attributes_out(
    attributes: &Attributes,
    (blocks, validity): (u64, Duration),
) -> AttrOut {
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
        device: pack_device(attributes.device),
        block_size: limits::PREFERRED_IO_BYTES,
        flags: 0,
    }
}

pub(super) fn entry(attributes: &Attributes, validity: &Validity<'_>) -> EntryOut {
    let (blocks, of_attributes) = guessed_blocks(attributes, validity);
    let must_ask = (validity.note_shown_with_name)(attributes);
    let of_attributes = if must_ask { Duration::ZERO } else { of_attributes };
    let validity = (validity.usual)();
    EntryOut {
        nodeid: attributes.inode.raw(),
        // Inode ids are never reused, so all inodes have the same generation.
        generation: 0,
        entry_valid: validity.as_secs(),
        attr_valid: of_attributes.as_secs(),
        entry_valid_nanoseconds: validity.subsec_nanos(),
        attr_valid_nanoseconds: of_attributes.subsec_nanos(),
        attr: attr(attributes, blocks),
    }
}

/// Returns an entry whose name the kernel does not cache. The kernel may cache the attributes.
pub(super) fn uncached_entry(attributes: &Attributes, validity: &Validity<'_>) -> EntryOut {
    EntryOut { entry_valid: 0, entry_valid_nanoseconds: 0, ..entry(attributes, validity) }
}

fn statx_time(time: Timestamp) -> StatxTime {
    StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}

pub(super) fn statx(stat: &Stat, validity: Duration) -> StatxOut {
    let attributes = &stat.attributes;
    StatxOut {
        attr_valid: validity.as_secs(),
        attr_valid_nanoseconds: validity.subsec_nanos(),
        flags: 0,
        spare: 0,
        statx: Statx {
            mask: STATX_BASIC_AND_BTIME,
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

pub(super) fn stat_fs(capacity: &StatFs) -> StatFsOut {
    const BLOCK: u64 = 4096;
    StatFsOut {
        blocks: capacity.total_bytes / BLOCK,
        free_blocks: capacity.free_bytes / BLOCK,
        available_blocks: capacity.free_bytes / BLOCK,
        files: capacity.files,
        free_files: capacity.free_files,
        block_size: BLOCK as u32,
        name_bytes: capacity.name_max,
        fragment_size: BLOCK as u32,
        padding: 0,
        spare: 0,
        spare2: 0,
    }
}

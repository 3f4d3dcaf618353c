//! What the kernel and a FUSE daemon say to each other, byte by byte: opcodes, flags, and the
//! structs of `include/uapi/linux/fuse.h` up to version 7.45, each as a record that is read with
//! bounds checks and written field by field.
//!
//! Padding is a field like any other, so that a record's length is the struct's. Nothing here knows
//! what an operation does; which requests exist and how they are answered is in `protocol`.

// The `record!` macro makes its structs `pub`; this module is private to the crate.
#![allow(unreachable_pub)]

use skep_types::codec::record;

/// Major version, fixed for ever.
pub const MAJOR: u32 = 7;
/// The newest minor version that this module describes.
pub const MINOR: u32 = 45;
/// The oldest one that is served (Linux 4.20), so that no layout has a short form.
pub const OLDEST_MINOR: u32 = 28;
/// Bytes of [`InHeader`].
pub const IN_HEADER_BYTES: usize = 40;
/// Bytes of [`SetXattrIn`] in its short form.
pub const SHORT_SET_XATTR_BYTES: usize = 8;
/// Bytes of [`OutHeader`].
pub const OUT_HEADER_BYTES: usize = 16;

macro_rules! opcodes {
    ($($name:ident = $number:literal, $arguments:literal;)*) => {
        /// What the kernel asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Opcode { $($name = $number,)* }

        impl Opcode {
            /// All that are known, in the order of their numbers.
            #[cfg(test)]
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// The opcode of a number; `None` for one that a newer kernel knows.
            pub fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Bytes of the fixed struct with which the request starts; what follows (names, data)
            /// is its payload.
            pub fn argument_bytes(self) -> usize {
                match self { $(Self::$name => $arguments,)* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, 0;
    Forget = 2, 8;
    GetAttr = 3, 16;
    SetAttr = 4, 88;
    ReadLink = 5, 0;
    Symlink = 6, 0;
    MkNod = 8, 16;
    MkDir = 9, 8;
    Unlink = 10, 0;
    RmDir = 11, 0;
    Rename = 12, 8;
    Link = 13, 8;
    Open = 14, 8;
    Read = 15, 40;
    Write = 16, 40;
    StatFs = 17, 0;
    Release = 18, 24;
    Fsync = 20, 16;
    SetXattr = 21, 16;
    GetXattr = 22, 8;
    ListXattr = 23, 8;
    RemoveXattr = 24, 0;
    Flush = 25, 24;
    Init = 26, 64;
    OpenDir = 27, 8;
    ReadDir = 28, 40;
    ReleaseDir = 29, 24;
    FsyncDir = 30, 16;
    GetLock = 31, 48;
    SetLock = 32, 48;
    SetLockWait = 33, 48;
    Access = 34, 8;
    Create = 35, 16;
    Interrupt = 36, 8;
    Bmap = 37, 16;
    Destroy = 38, 0;
    Ioctl = 39, 32;
    Poll = 40, 24;
    NotifyReply = 41, 40;
    BatchForget = 42, 8;
    FAllocate = 43, 32;
    ReadDirPlus = 44, 40;
    Rename2 = 45, 16;
    LSeek = 46, 24;
    CopyFileRange = 47, 56;
    SetupMapping = 48, 40;
    RemoveMapping = 49, 4;
    SyncFs = 50, 8;
    TmpFile = 51, 16;
    StatX = 52, 24;
    CopyFileRange64 = 53, 56;
}

/// [`OpenOut::open_flags`]: I/O goes around the page cache.
pub const OPEN_DIRECT_IO: u32 = 1 << 0;
/// [`OpenOut::open_flags`]: several direct writes at once.
pub const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// [`GetAttrIn::flags`]: the kernel asks for itself, before it reads through a handle.
pub const GETATTR_HANDLE: u32 = 1 << 0;
/// [`OpenOut::open_flags`]: keep what the page cache holds of the file.
pub const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// [`OpenOut::open_flags`]: keep a directory's listing.
pub const OPEN_CACHE_DIR: u32 = 1 << 3;
/// [`OpenOut::open_flags`]: send no `FLUSH` for it (Linux 5.16; others ignore it).
pub const OPEN_NO_FLUSH: u32 = 1 << 5;
/// [`OpenIn::open_flags`]: clear set-user-id and set-group-id.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// [`WriteIn::write_flags`]: the page cache writes back, with some handle of the file.
pub const WRITE_CACHE: u32 = 1 << 0;
/// [`WriteIn::write_flags`]: clear set-user-id and set-group-id.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// [`LockIn::lock_flags`]: it is one of `flock`.
pub const LOCK_IS_FLOCK: u32 = 1 << 0;
/// [`OutHeader::error`] of a notification: drop what is remembered of an inode.
pub const NOTIFY_INVAL_INODE: u32 = 2;
/// [`SetXattrIn::more_flags`]: clear set-group-id with an access control list.
pub const SET_XATTR_KILL_SGID: u32 = 1 << 0;
/// `statx` mask: all basic fields and the time of creation.
pub const STATX_BASIC_AND_BTIME: u32 = 0x0fff;

record! {
    /// `fuse_in_header`: what each request starts with.
    #[derive(Copy)]
    pub struct InHeader {
        pub len: u32,
        pub opcode: u32,
        pub unique: u64,
        pub nodeid: u64,
        pub uid: u32,
        pub gid: u32,
        pub pid: u32,
        pub extension_words: u16,
        pub padding: u16,
    }
}

record! {
    /// `fuse_out_header`: what each reply starts with; `error` is a negative error number.
    pub struct OutHeader {
        pub len: u32,
        pub error: u32,
        pub unique: u64,
    }
}

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
    /// `fuse_entry_out`; `nodeid` zero: there is no such entry (or, in `READDIRPLUS`, the
    /// attributes are not given).
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
    /// `fuse_statx`; the spare words at its end are in [`StatxOut`].
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
    /// `fuse_statx_out` but for the last 14 spare words of `fuse_statx`, all zero.
    pub struct StatxOut {
        pub attr_valid: u64,
        pub attr_valid_nanoseconds: u32,
        pub flags: u32,
        pub spare: u128,
        pub statx: Statx,
    }
}

/// Zero bytes that follow [`StatxOut`].
pub const STATX_SPARE_BYTES: usize = 14 * 8;

record! {
    /// `fuse_setattr_in`.
    pub struct SetAttrIn {
        pub valid: u32,
        pub padding: u32,
        pub handle: u64,
        pub size: u64,
        pub lock_owner: u64,
        pub atime: u64,
        pub mtime: u64,
        pub ctime: u64,
        pub atime_nanoseconds: u32,
        pub mtime_nanoseconds: u32,
        pub ctime_nanoseconds: u32,
        pub mode: u32,
        pub unused4: u32,
        pub uid: u32,
        pub gid: u32,
        pub unused5: u32,
    }
}

record! {
    /// `fuse_mknod_in`.
    pub struct MkNodIn {
        pub mode: u32,
        pub device: u32,
        pub umask: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_mkdir_in`.
    pub struct MkDirIn {
        pub mode: u32,
        pub umask: u32,
    }
}

record! {
    /// `fuse_rename_in`.
    pub struct RenameIn {
        pub new_directory: u64,
    }
}

record! {
    /// `fuse_rename2_in`.
    pub struct Rename2In {
        pub new_directory: u64,
        pub flags: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_link_in`.
    pub struct LinkIn {
        pub old_nodeid: u64,
    }
}

record! {
    /// `fuse_open_in`.
    pub struct OpenIn {
        pub flags: u32,
        pub open_flags: u32,
    }
}

record! {
    /// `fuse_create_in`.
    pub struct CreateIn {
        pub flags: u32,
        pub mode: u32,
        pub umask: u32,
        pub open_flags: u32,
    }
}

record! {
    /// `fuse_open_out`.
    pub struct OpenOut {
        pub handle: u64,
        pub open_flags: u32,
        pub backing_id: u32,
    }
}

record! {
    /// `fuse_release_in`.
    pub struct ReleaseIn {
        pub handle: u64,
        pub flags: u32,
        pub release_flags: u32,
        pub lock_owner: u64,
    }
}

record! {
    /// `fuse_flush_in`.
    pub struct FlushIn {
        pub handle: u64,
        pub unused: u32,
        pub padding: u32,
        pub lock_owner: u64,
    }
}

record! {
    /// `fuse_getattr_in`.
    pub struct GetAttrIn {
        pub flags: u32,
        pub padding: u32,
        pub handle: u64,
    }
}

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
    /// `fuse_write_out`, and `fuse_getxattr_out` too: a size.
    pub struct SizeOut {
        pub size: u32,
        pub padding: u32,
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

record! {
    /// `fuse_fsync_in`.
    pub struct FsyncIn {
        pub handle: u64,
        pub fsync_flags: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_setxattr_in`. Kernels without [`init_flags::SETXATTR_EXT`] send its first half.
    pub struct SetXattrIn {
        pub size: u32,
        pub flags: u32,
        pub more_flags: u32,
        pub padding: u32,
    }
}

record! {
    /// `fuse_getxattr_in`.
    pub struct GetXattrIn {
        pub size: u32,
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
    /// `fuse_copy_file_range_in`; the node in the header is the source's.
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

record! {
    /// `fuse_lseek_out`, and `fuse_copy_file_range_out` too: a number.
    pub struct NumberOut {
        pub number: u64,
    }
}

record! {
    /// `fuse_lk_in`: the lock is `start` to `end`, both included.
    pub struct LockIn {
        pub handle: u64,
        pub owner: u64,
        pub start: u64,
        pub end: u64,
        pub kind: u32,
        pub pid: u32,
        pub lock_flags: u32,
        pub padding: u32,
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
    /// `fuse_notify_inval_inode_out`.
    pub struct InvalInodeOut {
        pub ino: u64,
        pub offset: i64,
        pub len: i64,
    }
}

record! {
    /// `fuse_ioctl_in`.
    pub struct IoctlIn {
        pub handle: u64,
        pub ioctl_flags: u32,
        pub command: u32,
        pub argument: u64,
        pub in_bytes: u32,
        pub out_bytes: u32,
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

record! {
    /// `fuse_interrupt_in`.
    pub struct InterruptIn {
        pub unique: u64,
    }
}

record! {
    /// `fuse_dirent` without its name, which follows with zeros up to a multiple of eight bytes.
    pub struct Dirent {
        pub ino: u64,
        pub offset: u64,
        pub name_bytes: u32,
        pub kind: u32,
    }
}

/// Bytes of [`Dirent`].
pub const DIRENT_BYTES: usize = 24;
/// Bytes of [`EntryOut`].
pub const ENTRY_OUT_BYTES: usize = 128;

/// A device number as the kernel packs it into 32 bits, from `major << 32 | minor`.
pub fn pack_device(device: u64) -> u32 {
    let (major, minor) = ((device >> 32) as u32, device as u32);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// The other way round.
pub fn unpack_device(packed: u32) -> u64 {
    let major = packed >> 8 & 0xfff;
    let minor = (packed & 0xff) | (packed >> 12 & 0xf_ff00);
    u64::from(major) << 32 | u64::from(minor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skep_types::codec::{Codec, Reader};

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
    fn the_table_of_opcodes_says_how_long_each_struct_is() {
        let check = |opcode: Opcode, len: usize| assert_eq!(opcode.argument_bytes(), len);
        check(Opcode::SetAttr, len_of::<SetAttrIn>());
        check(Opcode::MkNod, len_of::<MkNodIn>());
        check(Opcode::MkDir, len_of::<MkDirIn>());
        check(Opcode::Rename, len_of::<RenameIn>());
        check(Opcode::Rename2, len_of::<Rename2In>());
        check(Opcode::Link, len_of::<LinkIn>());
        check(Opcode::Open, len_of::<OpenIn>());
        check(Opcode::Create, len_of::<CreateIn>());
        check(Opcode::Read, len_of::<ReadIn>());
        check(Opcode::ReadDir, len_of::<ReadIn>());
        check(Opcode::ReadDirPlus, len_of::<ReadIn>());
        check(Opcode::Write, len_of::<WriteIn>());
        check(Opcode::Release, len_of::<ReleaseIn>());
        check(Opcode::Flush, len_of::<FlushIn>());
        check(Opcode::Fsync, len_of::<FsyncIn>());
        check(Opcode::FsyncDir, len_of::<FsyncIn>());
        check(Opcode::SetXattr, len_of::<SetXattrIn>());
        check(Opcode::GetXattr, len_of::<GetXattrIn>());
        check(Opcode::ListXattr, len_of::<GetXattrIn>());
        check(Opcode::Ioctl, len_of::<IoctlIn>());
        check(Opcode::Interrupt, len_of::<InterruptIn>());
        check(Opcode::FAllocate, len_of::<AllocateIn>());
        check(Opcode::LSeek, len_of::<SeekIn>());
        check(Opcode::CopyFileRange, len_of::<CopyIn>());
        check(Opcode::CopyFileRange64, len_of::<CopyIn>());
        check(Opcode::GetLock, len_of::<LockIn>());
        check(Opcode::SetLock, len_of::<LockIn>());
        check(Opcode::SetLockWait, len_of::<LockIn>());
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(*opcode as u32), Some(*opcode));
        }
    }

    proptest! {
        #[test]
        fn device_numbers_survive_packing(major in 0_u64..1 << 12, minor in 0_u64..1 << 20) {
            let device = major << 32 | minor;
            prop_assert_eq!(unpack_device(pack_device(device)), device);
        }
    }
}

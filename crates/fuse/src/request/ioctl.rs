//! What `ioctl` of flags and projects carries, as `include/uapi/linux/fs.h` has it. How FUSE
//! carries an `ioctl` is in the parent.

use skep_types::codec::record;

/// `FS_IOC_GETFLAGS`.
pub(crate) const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
pub(crate) const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`.
pub(crate) const GET_FS_XATTR: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
pub(crate) const SET_FS_XATTR: u32 = 0x401c_5820;
/// `FS_PROJINHERIT_FL` among the flags.
pub(crate) const FLAG_PROJECT_INHERIT: u32 = 0x2000_0000;
/// `FS_XFLAG_PROJINHERIT` in [`FsXattr::flags`].
pub(crate) const XFLAG_PROJECT_INHERIT: u32 = 0x0200;

record! {
    /// `struct fsxattr` of `include/uapi/linux/fs.h`.
    #[derive(Copy)]
    pub struct FsXattr {
        pub flags: u32,
        pub extent_bytes: u32,
        pub extents: u32,
        pub project: u32,
        pub copy_extent_bytes: u32,
        pub padding: u64,
    }
}

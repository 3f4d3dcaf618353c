//! The parts of a file that have space on the device: `FS_IOC_FIEMAP` of `linux/fiemap.h`.

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
/// `FIEMAP_EXTENT_LAST`: the last extent of the file.
const LAST: u32 = 1;
/// `FIEMAP_EXTENT_SHARED`: another file shares the extent, so a write to the extent allocates new
/// space.
const SHARED: u32 = 0x2000;
/// Maximum number of extents per call.
const EXTENTS: usize = 64;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap`, followed by space for extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// Returns how many bytes of a range lie in extents that the file shares with no other file.
///
/// # Errors
/// Returns `Unsupported` if the file system does not report extents.
pub(super) fn allocated(file: RawFd, range: Range<u64>) -> io::Result<u64> {
    let (mut allocated, mut at) = (0, range.start);
    while at < range.end {
        let mut map = Map {
            start: at,
            length: range.end - at,
            flags: 0,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: the kernel writes at most `extent_count` extents, for which the struct has space.
        if unsafe { libc::ioctl(file, FS_IOC_FIEMAP, &raw mut map) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let found = &map.extents[..EXTENTS.min(map.mapped_extents as usize)];
        for extent in found.iter().filter(|extent| extent.flags & SHARED == 0) {
            let end = extent.logical.saturating_add(extent.length).min(range.end);
            allocated += end.saturating_sub(extent.logical.max(at));
        }
        match found.last() {
            Some(last) if last.flags & LAST == 0 && found.len() == EXTENTS => {
                at = last.logical.saturating_add(last.length);
            }
            _ => break,
        }
    }
    Ok(allocated)
}

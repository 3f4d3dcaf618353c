//! Compares the bytes that the file system has stored for a copy with the bytes of its source.
//!
//! A normal read would return the cached pages that this process has just written. For this reason,
//! the copy is opened with `O_DIRECT`, which bypasses them. If the file system does not support
//! `O_DIRECT`, the process advises the kernel to drop the cached pages of the copy. Cached pages of
//! the source are dropped in the same way. Caches of servers and disks are still used.

use crate::failure::Failure;
use crate::version::Identity;
use rustix::fs::{Advice, Mode, OFlags, fadvise, fcntl_getfl, fcntl_setfl, openat};
use rustix::io::Errno;
use skep_s3::checksum::Crc;
use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Maximum number of bytes of one read. `O_DIRECT` needs a multiple of the block size.
const BUFFER: usize = 4 << 20;
/// Alignment of memory, offsets and lengths for `O_DIRECT`. It is sufficient for all common
/// devices.
const ALIGNMENT: usize = 4096;

/// Opens a copy for comparison. `known` is the descriptor through which the copy was written.
pub(crate) fn open(parent: &File, name: &OsStr, known: &File) -> Result<File, Failure> {
    // Without this sync, bytes that are not on the device yet would be read from the cached pages.
    known.sync_data().map_err(Failure::of("sync"))?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let direct = openat(parent, name, flags | OFlags::DIRECT, Mode::empty());
    let copy = match direct {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => openat(parent, name, flags, Mode::empty()),
        other => other,
    };
    let copy = File::from(copy.map_err(Failure::of("open the copy to compare it"))?);
    let identity = |file: &File| {
        let metadata = file.metadata().map_err(Failure::of("read the attributes of the copy"))?;
        Ok(Identity::of(&metadata))
    };
    if identity(&copy)? != identity(known)? {
        return Err(Failure::because("verify", "another program has replaced the copy"));
    }
    Ok(copy)
}

/// Compares a range of a copy with its source, and fails at the first difference. Calls `compared`
/// with the number of bytes after each step. `copy` comes from [`open`]. The range begins at a
/// multiple of [`ALIGNMENT`].
pub(crate) fn compare(
    source: &File,
    copy: &File,
    range: Range<u64>,
    compared: impl Fn(u64),
) -> Result<(), Failure> {
    debug_assert!(range.start.is_multiple_of(ALIGNMENT as u64), "an aligned range");
    let len = range.end.saturating_sub(range.start);
    let Some(some) = NonZeroU64::new(len) else { return Ok(()) };
    // An error is ignored, because this is only advice for the page cache.
    let _ = fadvise(source, range.start, Some(some), Advice::DontNeed);
    let _ = fadvise(copy, range.start, Some(some), Advice::DontNeed);
    let size = usize::try_from(len).unwrap_or(BUFFER).min(BUFFER).next_multiple_of(ALIGNMENT);
    let (mut ours, mut theirs) = (vec![0; size], vec![0; size + ALIGNMENT]);
    let skip = theirs.as_ptr().align_offset(ALIGNMENT);
    let theirs = &mut theirs[skip..skip + size];
    let mut at = range.start;
    while at < range.end {
        let part = usize::try_from(range.end - at).unwrap_or(size).min(size);
        let count = fill(source, &mut ours[..part], at).map_err(Failure::of("read"))?;
        if count < part {
            return Err(Failure::changed());
        }
        let found = fill_blocks(copy, theirs, at).map_err(Failure::of("read the copy"))?.min(part);
        let same = ours[..part].iter().zip(&theirs[..found]).take_while(|(a, b)| a == b).count();
        if same < part {
            let position = at + same as u64;
            let reason = format!(
                "the copy differs from the source at byte {position}; copy again without --resume"
            );
            return Err(Failure::because("verify", reason));
        }
        at += part as u64;
        compared(part as u64);
    }
    Ok(())
}

/// Returns the CRC-32C of a range of a file. If the file is open with `O_DIRECT`, the range must
/// begin at a multiple of [`ALIGNMENT`]. `None` means that the file ends inside the range.
pub(crate) fn checksum(
    copy: &File,
    range: Range<u64>,
    read: impl Fn(u64),
) -> Result<Option<u32>, Failure> {
    let len = range.end.saturating_sub(range.start);
    if let Some(some) = NonZeroU64::new(len) {
        let _ = fadvise(copy, range.start, Some(some), Advice::DontNeed);
    }
    let size = usize::try_from(len).unwrap_or(BUFFER).min(BUFFER).next_multiple_of(ALIGNMENT);
    let mut buffer = vec![0; size + ALIGNMENT];
    let skip = buffer.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut buffer[skip..skip + size];
    let mut crc = Crc::default();
    let mut at = range.start;
    while at < range.end {
        let part = usize::try_from(range.end - at).unwrap_or(size).min(size);
        let found = fill_blocks(copy, buffer, at).map_err(Failure::of("read the copy"))?;
        if found < part {
            return Ok(None);
        }
        crc.update(&buffer[..part]);
        at += part as u64;
        read(part as u64);
    }
    Ok(Some(crc.value()))
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads whole blocks, as `O_DIRECT` requires, until the buffer is full or the file ends.
fn fill_blocks(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut filled = 0;
    // A read that does not end at a multiple of the alignment has reached the end of the file.
    while filled < buffer.len() && filled.is_multiple_of(ALIGNMENT) {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                // The block size of this file system is larger than the alignment, so the reads
                // continue without `O_DIRECT`.
                let flags = fcntl_getfl(file)?;
                if error.kind() != std::io::ErrorKind::InvalidInput
                    || !flags.contains(OFlags::DIRECT)
                {
                    return Err(error);
                }
                fcntl_setfl(file, flags - OFlags::DIRECT)?;
            }
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_comparison_names_the_first_byte_that_differs() {
        let directory = tempfile::tempdir().unwrap();
        let parent = File::open(directory.path()).unwrap();
        let long = |last: &[u8]| [&vec![7; BUFFER + 10], last].concat();
        let check = |a: &[u8], b: &[u8]| {
            let [source, copy] = [("source", a), ("copy", b)].map(|(name, contents)| {
                let options = &mut File::options();
                let options = options.read(true).write(true).create(true).truncate(true);
                let file = options.open(directory.path().join(name)).unwrap();
                file.write_all_at(contents, 0).unwrap();
                file
            });
            let opened = open(&parent, OsStr::new("copy"), &copy).unwrap();
            compare(&source, &opened, 0..a.len() as u64, |_| ()).map_err(|it| it.error.to_string())
        };
        let differs = |at: usize| {
            Err(format!(
                "the copy differs from the source at byte {at}; copy again without --resume"
            ))
        };
        assert_eq!(check(b"same", b"same"), Ok(()));
        assert_eq!(check(b"same", b"samX"), differs(3));
        assert_eq!(check(b"same", b"sam"), differs(3));
        assert_eq!(check(&long(b"a"), &long(b"a")), Ok(()));
        assert_eq!(check(&long(b"a"), &long(b"b")), differs(BUFFER + 10));
        assert_eq!(check(b"", b""), Ok(()));
    }

    #[test]
    fn verification_refuses_a_copy_that_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let parent = File::open(directory.path()).unwrap();
        let known = File::create(directory.path().join("copy")).unwrap();
        std::fs::write(directory.path().join("other"), "").unwrap();
        std::fs::rename(directory.path().join("other"), directory.path().join("copy")).unwrap();
        assert!(open(&parent, OsStr::new("copy"), &known).is_err());
    }
}

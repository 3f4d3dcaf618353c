//! Copies and compares the bytes of a range. Holes of the source stay holes.
//!
//! The copy has the length of the source and no data in the range before. `copy_file_range` is used
//! if both files are in one file system, where the file system may share blocks or copy on its
//! servers; between file systems the kernel would only copy through its own pages.

use crate::pace::Pace;
use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Length of one read.
const BUFFER: usize = 4 << 20;
/// Length of one `copy_file_range`, so that the rate and the progress are smooth.
const STEP: usize = 64 << 20;

/// The two files of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    pub(crate) source: &'a File,
    pub(crate) destination: &'a File,
}

/// A failed operation on one of the two files.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The operation, for messages.
    pub(crate) what: &'static str,
    pub(crate) error: io::Error,
}

impl Failure {
    pub(crate) fn of<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self { what, error: error.into() }
    }

    /// Whether the destination has no space left.
    pub(crate) fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.error.kind(), StorageFull | QuotaExceeded)
    }
}

/// Returns the next range with data that begins in `range`. `None` means that the rest is a hole.
fn next_data(file: &File, range: &Range<u64>) -> io::Result<Option<Range<u64>>> {
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // The file system cannot find holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => range.start,
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end);
    let end = if end <= start { range.end } else { end.min(range.end) };
    Ok((start < range.end).then_some(start..end))
}

/// Copies a range, and passes the number of bytes of each part to `copied`.
pub(crate) fn copy(
    files: Files<'_>,
    range: Range<u64>,
    pace: &Pace,
    copied: impl Fn(u64),
) -> Result<(), Failure> {
    let devices = [files.source, files.destination].map(|file| file.metadata().map(|it| it.dev()));
    let mut is_offloaded =
        matches!(devices, [Ok(source), Ok(destination)] if source == destination);
    let mut buffer = Vec::new();
    let mut rest = range;
    while let Some(data) =
        next_data(files.source, &rest).map_err(Failure::of("find data of the source"))?
    {
        let mut at = data.start;
        while at < data.end {
            let len = usize::try_from(data.end - at).unwrap_or(usize::MAX);
            let step = if is_offloaded {
                match offload(files, at, len.min(STEP), pace) {
                    Ok(step) => step,
                    Err(error) if cannot_offload(error) => {
                        is_offloaded = false;
                        continue;
                    }
                    Err(error) => return Err(Failure::of("write")(error)),
                }
            } else {
                if buffer.is_empty() {
                    buffer.resize(len.min(BUFFER), 0);
                }
                let len = len.min(buffer.len());
                through_memory(files, at, &mut buffer[..len], pace)?
            };
            if step == 0 {
                // The source has become shorter. The caller compares its attributes.
                return Ok(());
            }
            at += step as u64;
            copied(step as u64);
        }
        rest.start = data.end;
    }
    Ok(())
}

fn cannot_offload(error: Errno) -> bool {
    let unable = [Errno::XDEV, Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP, Errno::PERM];
    unable.contains(&error)
}

fn offload(files: Files<'_>, at: u64, len: usize, pace: &Pace) -> Result<usize, Errno> {
    pace.take(len as u64);
    let (mut from, mut to) = (at, at);
    copy_file_range(files.source, Some(&mut from), files.destination, Some(&mut to), len)
}

fn through_memory(
    files: Files<'_>,
    at: u64,
    buffer: &mut [u8],
    pace: &Pace,
) -> Result<usize, Failure> {
    pace.take(buffer.len() as u64);
    let count = files.source.read_at(buffer, at).map_err(Failure::of("read"))?;
    let written = files.destination.write_all_at(&buffer[..count], at);
    written.map_err(Failure::of("write"))?;
    Ok(count)
}

/// Compares all bytes of two files, and returns the first position at which they differ. Passes
/// the number of bytes of each part to `compared`.
pub(crate) fn difference(
    files: Files<'_>,
    len: u64,
    compared: impl Fn(u64),
) -> Result<Option<u64>, Failure> {
    let size = usize::try_from(len).unwrap_or(BUFFER).clamp(1, BUFFER);
    let (mut ours, mut theirs) = (vec![0; size], vec![0; size]);
    let mut at = 0;
    loop {
        let count = files.source.read_at(&mut ours, at).map_err(Failure::of("read"))?;
        let mut filled = 0;
        while filled < count {
            let part = files.destination.read_at(&mut theirs[filled..count], at + filled as u64);
            match part.map_err(Failure::of("read the copy"))? {
                0 => break,
                part => filled += part,
            }
        }
        let same = ours[..count].iter().zip(&theirs[..filled]).take_while(|(a, b)| a == b).count();
        if same < count {
            return Ok(Some(at + same as u64));
        }
        if count == 0 {
            let is_longer = files.destination.read_at(&mut theirs[..1], at);
            return Ok((is_longer.map_err(Failure::of("read the copy"))? > 0).then_some(at));
        }
        at += count as u64;
        compared(count as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn file(contents: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(contents, 0).unwrap();
        file
    }

    fn copied(source: &File, destination: &File, range: Range<u64>) -> u64 {
        let total = Cell::new(0);
        let files = Files { source, destination };
        copy(files, range, &Pace::new(None), |count| total.set(total.get() + count)).unwrap();
        total.into_inner()
    }

    #[test]
    fn range_is_copied_to_its_place_and_nothing_else() {
        let source = file(b"0123456789");
        let destination = file(b"..........");
        copied(&source, &destination, 3..6);
        let mut found = [0; 10];
        destination.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"...345....");
    }

    #[test]
    fn holes_are_not_copied() {
        let source = tempfile::tempfile().unwrap();
        source.set_len(64 << 20).unwrap();
        source.write_all_at(&[7; 4096], 32 << 20).unwrap();
        let destination = tempfile::tempfile().unwrap();
        destination.set_len(64 << 20).unwrap();
        let bytes = copied(&source, &destination, 0..64 << 20);
        assert!(bytes < 4 << 20, "{bytes} bytes were copied");
        let blocks = destination.metadata().unwrap().blocks();
        assert!(blocks * 512 < 4 << 20, "{blocks} blocks");
        let files = Files { source: &source, destination: &destination };
        assert_eq!(difference(files, 64 << 20, |_| ()).unwrap(), None);
    }

    #[test]
    fn first_difference_is_found() {
        let check = |a: &[u8], b: &[u8]| {
            let (source, destination) = (file(a), file(b));
            let files = Files { source: &source, destination: &destination };
            difference(files, a.len() as u64, |_| ()).unwrap()
        };
        assert_eq!(check(b"same", b"same"), None);
        assert_eq!(check(b"same", b"samX"), Some(3));
        assert_eq!(check(b"same", b"sam"), Some(3));
        assert_eq!(check(b"same", b"same and more"), Some(4));
        assert_eq!(check(b"", b""), None);
    }
}

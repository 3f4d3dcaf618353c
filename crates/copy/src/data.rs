//! Copies the bytes of a range. Holes of the source stay holes.
//!
//! The copy must already have the length of the source, and no data in the range. If both files are
//! in one file system, `copy_file_range` is used, because the file system may then share blocks, or
//! copy on its servers. Between different file systems, `copy_file_range` has no advantage: the
//! kernel copies the bytes through its own pages.

use crate::failure::Failure;
use crate::pace::Pace;
use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Maximum number of bytes of one read.
const BUFFER: usize = 4 << 20;
/// Maximum number of bytes of one `copy_file_range`. This number is so small that the rate and the
/// displayed progress change smoothly.
const STEP: usize = 64 << 20;

/// The two files of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'a> {
    pub(crate) source: &'a File,
    pub(crate) destination: &'a File,
}

/// Whether the allocated blocks of a source have fewer bytes than the file, so that the source may
/// have holes. All other sources are read as a whole, which is also correct for a source with
/// holes.
pub(crate) fn is_sparse(source: &File) -> Result<bool, Failure> {
    let metadata = source.metadata().map_err(Failure::of("read the attributes"))?;
    let is_sparse = metadata.blocks().saturating_mul(512) < metadata.len();
    if is_sparse {
        // Some file systems report data without blocks only after a sync, so sync the file first.
        // Other file systems refuse to sync a file that is open for reading. This error is ignored.
        let _ = source.sync_data();
    }
    Ok(is_sparse)
}

/// Returns the first range with data in `range`. `None` means that there is only a hole.
fn next_data(file: &File, range: &Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) => start,
        // The range is a hole, or the source has become shorter than the range. The caller notices
        // a shorter source when it compares the version of the source.
        Err(Errno::NXIO) => return Ok(None),
        // The file system cannot report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => range.start,
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(range.end);
    let end = if end <= start { range.end } else { end.min(range.end) };
    Ok((start < range.end).then_some(start..end))
}

/// Copies the bytes of a range. Calls `copied` with the number of bytes after each step.
///
/// # Errors
/// Fails if the source ends inside the range.
pub(crate) fn copy(
    files: Files<'_>,
    range: Range<u64>,
    is_sparse: bool,
    pace: &Pace,
    copied: impl Fn(u64),
) -> Result<(), Failure> {
    let mut bytes = Bytes { files, pace, is_offloaded: is_one_file_system(files), buffer: vec![] };
    if !is_sparse {
        return bytes.copy(range, &copied);
    }
    let mut rest = range;
    while let Some(data) =
        next_data(files.source, &rest).map_err(Failure::of("find data of the source"))?
    {
        rest.start = data.end;
        bytes.copy(data, &copied)?;
    }
    Ok(())
}

fn is_one_file_system(files: Files<'_>) -> bool {
    let devices = [files.source, files.destination].map(|file| file.metadata().map(|it| it.dev()));
    matches!(devices, [Ok(source), Ok(destination)] if source == destination)
}

/// A running copy of a range: the files, the rate limit and the method.
struct Bytes<'a> {
    files: Files<'a>,
    pace: &'a Pace,
    /// Whether the bytes are copied with `copy_file_range`.
    is_offloaded: bool,
    buffer: Vec<u8>,
}

impl Bytes<'_> {
    fn copy(&mut self, range: Range<u64>, copied: &impl Fn(u64)) -> Result<(), Failure> {
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let step = match self.is_offloaded {
                true => self.offload(at, len.min(STEP))?,
                false => self.through_memory(at, len)?,
            };
            at += step as u64;
            copied(step as u64);
        }
        Ok(())
    }

    /// Copies at most `len` bytes with `copy_file_range`, and returns their number. Returns 0 if
    /// the file systems do not support `copy_file_range`. The caller then copies these bytes
    /// through memory.
    fn offload(&mut self, at: u64, len: usize) -> Result<usize, Failure> {
        self.pace.take(len as u64);
        let (mut from, mut to) = (at, at);
        let Files { source, destination } = self.files;
        let step = match copy_file_range(source, Some(&mut from), destination, Some(&mut to), len) {
            Ok(step) => step,
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => 0,
            Err(error) => return Err(Failure::of("copy the bytes")(error)),
        };
        self.is_offloaded = step > 0;
        Ok(step)
    }

    fn through_memory(&mut self, at: u64, len: usize) -> Result<usize, Failure> {
        if self.buffer.is_empty() {
            self.buffer.resize(len.min(BUFFER), 0);
        }
        let len = len.min(self.buffer.len());
        self.pace.take(len as u64);
        let buffer = &mut self.buffer[..len];
        let count = match self.files.source.read_at(buffer, at) {
            // The source has become shorter since its attributes were read.
            Ok(0) => return Err(Failure::changed()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(0),
            Err(error) => return Err(Failure::of("read")(error)),
        };
        let written = self.files.destination.write_all_at(&buffer[..count], at);
        written.map_err(Failure::of("write"))?;
        Ok(count)
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
        let count = |count| total.set(total.get() + count);
        copy(files, range, is_sparse(source).unwrap(), &Pace::new(None), count).unwrap();
        total.into_inner()
    }

    #[test]
    fn only_bytes_of_the_requested_range_are_copied() {
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
        let mut found = [0; 4096];
        destination.read_exact_at(&mut found, 32 << 20).unwrap();
        assert_eq!(found, [7; 4096]);
    }

    #[test]
    fn copy_fails_if_the_source_ends_inside_the_requested_range() {
        let (source, destination) = (file(b"short"), file(b"....."));
        let files = Files { source: &source, destination: &destination };
        for is_offloaded in [true, false] {
            let pace = Pace::new(None);
            let mut bytes = Bytes { files, pace: &pace, is_offloaded, buffer: vec![] };
            assert!(bytes.copy(0..10, &|_| ()).is_err());
        }
    }
}

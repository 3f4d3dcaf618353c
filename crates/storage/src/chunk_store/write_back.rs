//! Measures the load of the disk, and writes streams back early.
//!
//! The kernel begins to write data back after 30 s, or when a tenth of the memory is dirty. Without
//! an early write-back, the disk would be idle while a client writes a stream, and the client's
//! `fsync` would wait until the whole stream is written. For this reason, when a stream reaches the
//! end of a region, the target begins to write back the data of the region and the page with its
//! checksums. The stream will make no further change to this data or this page. A write-back of
//! smaller parts would cost more CPU time for the allocation of blocks. The data stays in the page
//! cache, and the crash rule (docs/design/0003-chunk-store.md) holds whether the data or the page
//! reaches the device first. An io_uring worker allocates the blocks and sends the requests to the
//! disk.
//!
//! # Errors
//! The kernel reports most errors of the device to the next sync. However, a file system that
//! cannot allocate blocks may return the error only to the write-back, and drop the pages. So the
//! target stores such an error, and the next sync of the chunk file returns this error. A sync also
//! waits for the write-backs that have begun before the end of the sync. Without this wait, the
//! sync could succeed before the target gets the error of a write-back that has dropped pages.

use super::chunk_file::ChunkFile;
use crate::limits::{MAX_WRITE_BACKS, SLOW_PAUSE, SLOW_WRITE, WRITE_BACK_BYTES};
use skep_format::chunk::{REGION_BYTES, page_offset};
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The load of the disk of a target.
#[derive(Debug, Default)]
pub(super) struct DiskLoad {
    /// Time until which writes go to io_uring workers, because the disk is slow and a write to the
    /// page cache could block the thread.
    slow_until: Cell<Duration>,
    /// Number of early write-backs that the io_uring workers have not sent to the disk yet.
    write_backs: Rc<Cell<usize>>,
}

impl DiskLoad {
    /// Whether a write to the page cache was throttled recently.
    pub(super) fn is_slow(&self, now: Duration) -> bool {
        now < self.slow_until.get()
    }

    /// Whether all early write-backs have ended.
    #[cfg(test)]
    pub(super) fn has_no_write_back(&self) -> bool {
        self.write_backs.get() == 0
    }

    /// Records that a write to the page cache lasted from `start` to `end`.
    pub(super) fn wrote(&self, start: Duration, end: Duration) {
        if end - start > SLOW_WRITE {
            self.slow_until.set(end + SLOW_PAUSE);
        }
    }

    /// Begins to write back a region if `range`, the logical range that was just written, looks
    /// like the end of a stream in the region. Does not wait for the write-back.
    pub(super) fn begin_write_back(&self, file: &Rc<ChunkFile>, region: u64, range: &Range<u64>) {
        if !completes_region(range) || self.write_backs.get() >= MAX_WRITE_BACKS {
            return;
        }
        self.write_backs.set(self.write_backs.get() + 1);
        let (file, count) = (Rc::clone(file), Rc::clone(&self.write_backs));
        let range = page_offset(region)..page_offset(region + 1);
        let number = file.writes.write_backs.begin();
        skep_env::spawn(async move {
            if let Err(error) = file.file.begin_write_back(range).await
                && may_lose_pages(&error)
            {
                keep_error(&file, error);
            }
            file.writes.write_backs.end(number);
            count.set(count.get() - 1);
        })
        .detach();
    }
}

/// Whether a write of this range is likely to be the last write of a stream in a region.
fn completes_region(range: &Range<u64>) -> bool {
    range.end.is_multiple_of(REGION_BYTES) && range.end - range.start >= WRITE_BACK_BYTES
}

/// Whether this error of a write-back means that the kernel may have dropped pages that it could
/// not write. Every other error means that the write-back did not begin.
fn may_lose_pages(error: &io::Error) -> bool {
    use io::ErrorKind::{
        Interrupted, InvalidInput, NotSeekable, OutOfMemory, Unsupported, WouldBlock,
    };
    let not_begun = [Interrupted, InvalidInput, NotSeekable, OutOfMemory, Unsupported, WouldBlock];
    !not_begun.contains(&error.kind())
}

/// Makes the next sync of the file fail with an error of a write-back.
fn keep_error(file: &ChunkFile, error: io::Error) {
    tracing::error!(
        "cannot write data of chunk file {} to the device, so the next sync of this file fails: \
         {error}",
        file.path.display()
    );
    file.writes.failed_write_back.borrow_mut().get_or_insert(error);
    // Count a change. A sync of a file without a change since its last sync does nothing, so the
    // next sync would not return this error.
    file.note_change();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_write_back_does_not_count_as_loss_of_pages() {
        let may = |kind: io::ErrorKind| may_lose_pages(&kind.into());
        assert!(may(io::ErrorKind::StorageFull) && may(io::ErrorKind::Other));
        assert!(!may(io::ErrorKind::Interrupted) && !may(io::ErrorKind::InvalidInput));
    }

    #[test]
    fn long_write_up_to_the_end_of_a_region_completes_the_region() {
        let end = 3 * REGION_BYTES;
        assert!(completes_region(&(end - (1 << 20)..end)));
        assert!(!completes_region(&(end - (1 << 20)..end - 4096)));
        assert!(!completes_region(&(end - 4096..end)), "a database rewrites its last page often");
    }

    #[test]
    fn throttled_write_marks_the_disk_as_slow_for_a_short_time() {
        let (load, start) = (DiskLoad::default(), Duration::from_secs(1));
        load.wrote(start, start + SLOW_WRITE);
        assert!(!load.is_slow(start));
        let end = start + SLOW_WRITE * 2;
        load.wrote(start, end);
        assert!(load.is_slow(end) && !load.is_slow(end + SLOW_PAUSE));
    }
}

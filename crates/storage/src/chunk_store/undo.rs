//! Undoes a write that failed in the middle because the disk is full or the file is too long. After
//! the undo, the file has its old length, and all data matches its checksums.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, granule_in_region, whole_granules};
use super::region::physical_range;
use super::write::RegionWrite;
use skep_format::chunk::{PAGE_BYTES, granule_checksum, page_offset, physical_length};
use skep_types::{ErrorCode, GRANULE_BYTES, Result};
use std::io;
use std::ops::Range;

impl ChunkStore {
    /// Restores the length of a file. Uses the current data to recompute the checksums of the
    /// regions that the failed writes touched. The caller must hold the file's lock for these
    /// writes.
    pub(super) async fn undo(&self, file: &ChunkFile, writes: &[RegionWrite]) -> Result<()> {
        // Other writes in progress may have extended the file by data that `size` does not include
        // yet. So the file must keep the length that these writes need.
        let size = file.size.get();
        let end = file.size_without(writes.last().map_or(0, |write| write.range.end));
        let length = file.file.borrow_std().metadata().map(|it| it.len());
        let length = length.map_err(|error| self.note_failure(file.io_error(error)))?;
        if length > physical_length(end) {
            self.set_physical_length(file, end)?;
        }
        file.writes.must_shrink.set(file.writes.must_shrink.get() || end > size);
        for write in writes {
            let kept = write.range.start..write.range.end.min(end);
            if write.was_blank && self.punch(file, write.index, &kept)? {
                // The write had filled only holes, so punching these holes again restores the
                // region.
                write.region.header.set(None);
                write.region.checksums.borrow_mut().fill(0);
                continue;
            }
            // The file keeps bytes beyond its size if other writes in progress need this length. So
            // the bytes of this write beyond the size must become zeros. If the other writes also
            // fail, the last write truncates the file to its size.
            let beyond = write.range.start.max(size)..write.range.end.min(end);
            self.zero(file, &beyond)?;
            self.refresh_checksums(file, write).await?;
            match self.write_page(file, write.index, &write.region) {
                // There is no space for the page of a region that was blank. The next load of the
                // region accepts the present data, which is correct for a region without a page.
                Err(error) if error.code() == ErrorCode::NoSpace && write.was_blank => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Punches holes into a region's page and into a logical range of its data. Returns `false` if
    /// the file system does not support holes, or has no space for the records of the holes.
    fn punch(&self, file: &ChunkFile, region: u64, data: &Range<u64>) -> Result<bool> {
        let page = page_offset(region)..page_offset(region) + PAGE_BYTES;
        let ranges = [Some(page), (!data.is_empty()).then(|| physical_range(data))];
        for range in ranges.into_iter().flatten() {
            match file.file.punch_hole(range) {
                Err(error) if does_not_punch(&error) => return Ok(false),
                // No data exists beyond the maximum file length.
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {}
                other => other.map_err(|error| self.note_failure(file.io_error(error)))?,
            }
        }
        Ok(true)
    }

    /// Sets a logical range within one region to zeros.
    fn zero(&self, file: &ChunkFile, range: &Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let bytes = physical_range(range);
        let zeroed = match file.file.punch_hole(bytes.clone()) {
            Err(error) if does_not_punch(&error) => {
                file.file.write_now(&vec![0; (bytes.end - bytes.start) as usize], bytes.start)
            }
            punched => punched,
        };
        zeroed.map_err(|error| self.note_failure(file.io_error(error)))
    }

    /// Sets the length of a file that is too long after a failed write, unless another write of the
    /// file is in progress. The caller's own write must still count as in progress.
    pub(super) fn shrink(&self, file: &ChunkFile) -> Result<()> {
        if !file.writes.must_shrink.get() || file.has_other_writes() || file.is_removed.get() {
            return Ok(());
        }
        self.truncate_to_size(file)?;
        file.writes.must_shrink.set(false);
        Ok(())
    }

    async fn refresh_checksums(&self, file: &ChunkFile, write: &RegionWrite) -> Result<()> {
        let range = whole_granules(&write.range);
        let data = self.read_region(file, &range).await?;
        let first = granule_in_region(range.start);
        let mut checksums = write.region.checksums.borrow_mut();
        let bytes = data.bytes();
        let granules = bytes.chunks(GRANULE_BYTES as usize);
        for (value, granule) in checksums[first..].iter_mut().zip(granules) {
            *value = granule_checksum(granule);
        }
        Ok(())
    }

    /// Removes the file if the failed write had created it and no other write needs it.
    pub(super) fn drop_if_new(&self, file: &ChunkFile) {
        if file.is_new.get() && file.size.get() == 0 && !file.has_other_writes() {
            file.is_removed.set(true);
            self.open.borrow_mut().remove(&file.key);
            self.truncate_dirty(&file.key, 0);
            // Ignore an error: an empty chunk file then stays until the removal of the file, or
            // until the clean-up of chunk files without an inode.
            let _cleaned_up_later = std::fs::remove_file(&file.path);
        }
    }
}

/// Whether this error of an attempt to punch a hole means that the target must write zeros instead.
/// The file system may have cleared a part of the range before the error.
pub(super) fn does_not_punch(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::StorageFull)
}

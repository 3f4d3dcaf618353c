//! After a write that met the end of the disk, or of the longest file there, in the middle: nothing
//! half-written stays visible, and what did change matches its checksums.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, granule_in_region, whole_granules};
use super::region::physical_range;
use super::write::RegionWrite;
use skep_format::chunk::{PAGE_BYTES, granule_checksum, page_offset};
use skep_types::{ErrorCode, GRANULE_BYTES, Result};
use std::io;
use std::ops::Range;

impl ChunkStore {
    /// Gives a file its old length back, and its regions checksums of what they hold now. The
    /// caller holds the file's lock for the writes that failed.
    pub(super) async fn undo(&self, file: &ChunkFile, writes: &[RegionWrite]) -> Result<()> {
        self.truncate_to_size(file)?;
        for write in writes {
            let kept = write.range.start..write.range.end.min(file.size.get());
            if write.was_blank && self.punch(file, write.index, &kept)? {
                // Only holes were written to, so making holes of them restores all.
                write.region.header.set(None);
                write.region.checksums.borrow_mut().fill(0);
                continue;
            }
            self.refresh_checksums(file, write).await?;
            match self.write_page(file, write.index, &write.region) {
                // The page of a region that was blank and can't be made so again: when it is loaded
                // next, its data are taken as they are, and that is what they should be.
                Err(error) if error.code() == ErrorCode::NoSpace && write.was_blank => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Makes holes of a region's page and of a logical range; false if the file system can't.
    fn punch(&self, file: &ChunkFile, region: u64, data: &Range<u64>) -> Result<bool> {
        let page = page_offset(region)..page_offset(region) + PAGE_BYTES;
        let ranges = [Some(page), (!data.is_empty()).then(|| physical_range(data))];
        for range in ranges.into_iter().flatten() {
            match file.file.punch_hole(range) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(false),
                // Nothing can lie there.
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {}
                other => other.map_err(|error| self.note_failure(file.io_error(error)))?,
            }
        }
        Ok(true)
    }

    async fn refresh_checksums(&self, file: &ChunkFile, write: &RegionWrite) -> Result<()> {
        let range = whole_granules(&write.range);
        let data = self.read_region(file, &range).await?;
        let first = granule_in_region(range.start);
        let mut checksums = write.region.checksums.borrow_mut();
        let granules = data.bytes().chunks(GRANULE_BYTES as usize);
        for (value, granule) in checksums[first..].iter_mut().zip(granules) {
            *value = granule_checksum(granule);
        }
        Ok(())
    }

    /// Removes a file that a failed write has created.
    pub(super) fn drop_if_new(&self, file: &ChunkFile) {
        if file.is_new.get() && file.size.get() == 0 {
            file.is_removed.set(true);
            self.open.borrow_mut().remove(&file.key);
            self.dirty.cut(&file.key, 0);
            // A name that can't be removed is an empty chunk file, and found by the clean-up.
            let _cleaned_up_later = std::fs::remove_file(&file.path);
        }
    }
}

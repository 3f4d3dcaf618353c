//! Clears a range of a chunk file. The range then reads as zeros, and its whole granules become a
//! hole on the device.
//!
//! # Crashes
//! The steps are in the same order as for a write. If a region is on the device, the target first
//! records the region in the dirty log. Then the target punches a hole for the data, and then
//! writes a page with the checksums of zeros. After a power loss between these steps, the next
//! start accepts the region's data and recomputes its checksums.
//!
//! The pages of cleared regions stay allocated. Without a page, data that reappears after a power
//! loss would have no checksums.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, Region, granule_in_region, whole_granules};
use super::region::{UNKNOWN_STRIPE, physical_range};
use super::space::FreeSpace;
use super::undo::does_not_punch;
use super::write::Incoming;
use crate::limits::MAX_CLEARED_STEPS;
use skep_env::Buf;
use skep_format::chunk::{
    MAX_CHUNK_FILE_BYTES, REGION_BYTES, REGION_STRIDE, RegionHeader, page_offset, region_of,
};
use skep_types::codec::crc32c;
use skep_types::{ChunkFileKey, ErrorCode, GRANULE_BYTES, Result};
use std::ops::Range;
use std::rc::Rc;

/// The granules of one region that one step clears.
pub(super) struct RegionPart {
    pub(super) index: u64,
    /// Logical byte range, aligned to granules.
    pub(super) range: Range<u64>,
    pub(super) region: Rc<Region>,
}

/// The work of one step of a clear operation.
#[derive(Default)]
struct Plan {
    /// The ranges in regions that have a page.
    parts: Vec<RegionPart>,
    /// Physical ranges without a page. These ranges already read as zeros, but may contain
    /// allocated space.
    holes: Vec<Range<u64>>,
    /// Logical offset up to which the step clears the range.
    end: u64,
}

impl ChunkStore {
    /// Clears a range of a chunk file, so that it reads as zeros. Returns the offset up to which
    /// the range was cleared, and the caller continues at this offset. The call does not change the
    /// size of the file, and does not create a missing file. Not cancel-safe, see [`super`].
    ///
    /// # Errors
    /// - `EndMoved` if the chunk file was truncated in a newer generation than
    ///   `truncate_generation`.
    /// - `Corrupt` if a page is damaged, or if a granule that is cleared only in part is damaged.
    /// - `NoSpace` if the file system can neither punch a hole nor write zeros. A part of the range
    ///   may have been cleared.
    /// - `DeviceFailed` if a write fails.
    pub async fn clear(
        &self,
        key: &ChunkFileKey,
        range: Range<u64>,
        truncate_generation: u64,
    ) -> Result<u64> {
        self.check_writable()?;
        let requested = range.end;
        let range = range.start..requested.min(MAX_CHUNK_FILE_BYTES).max(range.start);
        loop {
            self.check_generation(key, truncate_generation)?;
            let Some(file) = self.existing(key)? else { return Ok(requested) };
            let _guard = file.lock.exclusive(whole_granules(&range)).await;
            if file.is_removed.get() {
                continue;
            }
            // Check the generation again under the lock, because a truncation may have been
            // executed while this request waited for the lock.
            self.check_generation(key, truncate_generation)?;
            let end = self.clear_locked(&file, &range).await?;
            return Ok(if end >= range.end { requested } else { end });
        }
    }

    async fn clear_locked(&self, file: &Rc<ChunkFile>, range: &Range<u64>) -> Result<u64> {
        let held = file.size.get().next_multiple_of(GRANULE_BYTES);
        let end = if range.end >= file.size.get() { held } else { range.end };
        if range.start < end {
            let whole_start = range.start.next_multiple_of(GRANULE_BYTES).min(end);
            let whole_end = (end / GRANULE_BYTES * GRANULE_BYTES).max(whole_start);
            self.clear_within_granule(file, range.start..whole_start).await?;
            let at = self.clear_granules(file, whole_start..whole_end).await?;
            if at < whole_end {
                return Ok(at);
            }
            self.clear_within_granule(file, whole_end..end).await?;
        }
        if range.start <= held && range.end > held {
            // Beyond the end of the file there is only reserved space. ext4 frees this space when
            // the file is truncated, but not when a hole is punched into the space.
            self.truncate_to_size(file)?;
        }
        Ok(range.end)
    }

    /// Clears a part of one granule. The granule stays allocated.
    async fn clear_within_granule(&self, file: &Rc<ChunkFile>, part: Range<u64>) -> Result<()> {
        let part = part.start..part.end.min(file.size.get());
        let granule = physical_range(&whole_granules(&part));
        if part.is_empty() || !file.file.has_data(granule).map_err(|error| file.io_error(error))? {
            return Ok(());
        }
        self.write_zeros(file, part).await
    }

    async fn write_zeros(&self, file: &Rc<ChunkFile>, range: Range<u64>) -> Result<()> {
        let zeros = Buf::new((range.end - range.start) as usize);
        zeros.zero(0..zeros.len());
        let mut checksums = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let next = (at / GRANULE_BYTES + 1) * GRANULE_BYTES;
            let piece = at - range.start..next.min(range.end) - range.start;
            checksums.push(crc32c(&zeros.bytes()[piece.start as usize..piece.end as usize]));
            at = next;
        }
        let incoming = Incoming { offset: range.start, data: &zeros, checksums: &checksums };
        // The granule is allocated already, so this write needs no free space.
        self.write_locked(file, UNKNOWN_STRIPE, &incoming, FreeSpace::Plenty).await
    }

    /// Clears whole granules. Returns the offset up to which the range was cleared.
    async fn clear_granules(&self, file: &Rc<ChunkFile>, range: Range<u64>) -> Result<u64> {
        let plan = self.plan_clearing(file, &range).await?;
        let changing: Vec<_> = plan
            .parts
            .iter()
            .map(|part| self.dirty.change(file.key, part.index..part.index + 1))
            .collect();
        self.record_overwrite(plan.parts.iter().map(|part| &*part.region)).await?;
        file.note_change();
        for hole in plan.holes {
            // If the file system cannot punch the hole, the space of the range stays allocated, and
            // still reads as zeros.
            self.punch_if_possible(file, hole).await?;
        }
        for part in &plan.parts {
            let punched = self.punch_if_possible(file, physical_range(&part.range)).await;
            self.finish_clearing(file, part, punched).await?;
        }
        drop(changing);
        self.wake_cleaner_if_needed();
        Ok(plan.end)
    }

    /// Completes the clearing of a part after the attempt to punch its hole. `punched` is the
    /// result of [`Self::punch_if_possible`]. After every error except `DeviceFailed`, the
    /// checksums of the part match its bytes.
    pub(super) async fn finish_clearing(
        &self,
        file: &ChunkFile,
        part: &RegionPart,
        punched: Result<bool>,
    ) -> Result<()> {
        let cleared = match punched {
            Ok(true) => Ok(()),
            Ok(false) => self.overwrite_with_zeros(file, &part.range).await,
            Err(error) => Err(error),
        };
        if cleared.as_ref().is_err_and(|error| error.code() == ErrorCode::DeviceFailed) {
            return cleared;
        }
        let first = granule_in_region(part.range.start);
        let count = ((part.range.end - part.range.start) / GRANULE_BYTES) as usize;
        if cleared.is_ok() {
            part.region.checksums.borrow_mut()[first..first + count].fill(0);
        } else {
            // The file system may have cleared some of the granules before the error. Each granule
            // that was not cleared keeps its checksum, so that reads still detect existing damage.
            let data = self.read_region(file, &part.range).await?;
            let (bytes, mut checksums) = (data.bytes(), part.region.checksums.borrow_mut());
            let granules = bytes.chunks(GRANULE_BYTES as usize);
            for (stored, granule) in checksums[first..].iter_mut().zip(granules) {
                if granule.iter().all(|byte| *byte == 0) {
                    *stored = 0;
                }
            }
        }
        let header = part
            .region
            .header
            .get()
            .expect("`plan_clearing` adds only parts of regions with a page");
        let start = self.state.get().start;
        part.region.header.set(Some(RegionHeader { synced: false, start, ..header }));
        let written = self.write_page(file, part.index, &part.region);
        // A concurrent sync may have missed the changes, so count the changes a second time.
        file.note_change();
        cleared.and(written)
    }

    /// Overwrites whole granules of one region with zeros, because the file system has not punched
    /// a hole. The method does not write beyond the size of the file, because the size must not
    /// change. The caller updates the checksums.
    async fn overwrite_with_zeros(&self, file: &ChunkFile, range: &Range<u64>) -> Result<()> {
        let end = range.end.min(file.size.get());
        let zeros = Buf::new(end.saturating_sub(range.start) as usize);
        zeros.zero(0..zeros.len());
        let written = file.file.write_at(zeros, physical_range(range).start).await;
        written.map_err(|error| self.note_failure(file.io_error(error)))
    }

    /// Plans one step. Finds the regions in `range` that have a page, and skips the holes between
    /// these regions.
    async fn plan_clearing(&self, file: &ChunkFile, range: &Range<u64>) -> Result<Plan> {
        let mut plan = Plan { end: range.start, ..Plan::default() };
        while plan.end < range.end && plan.parts.len() + plan.holes.len() < MAX_CLEARED_STEPS {
            let (at, index) = (plan.end, region_of(plan.end));
            if at % REGION_BYTES == 0 {
                let data = file.file.next_data(page_offset(index));
                let data = data.map_err(|error| file.io_error(error))?;
                let next = data.map_or(u64::MAX, |data| data / REGION_STRIDE);
                let next = next.min(range.end / REGION_BYTES);
                if next > index {
                    plan.holes.push(page_offset(index)..page_offset(next));
                    plan.end = next * REGION_BYTES;
                    continue;
                }
            }
            plan.end = range.end.min((index + 1) * REGION_BYTES);
            let (range, region) = (at..plan.end, self.region(file, index).await?);
            if region.header.get().is_some() {
                plan.parts.push(RegionPart { index, range, region });
            } else {
                plan.holes.push(physical_range(&range));
            }
        }
        Ok(plan)
    }

    /// Punches a hole into a physical range. Returns `false` if the file system does not support
    /// holes, or has no space for the records of the hole. After `false`, a part of the range may
    /// be cleared.
    async fn punch_if_possible(&self, file: &ChunkFile, range: Range<u64>) -> Result<bool> {
        match file.file.punch_through_ring(range).await {
            Err(error) if does_not_punch(&error) => Ok(false),
            other => other.map(|()| true).map_err(|error| self.note_failure(file.io_error(error))),
        }
    }
}

//! Loads and writes region pages, and decides whether the target may trust a page.
//!
//! The crash rule is as follows. Data that was written since the newest start of the target, or was
//! on the device before that start, must match its checksums. If a crash may have torn the data of
//! a region, the target accepts the present data and recomputes the checksums.
//!
//! # Hazard: pages that read as zeros
//! A region may have data although its page reads as zeros. There are two possible causes: a power
//! loss has destroyed the page of a new region, or the page is damaged. The target cannot
//! distinguish the two causes, so it accepts the data and logs a warning.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, Region};
use skep_env::Buf;
use skep_format::chunk::{
    FoundPage, GRANULES, PAGE_BYTES, REGION_BYTES, RegionHeader, RegionIdentity, granule_checksum,
    page_offset, physical_offset, read_page,
};
use skep_types::{Epoch, GRANULE_BYTES, Lsn, Result};
use skep_wire::storage::StripeHint;
use std::ops::Range;
use std::rc::Rc;

/// The stripe in the header of a region if no request has named the stripe.
pub(super) const UNKNOWN_STRIPE: StripeHint =
    StripeHint { chunk_bytes: 0, width: 0, component_start: 0 };

impl ChunkStore {
    /// Returns a region of a chunk file, from memory or from its page. The caller must hold the
    /// file's lock for a range that overlaps the region. Cancel-safe.
    ///
    /// # Errors
    /// - `Corrupt` if the page is damaged.
    /// - Errors of the file system.
    pub(super) async fn region(&self, file: &ChunkFile, index: u64) -> Result<Rc<Region>> {
        let cached = |file: &ChunkFile| file.regions.borrow().get(&index).map(Rc::clone);
        let found = cached(file);
        self.open.borrow().uses.pages.note(found.is_some());
        if let Some(region) = found {
            return Ok(region);
        }
        let _permit = file.loading.acquire().await;
        if let Some(region) = cached(file) {
            return Ok(region);
        }
        let region = Rc::new(self.load(file, index).await?);
        self.open.borrow_mut().add_region(file, index, &region);
        Ok(region)
    }

    async fn load(&self, file: &ChunkFile, index: u64) -> Result<Region> {
        let size = file.size.get();
        if size <= index * REGION_BYTES && !(index == 0 && size == 0) {
            return Ok(Region::blank());
        }
        let page = Buf::new(PAGE_BYTES as usize);
        let count = file
            .file
            .read_at(page.clone(), page_offset(index))
            .await
            .map_err(|error| file.io_error(error))?;
        page.zero(count..page.len());
        let damaged = |problem: &str| {
            Err(file.corrupt(format_args!(
                "the page of region {index} (at byte {} of the file) is invalid: {problem}",
                page_offset(index)
            )))
        };
        let (header, checksums) = match read_page(&page.bytes()) {
            FoundPage::Blank => return self.load_without_page(file, index).await,
            FoundPage::Damaged(problem) => return damaged(&problem),
            FoundPage::Whole(header, checksums) => (header, Some(checksums)),
            FoundPage::Torn(header) => (header, None),
        };
        let found = header.identity;
        if (found.cluster, found.target, found.key, found.region)
            != (self.cluster, self.target, file.key, index)
        {
            return damaged(&format!(
                "this page belongs to region {} of chunk file {} on target {} in cluster {}",
                found.region, found.key, found.target, found.cluster
            ));
        }
        let may_be_torn = self.may_be_torn(&header);
        match checksums {
            // Only the loss of the page cache can tear a page. A process that is killed writes the
            // complete page or nothing.
            None if !may_be_torn || header.start >= self.state.get().kept_since => {
                damaged("the checksum of the page does not match")
            }
            Some(checksums) if !may_be_torn => {
                let region = Region::blank();
                region.header.set(Some(header));
                region.checksums.replace(checksums);
                Ok(region)
            }
            checksums => self.adopt(file, header, checksums).await,
        }
    }

    /// Whether the page and the data may disagree after a crash.
    fn may_be_torn(&self, header: &RegionHeader) -> bool {
        let dirty = skep_format::chunk::DirtyRegion {
            key: header.identity.key,
            region: header.identity.region,
        };
        header.start < self.state.get().start
            && (!header.synced || self.suspects.borrow().contains(&dirty))
    }

    async fn load_without_page(&self, file: &ChunkFile, index: u64) -> Result<Region> {
        let range = physical_range(&data_range(file, index));
        if range.is_empty() || !file.file.has_data(range).map_err(|error| file.io_error(error))? {
            return Ok(Region::blank());
        }
        let mut header = self.new_header(file, index, UNKNOWN_STRIPE);
        // Start 0 precedes all starts, so the region counts as possibly torn.
        header.start = 0;
        self.adopt(file, header, None).await
    }

    /// Accepts the present data of a region, and recomputes the checksums. `stored` contains the
    /// checksums of the page. `None` means that the page is missing or torn.
    async fn adopt(
        &self,
        file: &ChunkFile,
        header: RegionHeader,
        stored: Option<Box<[u32; GRANULES]>>,
    ) -> Result<Region> {
        let index = header.identity.region;
        let data = self.read_region(file, &data_range(file, index)).await?;
        let mut checksums = Box::new([0; GRANULES]);
        let bytes = data.bytes();
        for (value, granule) in checksums.iter_mut().zip(bytes.chunks(GRANULE_BYTES as usize)) {
            *value = granule_checksum(granule);
        }
        drop(bytes);
        let has_page = stored.is_some();
        let stored = stored.unwrap_or_else(|| Box::new([0; GRANULES]));
        let torn = stored.iter().zip(&*checksums).filter(|(old, new)| old != new).count();
        let region = Region::blank();
        region.checksums.replace(checksums);
        if torn == 0 && has_page {
            region.header.set(Some(header));
            return Ok(region);
        }
        if torn == 0 && header.start == 0 {
            // The data is allocated but contains only zeros, so the region can be treated as a
            // hole.
            return Ok(region);
        }
        tracing::warn!(
            "target {}: chunk file {}: the target was writing region {index} when its process was \
             last killed or its host lost power; the target accepts {torn} granules (blocks of 4 \
             KiB) of this region without a check of their checksums",
            self.target,
            file.path.display()
        );
        let start = self.state.get().start;
        region.header.set(Some(RegionHeader { start, synced: false, ..header }));
        if self.failure().is_some() {
            // A target that refuses writes cannot write the page. The next start recomputes the
            // page.
            return Ok(region);
        }
        drop(self.dirty.change(file.key, index..index + 1));
        file.note_change();
        // Ignore a lack of space for the page, because the next load recomputes a missing page.
        match self.write_page(file, index, &region) {
            Err(error) if error.code() != skep_types::ErrorCode::NoSpace => Err(error),
            _ => Ok(region),
        }
    }

    /// Reads a logical range within one region. Bytes beyond the end of the file read as zeros.
    pub(super) async fn read_region(&self, file: &ChunkFile, range: &Range<u64>) -> Result<Buf> {
        let data = Buf::new((range.end - range.start) as usize);
        self.read_into(file, range.start, data.clone()).await?;
        Ok(data)
    }

    /// Fills `data` with the bytes from the logical offset `start` on, within one region. Bytes
    /// beyond the end of the file read as zeros.
    pub(super) async fn read_into(&self, file: &ChunkFile, start: u64, data: Buf) -> Result<()> {
        let mut filled = 0;
        while filled < data.len() {
            let rest = data.slice(filled..data.len());
            let count = file
                .file
                .read_at(rest, physical_offset(start) + filled as u64)
                .await
                .map_err(|error| file.io_error(error))?;
            if count == 0 {
                break;
            }
            filled += count;
        }
        data.zero(filled..data.len());
        Ok(())
    }

    /// Creates the header of a region that had no header.
    pub(super) fn new_header(
        &self,
        file: &ChunkFile,
        region: u64,
        stripe: StripeHint,
    ) -> RegionHeader {
        RegionHeader {
            identity: RegionIdentity {
                cluster: self.cluster,
                target: self.target,
                key: file.key,
                region,
                chunk_bytes: stripe.chunk_bytes,
                width: stripe.width,
                component_start: stripe.component_start,
            },
            synced: false,
            start: self.state.get().start,
            epoch: Epoch::default(),
            lsn: Lsn::default(),
        }
    }

    /// Writes a region's page into the file, if the region has a page.
    pub(super) fn write_page(&self, file: &ChunkFile, index: u64, region: &Region) -> Result<()> {
        // A region without a page is a hole and must stay a hole.
        let Some(page) = region.page() else { return Ok(()) };
        file.file
            .write_now(&page, page_offset(index))
            .map_err(|error| self.note_failure(file.io_error(error)))
    }
}

/// Whether a header names the stripe of its chunk file.
pub(super) fn knows_stripe(header: &RegionHeader) -> bool {
    header.identity.chunk_bytes != 0
}

/// Returns the part of a region's logical range that lies within the size of the chunk file.
pub(super) fn data_range(file: &ChunkFile, index: u64) -> Range<u64> {
    let start = index * REGION_BYTES;
    start..file.size.get().clamp(start, start + REGION_BYTES)
}

/// Converts a logical range within one region to the physical range.
pub(super) fn physical_range(range: &Range<u64>) -> Range<u64> {
    let start = physical_offset(range.start);
    start..start + (range.end - range.start)
}

//! Chunk files and the other records of a storage target: region pages, the dirty log, and the
//! state of the target.
//!
//! `docs/format/chunk-file.md` shows the layout and states the crash rule.
//! `docs/design/0003-chunk-store.md` gives the reasons. This module is responsible for the
//! conversion between *logical* offsets in a chunk file, which clients use, and *physical* offsets
//! in the file on disk. This module does not decide when a record is written, or when a reader may
//! trust the record.

mod dirty_log;
mod target_state;

pub use dirty_log::{DIRTY_ENTRY_BYTES, DirtyLogHeader, DirtyRegion, read_dirty_log};
pub use target_state::{HostMark, TargetState};

use skep_types::codec::{Codec, Reader, Writer, crc32c, record};
use skep_types::{
    ChunkFileKey, ClusterId, Epoch, Error, ErrorCode, GRANULE_BYTES, Lsn, Result, TargetId,
};
use std::ops::Range;

/// Length of a region page in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Number of data bytes that one region page describes.
pub const REGION_BYTES: u64 = 2 << 20;
/// Distance between the starts of consecutive regions in the file on disk, in bytes.
pub const REGION_STRIDE: u64 = PAGE_BYTES + REGION_BYTES;
/// Number of checksums in a region page.
pub const GRANULES: usize = (REGION_BYTES / GRANULE_BYTES) as usize;
/// Maximum size of a chunk file, so that all physical offsets are below 2^63.
pub const MAX_CHUNK_FILE_BYTES: u64 = (i64::MAX as u64 / REGION_STRIDE) * REGION_BYTES;
/// CRC-32C of a granule of zeros. Region pages store each checksum XORed with this value. So if a
/// hole covers a page and its data, the zeros in the page are valid checksums of the zeros in the
/// data.
pub const ZERO_GRANULE_CRC: u32 = 0x98F9_4189;

const MAGIC: [u8; 8] = *b"SKEPRGN\0";
const VERSION: u16 = 1;
const SECTOR_BYTES: usize = 512;
const SECTOR_CRC_AT: usize = SECTOR_BYTES - 4;
const CHECKSUMS_AT: usize = 1024;
const PAGE_CRC_AT: usize = PAGE_BYTES as usize - 4;
const FLAG_SYNCED: u8 = 1;

/// Returns the physical offset of a region's page.
pub fn page_offset(region: u64) -> u64 {
    region * REGION_STRIDE
}

/// Returns the index of the region that contains a logical offset.
pub fn region_of(offset: u64) -> u64 {
    offset / REGION_BYTES
}

/// Converts a logical offset to a physical offset.
pub fn physical_offset(offset: u64) -> u64 {
    (offset / REGION_BYTES) * REGION_STRIDE + PAGE_BYTES + offset % REGION_BYTES
}

/// Returns the length of the file on disk for a logical size. An empty chunk file also has one page
/// on disk, which contains its identity.
pub fn physical_length(size: u64) -> u64 {
    if size == 0 { PAGE_BYTES } else { physical_offset(size - 1) + 1 }
}

/// Returns the logical size for a length of the file on disk. Only a crash leaves a length that
/// ends within a page. The subtraction saturates, so a page that was not written completely counts
/// as missing.
pub fn logical_size(physical: u64) -> u64 {
    (physical / REGION_STRIDE) * REGION_BYTES
        + (physical % REGION_STRIDE).saturating_sub(PAGE_BYTES)
}

/// Splits a logical range at region boundaries. Returns the index and the logical range of each
/// piece, in ascending order.
pub fn region_pieces(range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let end = range.end.min((at / REGION_BYTES + 1) * REGION_BYTES);
        let piece = (region_of(at), at..end);
        at = end;
        Some(piece)
    })
}

/// Returns the checksum of a granule in the form in which region pages store it. `bytes` must have
/// at most [`GRANULE_BYTES`]; missing bytes count as zeros.
pub fn granule_checksum(bytes: &[u8]) -> u32 {
    const WHOLE: usize = GRANULE_BYTES as usize;
    if bytes.len() == WHOLE {
        return crc32c(bytes) ^ ZERO_GRANULE_CRC;
    }
    let mut padded = [0; WHOLE];
    padded[..bytes.len()].copy_from_slice(bytes);
    crc32c(&padded) ^ ZERO_GRANULE_CRC
}

record! {
    /// Identity of a region and of its chunk file, stored in the region page. The identity never
    /// changes.
    #[derive(Copy)]
    pub struct RegionIdentity {
        /// Id of the cluster that owns the chunk file.
        pub cluster: ClusterId,
        /// The target that stores the chunk file.
        pub target: TargetId,
        /// Key of the chunk file that contains the region.
        pub key: ChunkFileKey,
        /// Index of the region in the chunk file.
        pub region: u64,
        /// Chunk size of the component to which the chunk file belongs, in bytes.
        pub chunk_bytes: u64,
        /// Number of groups over which the component of the chunk file is striped.
        pub width: u16,
        /// File offset at which the component starts.
        pub component_start: u64,
    }
}

/// The first sector of a region page: the identity of the region, and how far readers may trust the
/// checksums of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionHeader {
    /// The region and the chunk file to which the page belongs.
    pub identity: RegionIdentity,
    /// Whether the data and checksums of the region were on the device when this header was
    /// written. If `synced` is set, a checksum mismatch in the region is damage, even after a
    /// crash, unless the dirty log lists the region.
    pub synced: bool,
    /// Start number of the target when the page was last written. Each start of the target
    /// increases the number.
    pub start: u64,
    /// Epoch of the group at the last write of the region. Zero as long as groups have only one
    /// member.
    pub epoch: Epoch,
    /// Log sequence number of the last write of the region in its group. Zero as long as groups
    /// have only one member.
    pub lsn: Lsn,
}

/// Result of reading a region page: its valid parts.
#[derive(Debug)]
pub enum FoundPage {
    /// The page contains only zeros. Either the target never wrote the page, or a power loss
    /// destroyed the page.
    Blank,
    /// Header and checksums are valid.
    Whole(RegionHeader, Box<[u32; GRANULES]>),
    /// Only the header is valid. The rest of the page was torn by a power loss, or is damaged.
    Torn(RegionHeader),
    /// The header is damaged. No crash can damage a header, because sector writes are atomic.
    Damaged(String),
}

impl RegionHeader {
    /// Returns the bytes of the header that never change. The checksum of the page also covers
    /// these bytes.
    fn fixed_part(&self) -> Vec<u8> {
        let mut w = Writer::over(Vec::with_capacity(SECTOR_BYTES));
        w.raw(&MAGIC);
        VERSION.encode(&mut w);
        self.identity.encode(&mut w);
        w.finish()
    }

    /// Encodes a region page from this header and `checksums`.
    pub fn to_page(&self, checksums: &[u32; GRANULES]) -> [u8; PAGE_BYTES as usize] {
        let mut page = [0; PAGE_BYTES as usize];
        let fixed = self.fixed_part();
        let mut w = Writer::over(fixed);
        let fixed_bytes = w.len();
        w.raw(&[if self.synced { FLAG_SYNCED } else { 0 }]);
        self.start.encode(&mut w);
        self.epoch.encode(&mut w);
        self.lsn.encode(&mut w);
        let sector = w.finish();
        page[..sector.len()].copy_from_slice(&sector);
        for (stored, value) in page[CHECKSUMS_AT..].chunks_exact_mut(4).zip(checksums) {
            stored.copy_from_slice(&value.to_le_bytes());
        }
        let crc = page_crc(&page, fixed_bytes);
        page[PAGE_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c(&page[..SECTOR_CRC_AT]);
        page[SECTOR_CRC_AT..SECTOR_BYTES].copy_from_slice(&crc.to_le_bytes());
        page
    }

    fn parse(sector: &[u8]) -> Result<Self> {
        let mut tail = Reader::new(&sector[SECTOR_CRC_AT..SECTOR_BYTES]);
        if crc32c(&sector[..SECTOR_CRC_AT]) != u32::decode(&mut tail)? {
            return Err(Error::new(ErrorCode::Corrupt, "the checksum of the page does not match"));
        }
        let mut r = Reader::new(&sector[..SECTOR_CRC_AT]);
        if r.array::<8>()? != MAGIC {
            return Err(Error::new(
                ErrorCode::Corrupt,
                "the page does not begin with the magic number of region pages",
            ));
        }
        let version = u16::decode(&mut r)?;
        if version != VERSION {
            return Err(Error::new(
                ErrorCode::Unsupported,
                format!(
                    "cannot read a region page of version {version}: this program reads version \
                     {VERSION}; use a program that reads version {version}"
                ),
            ));
        }
        let identity = RegionIdentity::decode(&mut r)?;
        let flags = u8::decode(&mut r)?;
        let header = Self {
            identity,
            synced: flags & FLAG_SYNCED != 0,
            start: u64::decode(&mut r)?,
            epoch: Epoch::decode(&mut r)?,
            lsn: Lsn::decode(&mut r)?,
        };
        if flags & !FLAG_SYNCED != 0 || r.take(r.left())?.iter().any(|byte| *byte != 0) {
            return Err(r.corrupt("the reserved bytes of the page are not zero"));
        }
        Ok(header)
    }
}

/// Returns the checksum of a page. The checksum also covers the identity of the region, so that
/// checksums in a page of the wrong region are invalid.
fn page_crc(page: &[u8], fixed_bytes: usize) -> u32 {
    let mut covered = Vec::with_capacity(PAGE_BYTES as usize);
    covered.extend_from_slice(&page[..fixed_bytes]);
    covered.extend_from_slice(&page[SECTOR_BYTES..PAGE_CRC_AT]);
    crc32c(&covered)
}

/// Decodes a region page. Never returns an error, because the result describes the damage of a
/// page. The caller handles the damage by the crash rule (`docs/format/chunk-file.md`).
///
/// # Panics
/// Panics if `page` is not exactly [`PAGE_BYTES`] long.
pub fn read_page(page: &[u8]) -> FoundPage {
    assert_eq!(page.len() as u64, PAGE_BYTES, "a whole page");
    if page.iter().all(|byte| *byte == 0) {
        return FoundPage::Blank;
    }
    if page[..SECTOR_BYTES].iter().all(|byte| *byte == 0) {
        return FoundPage::Damaged(
            "the first sector of the page is zero, but the rest of the page is not".into(),
        );
    }
    let header = match RegionHeader::parse(&page[..SECTOR_BYTES]) {
        Ok(header) => header,
        Err(error) => return FoundPage::Damaged(error.context().to_owned()),
    };
    let stored = u32::from_bytes(&page[PAGE_CRC_AT..]);
    if stored != Ok(page_crc(page, header.fixed_part().len())) {
        return FoundPage::Torn(header);
    }
    let mut checksums = Box::new([0; GRANULES]);
    for (value, stored) in checksums.iter_mut().zip(page[CHECKSUMS_AT..].chunks_exact(4)) {
        *value = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
    }
    FoundPage::Whole(header, checksums)
}

#[cfg(test)]
mod tests;

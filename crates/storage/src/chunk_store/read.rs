//! Reads from chunk files. All returned data has matched its checksums.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, granule_in_region, whole_granules};
use futures_lite::future::zip;
use skep_env::Buf;
use skep_format::chunk::{GRANULES, ZERO_GRANULE_CRC, granule_checksum, region_pieces};
use skep_types::codec::crc32c;
use skep_types::{ChunkFileKey, GRANULE_BYTES, Result};
use std::ops::Range;
use std::rc::Rc;

/// The result of a read.
#[derive(Debug)]
pub struct ReadData {
    /// The data, which is shorter than the requested length only at the end of the chunk file.
    pub data: Buf,
    /// The CRC-32C of each granule piece of the data.
    pub checksums: Vec<u32>,
    /// Whether the chunk file exists.
    pub exists: bool,
}

impl ChunkStore {
    /// Returns whether a chunk file exists. A new file exists only after its first write has
    /// succeeded.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn exists(&self, key: &ChunkFileKey) -> Result<bool> {
        let file = self.existing(key)?;
        Ok(file.is_some_and(|file| !file.is_new.get()))
    }

    /// Reads a range of a chunk file. A missing chunk file counts as empty. Cancel-safe.
    ///
    /// # Errors
    /// - `Corrupt`, with the path and the granule, if the data does not match its checksums.
    /// - Errors of the file system.
    pub async fn read(&self, key: &ChunkFileKey, offset: u64, length: u32) -> Result<ReadData> {
        let empty = |exists| ReadData { data: Buf::new(0), checksums: Vec::new(), exists };
        let Some(file) = self.existing(key)? else { return Ok(empty(false)) };
        let requested = offset..offset.saturating_add(u64::from(length));
        let _guard = file.lock.read(whole_granules(&requested)).await;
        let range = offset..requested.end.min(file.size.get());
        if range.is_empty() {
            return Ok(empty(true));
        }
        let whole = whole_granules(&range);
        let buf = Buf::new((whole.end - whole.start) as usize);
        let checksums = self.read_granules(&file, &range, &buf).await?;
        let skipped = (range.start - whole.start) as usize;
        let data = buf.slice(skipped..skipped + (range.end - range.start) as usize);
        Ok(ReadData { data, checksums, exists: true })
    }

    /// Reads the granules of a range into `buf` and verifies their checksums. Returns the checksums
    /// of the pieces within the range.
    async fn read_granules(
        &self,
        file: &Rc<ChunkFile>,
        range: &Range<u64>,
        buf: &Buf,
    ) -> Result<Vec<u32>> {
        let whole = whole_granules(range);
        let mut stored = Vec::with_capacity(buf.len() / GRANULE_BYTES as usize);
        for (index, piece) in region_pieces(whole.clone()) {
            let at = (piece.start - whole.start) as usize;
            let len = (piece.end - piece.start) as usize;
            // If the region page is not cached, the target reads the page and the data
            // concurrently. The caller's lock ensures that neither the granules nor their checksums
            // change between the two reads.
            let data = self.read_into(file, piece.start, buf.slice(at..at + len));
            let (region, read) = zip(self.region(file, index), data).await;
            let region = region?;
            read?;
            let first = granule_in_region(piece.start);
            let count = len / GRANULE_BYTES as usize;
            stored.extend_from_slice(
                &region.checksums.borrow()[first..(first + count).min(GRANULES)],
            );
        }
        let mut checksums = Vec::with_capacity(stored.len());
        let bytes = buf.bytes();
        let granules = bytes.chunks_exact(GRANULE_BYTES as usize);
        for ((granule, stored), start) in
            granules.zip(stored).zip((whole.start..).step_by(GRANULE_BYTES as usize))
        {
            if granule_checksum(granule) != stored {
                return Err(file.corrupt_granule(start).within(self.target));
            }
            let piece = range.start.max(start)..range.end.min(start + GRANULE_BYTES);
            checksums.push(if piece.end - piece.start == GRANULE_BYTES {
                stored ^ ZERO_GRANULE_CRC
            } else {
                crc32c(&granule[(piece.start - start) as usize..(piece.end - start) as usize])
            });
        }
        Ok(checksums)
    }
}

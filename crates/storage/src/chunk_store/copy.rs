//! Copies ranges between chunk files of one target. Holes in the source become holes in the
//! destination.
//!
//! A copy never holds the locks of both files at the same time. For each part, the copy first reads
//! from the source, and then writes to the destination in the same way as a client.
//!
//! # Hazard: late changes
//! Every other request joins the queue of its chunk file's lock as soon as the target executes the
//! request. So such a request changes the file before all later requests. A copy joins this queue
//! for each part only after it has read the part from a device that may be slow. During this read,
//! the client may repeat the request on another connection and receive the reply, or management may
//! remove the client from the cluster. In both cases the target may acknowledge other bytes for the
//! range. So the copy checks before each change whether the request is still valid.

use super::{ChunkStore, Destination, ReadData};
use skep_types::codec::crc32c;
use skep_types::{ChunkFileKey, GRANULE_BYTES, Result};
use std::ops::Range;

/// The start of the source range of a copy.
#[derive(Debug, Clone, Copy)]
pub struct CopySource<'a> {
    /// The key of the source chunk file.
    pub key: &'a ChunkFileKey,
    /// Offset of the first byte in the source.
    pub offset: u64,
}

impl ChunkStore {
    /// Copies `length` bytes to another chunk file, which is created if necessary. Bytes beyond the
    /// end of the source count as zeros. Returns whether the source range had holes. Not
    /// cancel-safe, see [`super`].
    ///
    /// # Errors
    /// - The error of `check`, which this function calls before each change of the destination.
    /// - `Corrupt` if the source is damaged, or if a granule of the destination that the copy
    ///   overwrites only in part is damaged.
    /// - `EndMoved`, `NoSpace`, `FileTooLarge` and `DeviceFailed` under the same conditions as
    ///   [`Self::write`].
    ///
    /// After an error, a part of the range may have been copied.
    ///
    /// # Panics
    /// Panics if the source range ends beyond the largest offset.
    pub async fn copy(
        &self,
        from: CopySource<'_>,
        to: Destination<'_>,
        length: u32,
        check: impl Fn() -> Result<()>,
    ) -> Result<bool> {
        let end = from.offset.checked_add(u64::from(length));
        let end = end.expect("the handler refuses ranges beyond the largest offset");
        let target_offset = |at: u64| to.offset + (at - from.offset);
        let (mut at, mut has_holes) = (from.offset, false);
        while at < end {
            let data = self.next_data(from.key, at).await?.unwrap_or(end).min(end);
            if data > at {
                has_holes = true;
                self.clear_all(&to, target_offset(at)..target_offset(data), &check).await?;
                at = data;
                continue;
            }
            let hole = self.next_hole(from.key, at).await?.min(end).max(at + 1);
            let ReadData { data, checksums, .. } =
                self.read(from.key, at, (hole - at) as u32).await?;
            let length = data.len() as u64;
            if length == 0 {
                // The read returned no data, because a truncation has shortened the source since
                // `next_data` found data at this offset. So clear the range in the destination.
                self.clear_all(&to, target_offset(at)..target_offset(end), &check).await?;
                return Ok(true);
            }
            let checksums = if (at % GRANULE_BYTES) == (target_offset(at) % GRANULE_BYTES) {
                checksums
            } else {
                piece_checksums(target_offset(at), &data.bytes())
            };
            let to = Destination { offset: target_offset(at), ..to };
            check()?;
            self.write(to, &data, &checksums).await?;
            at += length;
        }
        Ok(has_holes)
    }

    async fn clear_all(
        &self,
        to: &Destination<'_>,
        range: Range<u64>,
        check: &impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            check()?;
            at = self.clear(to.key, at..range.end, to.truncate_generation).await?;
        }
        Ok(())
    }
}

/// Returns the checksums of the granule pieces of `bytes`, which begin at the logical offset
/// `offset`.
fn piece_checksums(offset: u64, bytes: &[u8]) -> Vec<u32> {
    let first = ((GRANULE_BYTES - offset % GRANULE_BYTES) as usize).min(bytes.len());
    let (head, rest) = bytes.split_at(first);
    std::iter::once(head).chain(rest.chunks(GRANULE_BYTES as usize)).map(crc32c).collect()
}

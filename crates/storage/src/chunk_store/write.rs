//! Writes to chunk files. The steps have this order: verify the received data, compute the new
//! checksums, record in the dirty log the regions that will be overwritten, write the data, write
//! the pages.

use super::ChunkStore;
use super::chunk_file::{ChunkFile, Region, granule_in_region, whole_granules};
use super::region::{knows_stripe, physical_range};
use super::space::FreeSpace;
use crate::limits::INLINE_WRITE_BYTES;
use skep_env::Buf;
use skep_format::chunk::{
    DirtyRegion, MAX_CHUNK_FILE_BYTES, RegionHeader, ZERO_GRANULE_CRC, granule_checksum,
    physical_length, region_of, region_pieces,
};
use skep_types::codec::crc32c;
use skep_types::{ChunkFileKey, Error, ErrorCode, GRANULE_BYTES, Result};
use skep_wire::storage::StripeHint;
use std::ops::Range;
use std::rc::Rc;

/// The chunk file and the offset to which a client writes, and the properties of the file that the
/// write relies on.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// The chunk file to write.
    pub key: &'a ChunkFileKey,
    /// The stripe of the file, which the target stores in a new chunk file.
    pub stripe: StripeHint,
    /// Offset of the first byte in the chunk file.
    pub offset: u64,
    /// Truncate generation of the file when the client began the write.
    pub truncate_generation: u64,
    /// Whether the chunk file was synced before. If a synced chunk file does not exist, the chunk
    /// file is lost.
    pub must_exist: bool,
}

/// The part of a write that lies in one region.
pub(super) struct RegionWrite {
    pub(super) index: u64,
    /// Logical byte range.
    pub(super) range: Range<u64>,
    pub(super) region: Rc<Region>,
    /// Whether page and data of the region were a hole before the write.
    pub(super) was_blank: bool,
    /// New checksums of the granules that the range touches, in ascending order.
    checksums: Vec<u32>,
}

/// The received data of a write, with its offset.
pub(super) struct Incoming<'a> {
    pub(super) offset: u64,
    pub(super) data: &'a Buf,
    /// One checksum per granule piece, as the client computed them.
    pub(super) checksums: &'a [u32],
}

impl Incoming<'_> {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }

    fn part(&self, range: &Range<u64>) -> Buf {
        self.data.slice((range.start - self.offset) as usize..(range.end - self.offset) as usize)
    }

    /// Returns the logical range and the checksum of each granule piece.
    fn pieces(&self) -> impl Iterator<Item = (Range<u64>, u32)> {
        let range = self.range();
        let first = range.start / GRANULE_BYTES;
        self.checksums.iter().zip(first..).map(move |(checksum, granule)| {
            let start = (granule * GRANULE_BYTES).max(range.start);
            (start..((granule + 1) * GRANULE_BYTES).min(range.end), *checksum)
        })
    }

    /// Checks that the received data is the data that the client sent.
    fn verify(&self, key: &ChunkFileKey) -> Result<()> {
        let wrong = |problem: String| {
            let context = format!("cannot write to chunk file {key}: {problem}");
            Err(Error::new(ErrorCode::Protocol, context))
        };
        let whole = whole_granules(&self.range());
        let pieces = ((whole.end - whole.start) / GRANULE_BYTES) as usize;
        if self.checksums.len() != pieces {
            return wrong(format!(
                "the request has {} checksums for {pieces} granules",
                self.checksums.len()
            ));
        }
        for (piece, checksum) in self.pieces() {
            if crc32c(&self.part(&piece).bytes()) != checksum {
                return wrong(format!(
                    "bytes {} to {} were damaged in transit: their checksum does not match",
                    piece.start, piece.end
                ));
            }
        }
        Ok(())
    }
}

impl ChunkStore {
    /// Writes `data` to a chunk file, which is created if necessary. `checksums` must contain one
    /// checksum per granule piece. When this function returns, the data survives the end of the
    /// process. After [`Self::sync`], the data also survives a power loss. Not cancel-safe, see
    /// [`super`].
    ///
    /// # Errors
    /// - `EndMoved` if the chunk file was truncated in a newer generation. The write has changed
    ///   nothing.
    /// - `Corrupt` if a chunk file that must exist is lost. The target does not create the file.
    /// - `Protocol` if the data does not match the checksums.
    /// - `NoSpace` if the target is full, `FileTooLarge` if the write ends beyond the longest chunk
    ///   file. The failed write has changed no data, but may have filled holes within the range.
    /// - `Corrupt` if a granule that the write overwrites only in part is damaged.
    /// - `DeviceFailed` if a write to the device has failed.
    pub async fn write(&self, to: Destination<'_>, data: &Buf, checksums: &[u32]) -> Result<()> {
        let Destination { key, offset, truncate_generation, must_exist, .. } = to;
        self.check_writable()?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > MAX_CHUNK_FILE_BYTES) {
            return Err(Error::new(
                ErrorCode::FileTooLarge,
                format!(
                    "cannot write to chunk file {key}: the range ends beyond the maximum size of \
                     a chunk file"
                ),
            ));
        }
        let incoming = Incoming { offset, data, checksums };
        incoming.verify(key)?;
        if data.is_empty() {
            return Ok(());
        }
        let free_space = self.space.admit(data.len() as u64);
        loop {
            // A write that is refused must not create the file.
            self.check_generation(key, truncate_generation)?;
            let file = self.file_to_write(key, free_space, must_exist)?;
            if self.write_if_there(&file, &to, &incoming, free_space).await? {
                return Ok(());
            }
        }
    }

    /// Writes to an open file. Returns `false` if the file was removed before the write.
    pub(super) async fn write_if_there(
        &self,
        file: &Rc<ChunkFile>,
        to: &Destination<'_>,
        incoming: &Incoming<'_>,
        free_space: FreeSpace,
    ) -> Result<bool> {
        let range = incoming.range();
        let place = file.lock.write(whole_granules(&range));
        // Writes that wait for each other share a sync of the dirty log, before any of these writes
        // changes the file.
        self.record_early(file, &range).await?;
        place.admission().await;
        if file.is_removed.get() {
            return Ok(false);
        }
        let _writing = file.begin_write(range.end);
        // Check the generation again under the lock, because a truncation may have been executed
        // while this request waited for the lock.
        let written = match self.check_generation(to.key, to.truncate_generation) {
            Ok(()) => self.write_locked(file, to.stripe, incoming, free_space).await,
            Err(error) => {
                self.drop_if_new(file);
                Err(error)
            }
        };
        let shrunk = self.shrink(file);
        written.and(shrunk).map(|()| true)
    }

    /// Records in the dirty log the loaded regions that a write will change. The write checks the
    /// regions again when it holds the lock, because the cleaner may have cleaned a region before
    /// that moment.
    async fn record_early(&self, file: &ChunkFile, range: &Range<u64>) -> Result<()> {
        let touched = region_of(range.start)..region_of(range.end - 1) + 1;
        let cached: Vec<_> = {
            let regions = file.regions.borrow();
            touched.clone().filter_map(|index| regions.get(&index).map(Rc::clone)).collect()
        };
        if !cached.iter().any(|region| region.header.get().is_some_and(|header| header.synced)) {
            return Ok(());
        }
        // Register a change of the regions, so that the cleaner does not remove these regions from
        // the dirty log while this call records them.
        let _changing = self.dirty.change(file.key, touched);
        self.record_overwrite(cached.iter().map(|region| &**region)).await
    }

    /// Returns and logs the error of a write that needs more space than the target has.
    pub(super) fn no_space(&self) -> Error {
        if let Some(count) = self.space.note_refusal(skep_env::now()) {
            let writes = match count {
                1 => "a write that needs".to_owned(),
                count => format!("{count} writes that need"),
            };
            tracing::error!(
                "target {} is full and has refused {writes} new space under {}; delete files, or \
                 add targets; `skep target files --paths {}` lists the files on the target, and \
                 the directories whose pattern names the target",
                self.target,
                self.directory.display(),
                self.target.raw()
            );
        }
        Error::new(
            ErrorCode::NoSpace,
            format!("target {} has no space left under {}", self.target, self.directory.display()),
        )
    }

    fn lost(&self, key: &ChunkFileKey) -> Error {
        let what = format!(
            "chunk file {key} on target {} is lost although its bytes were synced; look for it in \
             lost+found on the disk of the target, or restore the file from a backup",
            self.target
        );
        Error::new(ErrorCode::Corrupt, what)
    }

    /// Opens a chunk file for writing. Creates a missing chunk file unless `must_exist` is set.
    ///
    /// # Errors
    /// - `Corrupt` if a chunk file that must exist is lost.
    /// - `NoSpace` if the target has no space for a new chunk file.
    pub(super) fn file_to_write(
        &self,
        key: &ChunkFileKey,
        free_space: FreeSpace,
        must_exist: bool,
    ) -> Result<Rc<ChunkFile>> {
        let file = match free_space {
            _ if must_exist => self.existing(key)?.ok_or_else(|| self.lost(key))?,
            FreeSpace::None => self.existing(key)?.ok_or_else(|| self.no_space())?,
            _ => self.existing_or_new(key)?,
        };
        // If the file system has become read-only, the target may have opened the file for reading
        // only. A write to such a file must fail.
        self.check_writable()?;
        Ok(file)
    }

    pub(super) async fn write_locked(
        &self,
        file: &Rc<ChunkFile>,
        stripe: StripeHint,
        incoming: &Incoming<'_>,
        free_space: FreeSpace,
    ) -> Result<()> {
        let range = incoming.range();
        let _changing =
            self.dirty.change(file.key, region_of(range.start)..region_of(range.end - 1) + 1);
        let writes = self.prepare(file, incoming).await?;
        if let Err(error) = self.secure_space(file, &writes, free_space) {
            self.drop_if_new(file);
            return Err(error);
        }
        self.record_overwrite(writes.iter().map(|write| &*write.region)).await?;
        file.note_change();
        let written = match self.write_data(file, incoming, &writes).await {
            Ok(()) => self.write_pages(file, stripe, &writes),
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {
                file.size.set(file.size.get().max(range.end));
                file.is_new.set(false);
                // A concurrent sync may have missed this write, so count the change a second time.
                file.note_change();
                for write in &writes {
                    self.disk.begin_write_back(file, write.index, &write.range);
                }
                self.wake_cleaner_if_needed();
                Ok(())
            }
            Err(error) if error.code() == ErrorCode::DeviceFailed => Err(error),
            Err(error) => {
                self.undo(file, &writes).await?;
                self.drop_if_new(file);
                Err(error)
            }
        }
    }

    /// Loads the regions that the write touches, and computes the checksums that these regions will
    /// have after the write.
    pub(super) async fn prepare(
        &self,
        file: &ChunkFile,
        incoming: &Incoming<'_>,
    ) -> Result<Vec<RegionWrite>> {
        let mut writes = Vec::with_capacity(2);
        let mut pieces = incoming.pieces().peekable();
        for (index, range) in region_pieces(incoming.range()) {
            let region = self.region(file, index).await?;
            let granules = whole_granules(&range);
            let count = (granules.end - granules.start) / GRANULE_BYTES;
            let mut checksums = Vec::with_capacity(count as usize);
            while let Some((piece, checksum)) = pieces.next_if(|(it, _)| it.start < range.end) {
                checksums.push(if piece.end - piece.start == GRANULE_BYTES {
                    checksum ^ ZERO_GRANULE_CRC
                } else {
                    self.merged_checksum(file, &region, &piece, &incoming.part(&piece)).await?
                });
            }
            let was_blank = region.header.get().is_none();
            writes.push(RegionWrite { index, range, region, was_blank, checksums });
        }
        Ok(writes)
    }

    /// Returns the checksum of a granule after a piece of it is overwritten. The old bytes must
    /// match the stored checksum, since damaged bytes would otherwise get a valid checksum.
    async fn merged_checksum(
        &self,
        file: &ChunkFile,
        region: &Region,
        piece: &Range<u64>,
        bytes: &Buf,
    ) -> Result<u32> {
        let start = piece.start / GRANULE_BYTES * GRANULE_BYTES;
        let granule = start..start + GRANULE_BYTES;
        let stored = region.checksums.borrow()[granule_in_region(start)];
        let old = if start >= file.size.get() {
            let old = Buf::new(GRANULE_BYTES as usize);
            old.zero(0..old.len());
            old
        } else {
            self.read_region(file, &granule).await?
        };
        if granule_checksum(&old.bytes()) != stored {
            return Err(file.corrupt_granule(start).within(self.target));
        }
        old.write((piece.start - start) as usize, &bytes.bytes());
        Ok(granule_checksum(&old.bytes()))
    }

    /// Reserves or checks space, so that the file system does not run out of space during the
    /// write. A file system that cannot reserve space can still run out of space. [`Self::undo`]
    /// then undoes the write.
    fn secure_space(
        &self,
        file: &ChunkFile,
        writes: &[RegionWrite],
        free_space: FreeSpace,
    ) -> Result<()> {
        for write in writes {
            let data = physical_range(&write.range);
            let page = skep_format::chunk::page_offset(write.index);
            let ranges = [page..page + skep_format::chunk::PAGE_BYTES, data];
            match free_space {
                FreeSpace::Plenty => {}
                FreeSpace::Scarce => {
                    for range in ranges {
                        match file.file.reserve(range) {
                            Err(error) if error.kind() != std::io::ErrorKind::Unsupported => {
                                return Err(self.note_failure(file.io_error(error)));
                            }
                            _ => {}
                        }
                    }
                }
                // An overwrite and a write into reserved space need no new space.
                FreeSpace::None => {
                    for range in ranges {
                        if self.unallocated_bytes(file, &range)? > 0 {
                            return Err(self.no_space());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the given regions in the dirty log if they are on the device. The caller must
    /// call this function before it changes these regions.
    pub(super) async fn record_overwrite(
        &self,
        regions: impl Iterator<Item = &Region>,
    ) -> Result<()> {
        let synced: Vec<_> = regions
            .filter_map(|region| region.header.get().filter(|header| header.synced))
            .map(|header| DirtyRegion { key: header.identity.key, region: header.identity.region })
            .collect();
        if synced.is_empty() {
            return Ok(());
        }
        self.dirty_log.record(&synced).await.map_err(|error| self.note_failure(error))
    }

    async fn write_data(
        &self,
        file: &ChunkFile,
        incoming: &Incoming<'_>,
        writes: &[RegionWrite],
    ) -> Result<()> {
        for write in writes {
            let (data, at) = (incoming.part(&write.range), physical_range(&write.range).start);
            let now = skep_env::now();
            let written = if data.len() > INLINE_WRITE_BYTES || self.disk.is_slow(now) {
                file.file.write_at(data, at).await
            } else {
                let written = file.file.write_now(&data.bytes(), at);
                let end = skep_env::now();
                skep_env::note_blocked(end - now);
                self.disk.wrote(now, end);
                written
            };
            written.map_err(|error| self.note_failure(file.io_error(error)))?;
        }
        Ok(())
    }

    fn write_pages(
        &self,
        file: &ChunkFile,
        stripe: StripeHint,
        writes: &[RegionWrite],
    ) -> Result<()> {
        for write in writes {
            let header = match write.region.header.get().filter(knows_stripe) {
                Some(old) => RegionHeader { synced: false, start: self.state.get().start, ..old },
                None => self.new_header(file, write.index, stripe),
            };
            let first = granule_in_region(write.range.start);
            let count = write.checksums.len();
            write.region.checksums.borrow_mut()[first..first + count]
                .copy_from_slice(&write.checksums);
            write.region.header.set(Some(header));
            self.write_page(file, write.index, &write.region)?;
        }
        Ok(())
    }

    /// Sets the physical length of the file to the length that belongs to its logical size.
    pub(super) fn truncate_to_size(&self, file: &ChunkFile) -> Result<()> {
        self.set_physical_length(file, file.size.get())
    }

    /// Sets the physical length of the file to the length that belongs to the logical size `size`.
    pub(super) fn set_physical_length(&self, file: &ChunkFile, size: u64) -> Result<()> {
        file.file
            .borrow_std()
            .set_len(physical_length(size))
            .map_err(|error| self.note_failure(file.io_error(error)))
    }
}

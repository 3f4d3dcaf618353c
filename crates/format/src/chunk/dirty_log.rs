//! The dirty log: the synced regions that may have changed since they were synced.
//!
//! The file starts with a header with a checksum, padded to [`HEADER_BYTES`]. Entries of fixed
//! length follow, and the target only appends entries. The first invalid entry ends the log. The
//! target syncs an entry before it changes the region. So if an entry is torn, the regions of this
//! entry and of all later entries are unchanged.

use crate::sealed;
use skep_types::codec::{Codec, Reader, Writer, crc32c, record};
use skep_types::{ChunkFileKey, ClusterId, Error, ErrorCode, Result, TargetId};

const MAGIC: [u8; 8] = *b"SKEPDIRT";
const VERSION: u16 = 1;
/// Length of the header including its padding, in bytes. The entries follow the header.
const HEADER_BYTES: usize = 64;
/// Length of one entry of the dirty log, in bytes.
pub const DIRTY_ENTRY_BYTES: usize = 32;

record! {
    /// Identity of the target to which a dirty log belongs.
    #[derive(Copy)]
    pub struct DirtyLogHeader {
        /// Id of the cluster that owns the log.
        pub cluster: ClusterId,
        /// Id of the target that owns the log.
        pub target: TargetId,
    }
}

record! {
    /// A region that may have changed since it was synced.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct DirtyRegion {
        /// Key of the chunk file that contains the region.
        pub key: ChunkFileKey,
        /// Index of the region in the chunk file.
        pub region: u64,
    }
}

impl DirtyLogHeader {
    /// Encodes a whole dirty log: the header and `entries`.
    pub fn to_file<'a>(&self, entries: impl Iterator<Item = &'a DirtyRegion>) -> Vec<u8> {
        let mut bytes = sealed::seal(MAGIC, VERSION, self);
        bytes.resize(HEADER_BYTES, 0);
        entries.for_each(|entry| bytes.extend_from_slice(&entry.to_entry()));
        bytes
    }
}

impl DirtyRegion {
    /// Encodes the region as an entry of the dirty log.
    pub fn to_entry(&self) -> [u8; DIRTY_ENTRY_BYTES] {
        let mut w = Writer::new();
        self.encode(&mut w);
        // Four zero bytes separate the region index from the checksum.
        0_u32.encode(&mut w);
        let crc = crc32c(&[&MAGIC[..], &w.finish()].concat());
        let mut entry = [0; DIRTY_ENTRY_BYTES];
        let mut w = Writer::new();
        self.encode(&mut w);
        0_u32.encode(&mut w);
        crc.encode(&mut w);
        entry.copy_from_slice(&w.finish());
        entry
    }

    fn from_entry(entry: &[u8]) -> Option<Self> {
        let mut r = Reader::new(entry);
        let region = Self::decode(&mut r).ok()?;
        (region.to_entry() == entry).then_some(region)
    }
}

/// Decodes a dirty log up to the first invalid entry.
///
/// # Errors
/// - `Corrupt` if the header is invalid or does not match `expected`.
/// - `Unsupported` if the header has a different version.
pub fn read_dirty_log(bytes: &[u8], expected: &DirtyLogHeader) -> Result<Vec<DirtyRegion>> {
    let sealed_bytes = expected.to_bytes().len() + 20;
    let corrupt = |what: String| Error::new(ErrorCode::Corrupt, what);
    if bytes.len() < HEADER_BYTES {
        return Err(corrupt(format!(
            "the file has only {} bytes, which are fewer than the bytes of its header",
            bytes.len()
        )));
    }
    let header: DirtyLogHeader = sealed::open(MAGIC, VERSION, &bytes[..sealed_bytes])?;
    if header != *expected {
        return Err(corrupt(format!(
            "the file belongs to target {} in cluster {}, not to target {} in cluster {}",
            header.target, header.cluster, expected.target, expected.cluster
        )));
    }
    let entries = bytes[HEADER_BYTES..].chunks(DIRTY_ENTRY_BYTES);
    Ok(entries.map_while(DirtyRegion::from_entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::InodeId;

    const HEADER: DirtyLogHeader =
        DirtyLogHeader { cluster: ClusterId::new([7; 16]), target: TargetId::new(3) };

    fn region(region: u64) -> DirtyRegion {
        let inode = InodeId::new(0x0001_0000_0000_0002);
        let key = ChunkFileKey { inode, generation: 0, component: 1, index: 2 };
        DirtyRegion { key, region }
    }

    #[test]
    fn torn_entry_ends_the_dirty_log() {
        let entries: Vec<_> = (0..5).map(region).collect();
        let bytes = HEADER.to_file(entries.iter());
        assert_eq!(bytes.len(), 64 + 5 * 32);
        assert_eq!(read_dirty_log(&bytes, &HEADER).unwrap(), entries);
        for cut in 64..bytes.len() {
            let read = read_dirty_log(&bytes[..cut], &HEADER).unwrap();
            assert_eq!(read, entries[..(cut - 64) / 32], "cut to {cut}");
        }
        for bit in 64 * 8..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let read = read_dirty_log(&bad, &HEADER).unwrap();
            assert_eq!(read, entries[..(bit / 8 - 64) / 32], "bit {bit}");
        }
    }

    #[test]
    fn zeros_after_the_last_entry_of_a_dirty_log_are_ignored() {
        let mut bytes = HEADER.to_file([region(9)].iter());
        bytes.resize(4096, 0);
        assert_eq!(read_dirty_log(&bytes, &HEADER).unwrap(), [region(9)]);
    }

    #[test]
    fn error_for_the_dirty_log_of_another_target_has_both_ids() {
        let bytes = HEADER.to_file([].iter());
        let other = DirtyLogHeader { target: TargetId::new(4), ..HEADER };
        let error = read_dirty_log(&bytes, &other).unwrap_err().to_string();
        assert!(error.contains("t3") && error.contains("t4"), "{error}");
        assert!(read_dirty_log(&bytes[..40], &HEADER).is_err());
    }
}

//! Checksums of data in transit. The data is split at the granule boundaries of its chunk file, and
//! each part has one checksum. So storage can store the received checksum of a whole granule
//! unchanged.

use skep_types::GRANULE_BYTES;
use skep_types::codec::crc32c;

/// Splits data at granule boundaries, and returns the parts in order. `offset` is the position of
/// the data in its chunk file.
fn granules(offset: u64, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let first = ((GRANULE_BYTES - offset % GRANULE_BYTES) as usize).min(bytes.len());
    let (head, rest) = bytes.split_at(first);
    let head = (!head.is_empty()).then_some(head);
    head.into_iter().chain(rest.chunks(GRANULE_BYTES as usize))
}

/// Returns the checksums of data that begins at `offset` of its chunk file, one for each granule.
pub(crate) fn checksums(offset: u64, bytes: &[u8]) -> Vec<u32> {
    granules(offset, bytes).map(crc32c).collect()
}

/// Returns whether data that begins at `offset` of its chunk file has the checksums `expected`.
pub(crate) fn matches(offset: u64, bytes: &[u8], expected: &[u32]) -> bool {
    let mut expected = expected.iter();
    granules(offset, bytes).all(|granule| expected.next() == Some(&crc32c(granule)))
        && expected.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_split_at_granules_of_the_chunk_file() {
        let bytes = vec![7; 10_000];
        let lengths = |offset, len: usize| {
            granules(offset, &bytes[..len]).map(<[u8]>::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(0, 10_000), [4096, 4096, 1808]);
        assert_eq!(lengths(4095, 4098), [1, 4096, 1]);
        assert_eq!(lengths(100, 50), [50]);
        assert_eq!(lengths(8192, 4096), [4096]);
        assert_eq!(lengths(0, 0), [0; 0]);
    }

    #[test]
    fn changed_byte_or_wrong_checksum_count_is_detected() {
        let mut bytes = vec![7; 9000];
        let good = checksums(4000, &bytes);
        assert!(matches(4000, &bytes, &good));
        assert!(!matches(4001, &bytes, &good));
        assert!(!matches(4000, &bytes, &good[1..]));
        assert!(!matches(4000, &bytes, &[&good[..], &[0]].concat()));
        bytes[8999] = 8;
        assert!(!matches(4000, &bytes, &good));
    }
}

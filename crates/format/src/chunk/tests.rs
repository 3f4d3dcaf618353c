//! Tests of region pages and of the conversion between logical and physical offsets.

use super::*;
use proptest::prelude::*;
use skep_types::InodeId;

fn header() -> RegionHeader {
    RegionHeader {
        identity: RegionIdentity {
            cluster: ClusterId::new([1; 16]),
            target: TargetId::new(2),
            key: ChunkFileKey {
                inode: InodeId::new(0x0003_0000_0000_0004),
                generation: 5,
                component: 6,
                index: 7,
            },
            region: 8,
            chunk_bytes: 512 << 10,
            width: 4,
            component_start: 1 << 20,
        },
        synced: true,
        start: 9,
        epoch: Epoch::new(10),
        lsn: Lsn::new(11),
    }
}

fn checksums() -> Box<[u32; GRANULES]> {
    let mut checksums = Box::new([0; GRANULES]);
    checksums.iter_mut().enumerate().for_each(|(index, value)| *value = index as u32 * 3);
    checksums
}

#[test]
fn region_page_survives_a_round_trip() {
    let page = header().to_page(&checksums());
    match read_page(&page) {
        FoundPage::Whole(found, found_checksums) => {
            assert_eq!(found, header());
            assert_eq!(found_checksums, checksums());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn region_page_bytes_of_version_1_never_change() {
    let page = header().to_page(&checksums());
    assert_eq!(&page[..10], b"SKEPRGN\0\x01\0");
    assert_eq!(page[10..26], [1; 16]);
    assert_eq!(page[26..30], [2, 0, 0, 0]);
    assert_eq!(page[30..46], [4, 0, 0, 0, 0, 0, 3, 0, 5, 0, 0, 0, 6, 0, 7, 0]);
    assert_eq!(page[46..54], 8_u64.to_le_bytes());
    assert_eq!(page[54..62], (512_u64 << 10).to_le_bytes());
    assert_eq!(page[62..64], [4, 0]);
    assert_eq!(page[64..72], (1_u64 << 20).to_le_bytes());
    assert_eq!(page[72], 1);
    assert_eq!(page[73..81], 9_u64.to_le_bytes());
    assert_eq!(page[81..89], 10_u64.to_le_bytes());
    assert_eq!(page[89..97], 11_u64.to_le_bytes());
    assert!(page[97..508].iter().chain(&page[512..1024]).all(|byte| *byte == 0));
    assert_eq!(page[1024..1036], [0, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0]);
    assert!(page[3072..4092].iter().all(|byte| *byte == 0));
    let covered = [&page[..72], &page[512..4092]].concat();
    assert_eq!(page[4092..], crc32c(&covered).to_le_bytes());
    assert_eq!(page[508..512], crc32c(&page[..508]).to_le_bytes());
}

#[test]
fn parser_reports_the_part_of_a_page_with_a_flipped_bit() {
    let page = header().to_page(&checksums());
    for bit in 0..page.len() * 8 {
        let mut bad = page;
        bad[bit / 8] ^= 1 << (bit % 8);
        match (read_page(&bad), bit / 8) {
            (FoundPage::Damaged(_), 0..512) => {}
            (FoundPage::Torn(found), 512..) => assert_eq!(found, header()),
            (other, byte) => panic!("byte {byte}: {other:?}"),
        }
    }
}

#[test]
fn region_page_of_another_region_is_refused() {
    let mut page = header().to_page(&checksums());
    let mut other = header();
    other.identity.region += 1;
    page[512..].copy_from_slice(&other.to_page(&checksums())[512..]);
    assert!(matches!(read_page(&page), FoundPage::Torn(_)));
}

#[test]
fn zeroed_page_is_blank_and_partly_zeroed_page_is_damaged() {
    assert!(matches!(read_page(&[0; 4096]), FoundPage::Blank));
    let mut page = header().to_page(&checksums());
    page[..512].fill(0);
    assert!(matches!(read_page(&page), FoundPage::Damaged(_)));
}

#[test]
fn a_granule_of_zeros_has_checksum_zero() {
    assert_eq!(granule_checksum(&[0; 4096]), 0);
    assert_eq!(granule_checksum(&[]), 0);
    assert_eq!(granule_checksum(&[0; 5]), 0);
    let mut padded = [0; 4096];
    padded[..3].copy_from_slice(b"abc");
    assert_eq!(granule_checksum(b"abc"), granule_checksum(&padded));
    assert_ne!(granule_checksum(b"abc"), 0);
}

#[test]
fn length_of_a_chunk_file_includes_the_page_of_each_region() {
    let table = [
        (0, 4096),
        (1, 4097),
        (REGION_BYTES - 1, REGION_STRIDE - 1),
        (REGION_BYTES, REGION_STRIDE),
        (REGION_BYTES + 1, REGION_STRIDE + 4097),
        (3 * REGION_BYTES, 3 * REGION_STRIDE),
    ];
    for (size, physical) in table {
        assert_eq!(physical_length(size), physical, "size {size}");
        assert_eq!(logical_size(physical), size, "length {physical}");
    }
    // Only a crash can leave a chunk file that ends before or inside the first page of a region.
    assert_eq!(logical_size(0), 0);
    assert_eq!(logical_size(REGION_STRIDE + 17), REGION_BYTES);
    assert!(physical_length(MAX_CHUNK_FILE_BYTES) <= i64::MAX as u64);
}

proptest! {
    #[test]
    fn logical_size_survives_conversion_to_physical_length(size in 0..=MAX_CHUNK_FILE_BYTES) {
        prop_assert_eq!(logical_size(physical_length(size)), size);
    }

    #[test]
    fn range_is_split_into_pieces_at_region_borders(
        start in 0_u64..1 << 40, len in 0_u64..9 << 20,
    ) {
        let mut at = start;
        for (region, piece) in region_pieces(start..start + len) {
            prop_assert_eq!(piece.start, at);
            prop_assert!(piece.start < piece.end);
            prop_assert_eq!(region_of(piece.start), region);
            prop_assert_eq!(region_of(piece.end - 1), region);
            let expected = page_offset(region) + PAGE_BYTES + piece.start % REGION_BYTES;
            prop_assert_eq!(physical_offset(piece.start), expected);
            at = piece.end;
        }
        prop_assert_eq!(at, start + len);
    }

    #[test]
    fn parsing_an_arbitrary_page_never_panics(bytes in proptest::collection::vec(0_u8.., 4096)) {
        let _ = read_page(&bytes);
    }
}

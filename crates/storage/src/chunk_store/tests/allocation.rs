//! Tests of holes and reserved space. These tests check offsets, allocation, and the state after
//! power losses.

use super::*;
use crate::chunk_store::clear::RegionPart;

async fn extents(store: &Rc<ChunkStore>) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(data) = store.next_data(&key(1), at).await.unwrap() {
        at = store.next_hole(&key(1), data).await.unwrap();
        found.push((data, at));
    }
    found
}

#[test]
fn cleared_range_reads_as_zeros_and_whole_granules_are_holes() {
    run(|dir| async move {
        let store = open(&dir);
        let mut data = pattern(1, 7 * MIB as usize);
        write(&store, key(1), 0, &data).await.unwrap();
        store.sync(&key(1)).await.unwrap();
        let full = store.stat(&key(1)).unwrap().allocated;
        assert_eq!(extents(&store).await, [(0, 7 * MIB)]);
        for range in [5000..6000, 4000..4 * MIB + 9, 7 * MIB - 5000..8 * MIB] {
            assert_eq!(store.clear(&key(1), range.clone(), u64::MAX).await.unwrap(), range.end);
            data[range.start as usize..7.min(range.end.div_ceil(MIB)) as usize * MIB as usize]
                [..(range.end.min(7 * MIB) - range.start) as usize]
                .fill(0);
            assert!(read(&store, key(1), 0, 8 << 20).await.unwrap() == data);
        }
        let granule = GRANULE_BYTES;
        let left = [(0, granule), (4 * MIB, 7 * MIB - granule)];
        assert_eq!(extents(&store).await, left);
        assert_eq!(store.stat(&key(1)).unwrap().size, 7 * MIB, "the size stays");
        let left = store.stat(&key(1)).unwrap().allocated;
        assert!(left + 4 * MIB <= full, "{left} of {full} bytes are left");
        // Write data to a part of a granule in a cleared range.
        write(&store, key(1), MIB + 77, b"new").await.unwrap();
        store.close().await.unwrap();
        data[MIB as usize + 77..MIB as usize + 80].copy_from_slice(b"new");
        assert!(read(&open(&dir), key(1), 0, 8 << 20).await.unwrap() == data);
    });
}

#[test]
fn long_ranges_are_cleared_in_steps_and_holes_are_skipped() {
    run(|dir| async move {
        let store = open(&dir);
        let regions = crate::limits::MAX_CLEARED_STEPS as u64;
        for region in (0..=regions).step_by(2) {
            write(&store, key(1), region * 2 * MIB, b"x").await.unwrap();
        }
        write(&store, key(1), 1 << 40, b"far").await.unwrap();
        let end = i64::MAX as u64;
        let (mut at, mut steps) = (0, 0);
        while at < end {
            at = store.clear(&key(1), at..end, u64::MAX).await.unwrap();
            steps += 1;
        }
        assert_eq!(steps, 2);
        assert_eq!(extents(&store).await, []);
        assert!(read(&store, key(1), 0, 1 << 20).await.unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(read(&store, key(1), 1 << 40, 10).await.unwrap(), [0; 3]);
        assert_eq!(store.clear(&key(2), 0..end, u64::MAX).await.unwrap(), end);
        assert!(!store.stat(&key(2)).unwrap().exists, "the request creates no chunk file");
    });
}

#[test]
fn damaged_granule_can_be_cleared_only_as_a_whole() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &pattern(1, 100_000)).await.unwrap();
        store.close().await.unwrap();
        let at = physical_offset(10_000);
        tamper(&store.names.path(&key(1)), at..at + 1, |byte| byte ^ 1);
        let store = open(&dir);
        let error = store.clear(&key(1), 9000..20_000, u64::MAX).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        store.clear(&key(1), 8192..20_000, u64::MAX).await.unwrap();
        assert_eq!(read(&store, key(1), 8192, 4096).await.unwrap(), [0; 4096]);
    });
}

#[test]
fn synced_region_is_logged_as_dirty_before_its_clearing() {
    for is_hole_lost in [false, true] {
        run(move |dir| async move {
            let store = open(&dir);
            let data = pattern(1, 5 * MIB as usize);
            write(&store, key(1), 0, &data).await.unwrap();
            store.close().await.unwrap();
            let path = store.names.path(&key(1));
            let old = std::fs::read(&path).unwrap();

            let store = open(&dir);
            store.clear(&key(1), 2 * MIB..4 * MIB, u64::MAX).await.unwrap();
            assert_eq!(store.dirty_log.recorded(), [DirtyRegion { key: key(1), region: 1 }]);
            drop(store);
            // Simulates that either the hole or the page did not reach the device.
            let lost = match is_hole_lost {
                true => physical_offset(2 * MIB)..physical_offset(3 * MIB),
                false => page_offset(1)..page_offset(1) + 4096,
            };
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            let old = &old[lost.start as usize..lost.end as usize];
            std::os::unix::fs::FileExt::write_all_at(&file, old, lost.start).unwrap();

            let store = open(&dir);
            let got = read(&store, key(1), 0, 5 << 20).await.unwrap();
            let mut expected = data.clone();
            expected[2 * MIB as usize..4 * MIB as usize].fill(0);
            if is_hole_lost {
                let back = 2 * MIB as usize..3 * MIB as usize;
                expected[back.clone()].copy_from_slice(&data[back]);
            }
            assert!(got == expected);
            store.clean().await.unwrap();
            assert_eq!(store.dirty_log.recorded(), []);
            drop(store);
            // After this clean end, the region counts as intact, so a mismatch is damage.
            tamper(&path, lost.start..lost.start + 1, |byte| byte ^ 1);
            assert!(read(&open(&dir), key(1), 2 * MIB, 4096).await.is_err());
        });
    }
}

#[test]
fn reserved_space_is_allocated_and_reads_as_a_hole() {
    run(|dir| async move {
        let store = open(&dir);
        assert_eq!(store.reserve(&key(1), 10..3 * MIB, u64::MAX, false).await.unwrap(), 3 * MIB);
        let stat = store.stat(&key(1)).unwrap();
        assert_eq!((stat.exists, stat.size), (true, 0));
        assert!(stat.allocated >= 3 * MIB, "{}", stat.allocated);
        write(&store, key(1), 2 * MIB + 5, b"data").await.unwrap();
        assert_eq!(extents(&store).await, [(2 * MIB, 2 * MIB + 9)]);
        assert_eq!(read(&store, key(1), 2 * MIB, 100).await.unwrap(), b"\0\0\0\0\0data");
        // `clear` must release the reserved space, even beyond the end of the file.
        store.clear(&key(1), 0..u64::MAX, u64::MAX).await.unwrap();
        let stat = store.stat(&key(1)).unwrap();
        assert_eq!(stat.size, 2 * MIB + 9);
        assert!(stat.allocated <= 3 * 4096, "{}", stat.allocated);
        let error = store.reserve(&key(1), 0..u64::MAX, u64::MAX, false).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::FileTooLarge);
        let all = skep_format::chunk::MAX_CHUNK_FILE_BYTES;
        let error = store.reserve(&key(2), 0..all, u64::MAX, false).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace, "the store checks before it allocates");
        assert!(!store.stat(&key(2)).unwrap().exists);
    });
}

#[test]
fn copies_between_chunk_files_keep_holes_and_find_damage() {
    run(|dir| async move {
        let store = open(&dir);
        let data = pattern(1, MIB as usize);
        write(&store, key(2), 0, &data).await.unwrap();
        write(&store, key(2), 3 * MIB, b"end").await.unwrap();
        let copy = async |from: u64, at: u64, length: u32| {
            let source = CopySource { key: &key(2), offset: from };
            store.copy(source, to(&key(1), at), length, || Ok(())).await
        };
        assert!(!copy(100, 5, 100_000).await.unwrap(), "the range has no holes");
        assert!(read(&store, key(1), 5, 100_000).await.unwrap() == data[100..100_100]);
        assert!(copy(0, 8192, 4 << 20).await.unwrap(), "the range has holes");
        let got = read(&store, key(1), 8192, 5 << 20).await.unwrap();
        assert!(got[..data.len()] == data && got[3 * MIB as usize..] == *b"end");
        assert_eq!(extents(&store).await, [(0, MIB + 8192), (3 * MIB + 8192, 3 * MIB + 8195)]);
        // The source range is a hole, and the destination contains data.
        assert!(copy(2 * MIB, 8192, 8192).await.unwrap());
        assert_eq!(read(&store, key(1), 8192, 8192).await.unwrap(), [0; 8192]);
        store.close().await.unwrap();
        let at = physical_offset(5000);
        tamper(&store.names.path(&key(2)), at..at + 1, |byte| byte ^ 1);
        let store = open(&dir);
        let source = CopySource { key: &key(2), offset: 0 };
        let error = store.copy(source, to(&key(1), 0), 8192, || Ok(())).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Corrupt, "damage is not copied as if it were data");
    });
}

/// Returns a part of the first region of a file.
async fn part_of(store: &Rc<ChunkStore>, file: &Rc<ChunkFile>, range: Range<u64>) -> RegionPart {
    RegionPart { index: 0, range, region: store.region(file, 0).await.unwrap() }
}

/// Checks docs/semantics.md 2.11 and 4.7.
#[test]
fn hole_refused_by_a_full_disk_leaves_matching_checksums() {
    run(|dir| async move {
        let mut data = pattern(1, 40_000);
        let (store, file) = open_with_file(&dir, &data).await;
        let part = part_of(&store, &file, 4096..5 * 4096).await;
        // The file system punches a part of the hole before its error.
        file.file.punch_hole(physical_offset(4096)..physical_offset(3 * 4096)).unwrap();
        data[4096..3 * 4096].fill(0);
        let full = Err(Error::new(ErrorCode::NoSpace, "no space"));
        let error = store.finish_clearing(&file, &part, full).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        assert!(read(&store, key(1), 0, 40_000).await.unwrap() == data);
        store.finish_clearing(&file, &part, Ok(false)).await.unwrap();
        data[4096..5 * 4096].fill(0);
        assert!(read(&store, key(1), 0, 40_000).await.unwrap() == data);
        drop((part, file));
        store.close().await.unwrap();
        assert!(read(&open(&dir), key(1), 0, 40_000).await.unwrap() == data);
    });
}

/// Checks docs/semantics.md 2.11.
#[test]
fn clearing_on_a_file_system_without_holes_keeps_the_size() {
    run(|dir| async move {
        let mut data = pattern(1, 10_000);
        let (store, file) = open_with_file(&dir, &data).await;
        let part = part_of(&store, &file, 8192..3 * 4096).await;
        store.finish_clearing(&file, &part, Ok(false)).await.unwrap();
        data[8192..].fill(0);
        assert_eq!(store.stat(&key(1)).unwrap().size, 10_000);
        drop((part, file));
        store.close().await.unwrap();
        let store = open(&dir);
        assert_eq!(store.stat(&key(1)).unwrap().size, 10_000);
        assert!(read(&store, key(1), 0, 20_000).await.unwrap() == data);
    });
}

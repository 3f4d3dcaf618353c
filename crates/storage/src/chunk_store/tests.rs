//! Tests of the whole store: during use, after crashes, and with damaged files.

mod allocation;
mod concurrency;
mod crash;
mod damage;
mod faults;
mod full;
mod generations;
mod loops;
mod model;
mod power_loss;

use super::*;
use skep_env::Buf;
use skep_format::chunk::{REGION_BYTES, page_offset, physical_offset};
use skep_types::codec::crc32c;
use skep_types::{GRANULE_BYTES, InodeId};
use skep_wire::storage::StripeHint;
use std::ops::Range;

const CLUSTER: ClusterId = ClusterId::new([5; 16]);
const TARGET: TargetId = TargetId::new(3);
const STRIPE: StripeHint = StripeHint { chunk_bytes: 512 << 10, width: 4, component_start: 0 };
const MIB: u64 = 1 << 20;

fn key(number: u64) -> ChunkFileKey {
    ChunkFileKey { inode: InodeId::new(number), generation: 0, component: 0, index: 0 }
}

/// Opens the store, which counts as a new start of the target.
fn open(directory: &Path) -> Rc<ChunkStore> {
    ChunkStore::open(directory, CLUSTER, TARGET).unwrap()
}

/// Runs a test's future on an event loop, with a temporary directory for its target.
fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(PathBuf) -> F) {
    let dir = tempfile::tempdir().unwrap();
    skep_env::block_on(test(dir.path().to_owned())).unwrap();
}

/// Returns the checksums of the granule pieces of `bytes`, which begin at `offset`.
fn piece_checksums(offset: u64, bytes: &[u8]) -> Vec<u32> {
    let mut checksums = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let left = GRANULE_BYTES - (offset + at as u64) % GRANULE_BYTES;
        let end = bytes.len().min(at + left as usize);
        checksums.push(crc32c(&bytes[at..end]));
        at = end;
    }
    checksums
}

/// Returns the destination of a write that is newer than every truncation.
fn to(key: &ChunkFileKey, offset: u64) -> Destination<'_> {
    Destination { key, stripe: STRIPE, offset, truncate_generation: u64::MAX, must_exist: false }
}

async fn write(store: &Rc<ChunkStore>, key: ChunkFileKey, offset: u64, bytes: &[u8]) -> Result<()> {
    let checksums = piece_checksums(offset, bytes);
    store.write(to(&key, offset), &Buf::copy_of(bytes), &checksums).await
}

/// Opens the store, and writes `bytes` to the chunk file with the key `key(1)`.
async fn open_with_file(dir: &Path, bytes: &[u8]) -> (Rc<ChunkStore>, Rc<ChunkFile>) {
    let store = open(dir);
    write(&store, key(1), 0, bytes).await.unwrap();
    let file = store.existing(&key(1)).unwrap().unwrap();
    (store, file)
}

/// Reads a range, and checks that the returned checksums are right.
async fn read(
    store: &Rc<ChunkStore>,
    key: ChunkFileKey,
    offset: u64,
    length: u32,
) -> Result<Vec<u8>> {
    let read = store.read(&key, offset, length).await?;
    assert_eq!(read.checksums, piece_checksums(offset, &read.data.bytes()));
    Ok(read.data.bytes().to_vec())
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Changes a range of bytes of a file on disk.
fn tamper(path: &Path, range: Range<u64>, change: impl Fn(u8) -> u8) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = change(*byte));
    file.write_all_at(&bytes, range.start).unwrap();
}

#[test]
fn written_data_is_read_across_regions_and_holes() {
    run(|dir| async move {
        let store = open(&dir);
        let data = pattern(1, 5 * MIB as usize);
        // The write starts in the middle of a granule and crosses two region boundaries.
        write(&store, key(1), MIB + 1000, &data[..4 * MIB as usize]).await.unwrap();
        let got = read(&store, key(1), MIB + 1000, 4 << 20).await.unwrap();
        assert!(got == data[..4 * MIB as usize]);
        assert!(read(&store, key(1), 0, 1 << 20).await.unwrap() == vec![0; MIB as usize]);
        let tail = read(&store, key(1), 5 * MIB, 1 << 20).await.unwrap();
        assert_eq!(tail.len(), 1000, "the file ends within the range");
        assert!(read(&store, key(1), 6 * MIB, 10).await.unwrap().is_empty());
        assert!(
            read(&store, key(2), 0, 10).await.unwrap().is_empty(),
            "the chunk file does not exist"
        );
        assert_eq!(store.stat(&key(1)).unwrap().size, 5 * MIB + 1000);
        assert!(!store.stat(&key(2)).unwrap().exists);
    });
}

#[test]
fn data_damaged_in_transit_is_refused_without_a_change() {
    run(|dir| async move {
        let store = open(&dir);
        let data = pattern(1, 10_000);
        let mut checksums = piece_checksums(0, &data);
        checksums[1] ^= 1;
        let write = store.write(to(&key(1), 0), &Buf::copy_of(&data), &checksums).await;
        let error = write.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Protocol);
        assert!(error.context().contains("bytes 4096 to 8192"), "{error}");
        let short = store.write(to(&key(1), 0), &Buf::copy_of(&data), &checksums[..2]).await;
        assert_eq!(short.unwrap_err().code(), ErrorCode::Protocol);
        assert!(!store.stat(&key(1)).unwrap().exists);
    });
}

#[test]
fn chunk_file_contains_its_own_key() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(9), 3 * MIB, b"abc").await.unwrap();
        let bytes = std::fs::read(store.names.path(&key(9))).unwrap();
        let page = &bytes[page_offset(1) as usize..][..4096];
        let skep_format::chunk::FoundPage::Whole(header, _) = skep_format::chunk::read_page(page)
        else {
            panic!("no page");
        };
        let identity = header.identity;
        assert_eq!((identity.cluster, identity.target), (CLUSTER, TARGET));
        assert_eq!((identity.key, identity.region), (key(9), 1));
        assert_eq!((identity.chunk_bytes, identity.width), (STRIPE.chunk_bytes, STRIPE.width));
        assert_eq!(bytes.len() as u64, physical_offset(3 * MIB) + 3);
    });
}

#[test]
fn removal_of_a_chunk_file_can_be_repeated() {
    run(|dir| async move {
        let store = open(&dir);
        for number in 1..20 {
            write(&store, key(number), 0, b"x").await.unwrap();
        }
        let keys: Vec<_> = (1..30).map(key).collect();
        store.remove(&keys).await.unwrap();
        store.remove(&keys).await.unwrap();
        assert!(!store.stat(&key(1)).unwrap().exists);
        assert_eq!(store.list(0, 100).unwrap(), (vec![], 0));
        write(&store, key(1), 5, b"new").await.unwrap();
        assert_eq!(read(&store, key(1), 0, 100).await.unwrap(), b"\0\0\0\0\0new");
        store.clean().await.unwrap();
    });
}

#[test]
fn paged_listing_returns_each_file_once() {
    run(|dir| async move {
        let store = open(&dir);
        let mut all = Vec::new();
        for number in 0..60 {
            for index in 0..3 {
                let key = ChunkFileKey { index, ..key(1 + number * 100) };
                write(&store, key, 0, b"x").await.unwrap();
                all.push(key);
            }
        }
        for limit in [1, 7, 1000] {
            let (mut listed, mut cursor) = (Vec::new(), 0);
            loop {
                let (keys, next) = store.list(cursor, limit).unwrap();
                listed.extend(keys);
                if next == 0 {
                    break;
                }
                cursor = next;
            }
            listed.sort();
            assert_eq!(listed, all, "limit {limit}");
        }
    });
}

#[test]
fn reads_during_writes_see_complete_writes() {
    run(|dir| async move {
        let store = open(&dir);
        write(&store, key(1), 0, &vec![0; 300_000]).await.unwrap();
        let writer = Rc::clone(&store);
        let writing = skep_env::spawn(async move {
            for value in 1..60_u8 {
                write(&writer, key(1), 5000, &vec![value; 200_000]).await.unwrap();
            }
        });
        while !writing.is_finished() {
            let got = read(&store, key(1), 5000, 200_000).await.unwrap();
            assert!(got.iter().all(|byte| *byte == got[0]), "half of a write was visible");
        }
    });
}

#[test]
fn sizes_beyond_the_longest_chunk_file_are_refused() {
    run(|dir| async move {
        let store = open(&dir);
        for offset in [skep_format::chunk::MAX_CHUNK_FILE_BYTES - 2, u64::MAX - 1] {
            let data = Buf::copy_of(b"abc");
            let written = store.write(to(&key(1), offset), &data, &[crc32c(b"abc")]).await;
            assert_eq!(written.unwrap_err().code(), ErrorCode::FileTooLarge);
        }
        write(&store, key(1), 0, b"abc").await.unwrap();
        store.truncate(&key(1), u64::MAX, next_generation()).await.unwrap();
        assert_eq!(store.stat(&key(1)).unwrap().size, 3);
        assert!(read(&store, key(1), u64::MAX - 1, 100).await.unwrap().is_empty());
    });
}

/// Returns a truncate generation that is newer than all previous generations.
fn next_generation() -> u64 {
    static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
}

#[test]
fn truncating_a_missing_file_creates_nothing() {
    run(|dir| async move {
        let store = open(&dir);
        store.truncate(&key(1), 100, next_generation()).await.unwrap();
        store.sync(&key(1)).await.unwrap();
        assert!(!store.stat(&key(1)).unwrap().exists);
    });
}

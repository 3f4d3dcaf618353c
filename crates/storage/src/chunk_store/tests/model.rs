//! Compares random operations on the store with a simple model, which has the bytes of each chunk
//! file in a vector.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Operation {
    Write {
        file: u64,
        offset: u64,
        length: usize,
        seed: u64,
    },
    /// Writes that the store gets at the same time. Each entry is the offset, length and seed of a
    /// write.
    Writes {
        file: u64,
        writes: Vec<(u64, u64, u64)>,
    },
    Truncate {
        file: u64,
        size: u64,
    },
    Read {
        file: u64,
        offset: u64,
        length: u32,
    },
    Clear {
        file: u64,
        offset: u64,
        length: u64,
    },
    Reserve {
        file: u64,
        offset: u64,
        length: u64,
    },
    Copy {
        from: u64,
        from_offset: u64,
        file: u64,
        offset: u64,
        length: u32,
    },
    Remove {
        file: u64,
    },
    Sync {
        file: u64,
    },
    Clean,
    /// The test kills and restarts the process. No data may be lost.
    Kill,
    /// The target shuts down cleanly, and the test restarts the target.
    Restart,
}

/// Generates offsets near the boundaries of granules and regions.
fn place() -> impl Strategy<Value = u64> {
    let border = prop_oneof![
        Just(0),
        Just(GRANULE_BYTES),
        Just(2 * MIB),
        Just(4 * MIB),
        (0..1500_u64).prop_map(|granule| granule * GRANULE_BYTES),
    ];
    let shift = prop_oneof![Just(0_i64), Just(1), Just(-1), -5000..5000_i64];
    (border, shift).prop_map(|(border, shift)| border.saturating_add_signed(shift))
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![1..100_u64, 4000..20_000_u64, Just(GRANULE_BYTES), Just(MIB), 0..3 * MIB]
}

fn operation() -> impl Strategy<Value = Operation> {
    let file = 1..3_u64;
    prop_oneof![
        8 => (file.clone(), place(), length(), any::<u64>()).prop_map(
            |(file, offset, length, seed)| Operation::Write {
                file, offset, length: length as usize, seed,
            }),
        4 => (
            file.clone(),
            proptest::collection::vec((place(), length(), any::<u64>()), 2..6),
        ).prop_map(|(file, writes)| Operation::Writes { file, writes }),
        2 => (file.clone(), place()).prop_map(|(file, size)| Operation::Truncate { file, size }),
        4 => (file.clone(), place(), length()).prop_map(
            |(file, offset, length)| Operation::Read { file, offset, length: length as u32 }),
        4 => (file.clone(), place(), length()).prop_map(
            |(file, offset, length)| Operation::Clear { file, offset, length }),
        2 => (file.clone(), place(), length()).prop_map(
            |(file, offset, length)| Operation::Reserve { file, offset, length }),
        3 => (file.clone(), place(), place(), length()).prop_map(
            |(from, from_offset, offset, length)| Operation::Copy {
                from, from_offset, file: 3 - from, offset, length: length as u32,
            }),
        1 => file.clone().prop_map(|file| Operation::Remove { file }),
        1 => file.prop_map(|file| Operation::Sync { file }),
        1 => Just(Operation::Clean),
        1 => Just(Operation::Kill),
        1 => Just(Operation::Restart),
    ]
}

/// The contents of the chunk files. `None` means that a chunk file does not exist.
#[derive(Default)]
struct Model([Option<Vec<u8>>; 3]);

impl Model {
    fn write(&mut self, file: u64, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let held = self.0[file as usize].get_or_insert_default();
        held.resize(held.len().max(offset + bytes.len()), 0);
        held[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn clear(&mut self, file: u64, range: Range<usize>) {
        let held = self.0[file as usize].as_deref_mut().unwrap_or_default();
        let end = range.end.min(held.len());
        held[range.start.min(end)..end].fill(0);
    }

    /// `size` is the size of the destination after the copy, since a hole at the end of the source
    /// does not extend the destination.
    fn copy(&mut self, from: u64, source: Range<usize>, file: u64, offset: usize, size: usize) {
        let mut bytes = self.read(from, source.clone()).to_vec();
        bytes.resize(source.len(), 0);
        let held = self.0[file as usize].get_or_insert_default();
        let old = held.len();
        held.resize(old.max(offset + bytes.len()), 0);
        held[offset..offset + bytes.len()].copy_from_slice(&bytes);
        assert!((old..=held.len()).contains(&size), "size {size} is not in {old}..{}", held.len());
        assert!(held[size..].iter().all(|byte| *byte == 0), "only a hole may be missing");
        held.truncate(size);
    }

    fn read(&self, file: u64, range: Range<usize>) -> &[u8] {
        let held = self.0[file as usize].as_deref().unwrap_or_default();
        &held[range.start.min(held.len())..range.end.min(held.len())]
    }
}

async fn apply(store: &mut Rc<ChunkStore>, dir: &Path, model: &mut Model, operation: Operation) {
    match operation {
        Operation::Write { file, offset, length, seed } => {
            let bytes = pattern(seed, length);
            write(store, key(file), offset, &bytes).await.unwrap();
            model.write(file, offset as usize, &bytes);
        }
        Operation::Writes { file, writes } => {
            let mut tasks = Vec::new();
            for (offset, length, seed) in writes {
                let bytes = pattern(seed, length as usize);
                model.write(file, offset as usize, &bytes);
                let store = Rc::clone(store);
                let writing = async move { write(&store, key(file), offset, &bytes).await };
                tasks.push(skep_env::spawn(writing));
            }
            for task in tasks {
                task.await.unwrap();
            }
        }
        Operation::Truncate { file, size } => {
            store.truncate(&key(file), size, next_generation()).await.unwrap();
            if let Some(held) = &mut model.0[file as usize] {
                held.truncate(size as usize);
            }
        }
        Operation::Read { file, offset, length } => {
            let got = read(store, key(file), offset, length).await.unwrap();
            let start = offset as usize;
            assert!(got == model.read(file, start..start + length as usize), "{operation:?}");
        }
        Operation::Clear { file, offset, length } => {
            let end = offset + length;
            assert_eq!(store.clear(&key(file), offset..end, u64::MAX).await.unwrap(), end);
            model.clear(file, offset as usize..end as usize);
        }
        Operation::Reserve { file, offset, length } => {
            let end = offset + length;
            assert_eq!(store.reserve(&key(file), offset..end, u64::MAX, false).await.unwrap(), end);
            if length > 0 {
                model.0[file as usize].get_or_insert_default();
            }
        }
        Operation::Copy { from, from_offset, file, offset, length } => {
            let source = CopySource { key: &key(from), offset: from_offset };
            store.copy(source, to(&key(file), offset), length, || Ok(())).await.unwrap();
            let stat = store.stat(&key(file)).unwrap();
            if stat.exists {
                let start = from_offset as usize;
                let source = start..start + length as usize;
                model.copy(from, source, file, offset as usize, stat.size as usize);
            }
        }
        Operation::Remove { file } => {
            store.remove(&[key(file)]).await.unwrap();
            model.0[file as usize] = None;
        }
        Operation::Sync { file } => store.sync(&key(file)).await.unwrap(),
        Operation::Clean => store.clean().await.unwrap(),
        Operation::Kill => *store = open(dir),
        Operation::Restart => {
            store.close().await.unwrap();
            *store = open(dir);
        }
    }
}

/// Returns whether seeking reports all nonzero bytes as data. Also checks that holes and data
/// alternate.
async fn data_is_found(store: &Rc<ChunkStore>, file: u64, bytes: &[u8]) -> bool {
    let mut at = 0;
    while let Some(data) = store.next_data(&key(file), at as u64).await.unwrap() {
        let hole = store.next_hole(&key(file), data).await.unwrap() as usize;
        let data = data as usize;
        assert!(at <= data && data < hole && hole <= bytes.len(), "{at}, {data}, {hole}");
        if bytes[at..data].iter().any(|byte| *byte != 0) {
            return false;
        }
        at = hole;
    }
    bytes[at..].iter().all(|byte| *byte == 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn chunk_store_matches_a_model_after_random_operations(
        operations in proptest::collection::vec(operation(), 1..40),
    ) {
        run(|dir| async move {
            let (mut store, mut model) = (open(&dir), Model::default());
            for operation in operations {
                apply(&mut store, &dir, &mut model, operation).await;
                store.check_invariants();
            }
            for file in 1..3 {
                let stat = store.stat(&key(file)).unwrap();
                let held = &model.0[file as usize];
                assert_eq!(stat.exists, held.is_some());
                assert_eq!(stat.size, held.as_ref().map_or(0, |held| held.len() as u64));
                let got = read(&store, key(file), 0, 16 << 20).await.unwrap();
                assert!(got == model.read(file, 0..16 << 20));
                assert!(data_is_found(&store, file, &got).await);
            }
        });
    }
}

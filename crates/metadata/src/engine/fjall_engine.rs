//! The engine that services use: fjall, an LSM-tree store in Rust.

use super::{Engine, Mutations, start_of_scan};
use crate::limits::JOURNAL_BYTES;
use fjall::{Database, Guard, Iter, Keyspace, KeyspaceCreateOptions, PersistMode};
use skep_env::File;
use skep_format::metadata::Key;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Lsn, Result};
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// A fjall database with one keyspace.
#[derive(Clone)]
pub struct FjallEngine {
    database: Database,
    keyspace: Keyspace,
    directory: PathBuf,
}

/// Counts of the blocks that were loaded since the store was opened: one pair for data blocks, one
/// for index blocks and one for filter blocks. Each pair has the number of blocks found in the
/// cache, and the number of blocks read from files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockLoads(pub [(u64, u64); 3]);

impl std::fmt::Debug for FjallEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FjallEngine")
    }
}

/// Returns the smallest key that is greater than all keys with this prefix. `None` means that no
/// such key exists.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

fn failed(what: &str, error: &fjall::Error) -> Error {
    Error::new(ErrorCode::DeviceFailed, format!("cannot {what}: {error}"))
}

impl FjallEngine {
    /// Opens the store in a directory. Creates the store if the directory has none.
    ///
    /// # Errors
    /// - `Configuration` if the working directory of this process does not exist any more.
    /// - `DeviceFailed`, which names the directory, if fjall cannot open or create the store.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self> {
        // Fjall reads the working directory even if `path` is absolute, and panics if this fails.
        std::env::current_dir().map_err(|error| {
            let what = format!(
                "cannot open the key-value store {}: the working directory of this process was \
                 removed or cannot be read ({error}); start the program in another directory",
                path.display()
            );
            Error::new(ErrorCode::Configuration, what)
        })?;
        let open = || {
            let database = Database::builder(path).cache_size(cache_bytes).open()?;
            let keyspace = database.keyspace("metadata", KeyspaceCreateOptions::default)?;
            Ok(Self { database, keyspace, directory: path.to_owned() })
        };
        let engine = open().map_err(|error: fjall::Error| {
            failed(&format!("open the key-value store {}", path.display()), &error)
        })?;
        engine.allocate_journal();
        Ok(engine)
    }

    /// Allocates disk space for the newest journal file. Fjall only sets the length of the file, so
    /// without this allocation it could not write the journal after other programs have filled the
    /// disk. A failed allocation is only logged, because the disk may have space when fjall writes
    /// the journal.
    fn allocate_journal(&self) {
        let number = |path: &PathBuf| {
            let name = path.file_name()?.to_str()?;
            name.strip_suffix(".jnl")?.parse::<u64>().ok()
        };
        let files = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let newest = files.map(|it| it.path()).filter_map(|it| Some((number(&it)?, it))).max();
        let Some((_, path)) = newest else { return };
        let opened = File::open(&path, std::fs::OpenOptions::new().write(true));
        let allocated = opened.and_then(|file| file.reserve(0..JOURNAL_BYTES));
        if let Err(error) = allocated {
            tracing::debug!(
                "cannot allocate space for the newest file of the key-value store, {}: {error:#}",
                path.display()
            );
        }
    }

    /// Iterates over the pairs whose key begins with `prefix` and is greater than `after`.
    fn range(&self, prefix: &[u8], after: &[u8]) -> Iter {
        let from = start_of_scan(prefix, after);
        // The range needs an upper bound. Without it, the iterator would search for the next key
        // without the prefix, and could pass thousands of tombstones.
        let beyond = prefix_end(prefix);
        let to = beyond.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.keyspace.range::<&[u8], _>((from, to))
    }

    /// Returns how many blocks the store has loaded since it was opened.
    pub fn block_loads(&self) -> BlockLoads {
        let metrics = self.keyspace.metrics();
        // The store increments the count of cached loads and the count of all loads one after the
        // other, so the count of cached loads may briefly be higher than the count of all loads.
        let loads = |cached: usize, all: usize| (cached as u64, all.saturating_sub(cached) as u64);
        BlockLoads([
            loads(metrics.data_block_load_cached_count(), metrics.data_block_load_count()),
            loads(metrics.index_block_load_cached_count(), metrics.index_block_load_count()),
            loads(metrics.filter_block_load_cached_count(), metrics.filter_block_load_count()),
        ])
    }

    /// Makes all applied batches durable. Another thread may call this function on a clone of the
    /// engine.
    ///
    /// # Errors
    /// `DeviceFailed` if fjall cannot sync its journal.
    pub fn checkpoint(&self) -> Result<()> {
        let made = self.database.persist(PersistMode::SyncAll);
        made.map_err(|error| failed("write a checkpoint of the key-value store", &error))?;
        self.allocate_journal();
        Ok(())
    }
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let value =
            self.keyspace.get(key).map_err(|error| failed("read the key-value store", &error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let pair = |guard: Guard| -> Result<(Vec<u8>, Vec<u8>)> {
            let (key, value) =
                guard.into_inner().map_err(|error| failed("read the key-value store", &error))?;
            Ok((key.to_vec(), value.to_vec()))
        };
        self.range(prefix, after).take(limit).map(pair).collect()
    }

    fn scan_keys(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<Vec<u8>>> {
        let key = |guard: Guard| -> Result<Vec<u8>> {
            let key = guard.key().map_err(|error| failed("read the key-value store", &error))?;
            Ok(key.to_vec())
        };
        self.range(prefix, after).take(limit).map(key).collect()
    }

    fn approximate_pairs(&self) -> u64 {
        self.keyspace.approximate_len() as u64
    }

    fn apply(&mut self, batch: &Mutations, applied: Lsn) -> Result<()> {
        let mut writes = self.database.batch();
        for (key, value) in batch {
            match value {
                Some(value) => writes.insert(&self.keyspace, key.as_slice(), value.as_slice()),
                None => writes.remove(&self.keyspace, key.as_slice()),
            }
        }
        writes.insert(&self.keyspace, Key::Applied.to_bytes(), applied.to_bytes());
        writes.commit().map_err(|error| failed("write to the key-value store", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applied_batches_survive_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let mut batch = Mutations::new();
        for i in 0..100_u8 {
            batch.insert(vec![7, i], Some(vec![i]));
        }
        {
            let mut engine = FjallEngine::open(directory.path(), 1 << 20).unwrap();
            engine.apply(&batch, Lsn::new(1)).unwrap();
            let removal = Mutations::from([(vec![7, 50], None)]);
            engine.apply(&removal, Lsn::new(2)).unwrap();
            engine.checkpoint().unwrap();
        }
        let engine = FjallEngine::open(directory.path(), 1 << 20).unwrap();
        assert_eq!(engine.get(&[7, 3]).unwrap(), Some(vec![3]));
        assert_eq!(engine.get(&[7, 50]).unwrap(), None);
        let applied = engine.get(&Key::Applied.to_bytes()).unwrap();
        assert_eq!(applied, Some(Lsn::new(2).to_bytes()));
        let found = engine.scan(&[7], &[7, 48], 2).unwrap();
        assert_eq!(found, [(vec![7, 49], vec![49]), (vec![7, 51], vec![51])]);
        assert_eq!(engine.scan_keys(&[7], &[7, 48], 2).unwrap(), [[7, 49], [7, 51]]);
        assert_eq!(engine.scan_keys(&[7], &[], usize::MAX).unwrap().len(), 99);
    }

    #[test]
    fn read_of_a_store_file_is_counted_as_cached_or_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = FjallEngine::open(directory.path(), 1 << 20).unwrap();
        let batch = Mutations::from([(vec![7], Some(vec![1]))]);
        engine.apply(&batch, Lsn::new(1)).unwrap();
        engine.get(&[7]).unwrap();
        assert_eq!(engine.block_loads(), BlockLoads::default(), "the pair is in memory only");
        engine.keyspace.rotate_memtable_and_wait().unwrap();
        engine.get(&[7]).unwrap();
        engine.get(&[7]).unwrap();
        let BlockLoads([(cached, read), ..]) = engine.block_loads();
        assert!(cached + read >= 2, "each read needs the data block: {cached} and {read}");
        assert!(cached >= 1, "the second read finds the block in the cache");
    }

    #[test]
    fn opening_the_engine_allocates_the_journal() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let _engine = FjallEngine::open(directory.path(), 1 << 20).unwrap();
        let journal = std::fs::metadata(directory.path().join("0.jnl")).unwrap();
        assert!(journal.blocks() * 512 >= JOURNAL_BYTES, "{} blocks", journal.blocks());
    }
}

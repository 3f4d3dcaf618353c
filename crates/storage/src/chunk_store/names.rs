//! Paths of chunk files, `<target>/chunks/<xx>/<yy>/<key>`, and the syncs that make the names
//! durable.
//!
//! A hash of the inode id without its low bits selects the leaf directory. So files with
//! consecutive inode ids share leaf directories, and the syncs of these directories. With many
//! files, all leaf directories contain a similar number of files.

use crate::limits::PARALLEL_SYNCS;
use skep_env::File;
use skep_env::local::{Notify, Semaphore};
use skep_types::{ChunkFileKey, Error, ErrorCode, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Name of the directory that contains all chunk files of a target.
pub(crate) const CHUNKS: &str = "chunks";
/// Number of low bits of the inode id that do not affect the leaf directory. Inodes that differ
/// only in these bits share a leaf.
const NEIGHBOURS: u32 = 8;
/// Number of leaf directories.
#[cfg(test)]
const LEAVES: u32 = 1 << 16;

/// A directory in the tree of chunk files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Directory {
    Top,
    Middle(u8),
    Leaf(u16),
}

/// Maps chunk files to paths, and records the leaf directories with durable names.
#[derive(Debug)]
pub(crate) struct Names {
    chunks: PathBuf,
    /// Leaf directories with durable paths: this process has synced the names of these directories
    /// and of the directories above them.
    anchored: RefCell<BTreeSet<u16>>,
    syncs: GroupSync,
}

/// Hashes a number: multiplies it by a large odd number, and folds the high half of the product
/// into the low half. This hash distributes consecutive numbers evenly.
fn mix(value: u64) -> u64 {
    let product = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ (product >> 32)
}

/// Returns the leaf directory of a chunk file.
pub(crate) fn leaf_of(key: &ChunkFileKey) -> u16 {
    (mix(key.inode.raw() >> NEIGHBOURS) >> 16) as u16
}

/// Returns the path of a chunk file relative to the directory of its target. Administrators search
/// for the file by this path.
pub fn path_in_target(key: &ChunkFileKey) -> PathBuf {
    Path::new(CHUNKS).join(below_chunks(leaf_of(key))).join(key.to_string())
}

/// Returns the path of a leaf directory below [`CHUNKS`].
fn below_chunks(leaf: u16) -> String {
    format!("{:02x}/{:02x}", leaf >> 8, leaf & 0xFF)
}

/// Returns the position of a chunk file within its leaf in listings. The position never changes.
pub(crate) fn order_in_leaf(key: &ChunkFileKey) -> u64 {
    let parts = u64::from(key.generation) << 32 | u64::from(key.component) << 16;
    mix(key.inode.raw() ^ mix(parts | u64::from(key.index))) & ((1 << 48) - 1)
}

impl Names {
    /// Opens the tree of chunk files of a target. Creates the directory for all chunk files if
    /// necessary.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(crate) fn open(target: &Path) -> Result<Self> {
        let chunks = target.join(CHUNKS);
        match std::fs::create_dir(&chunks) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::from(error).within(chunks.display()));
            }
            _ => {}
        }
        match skep_store::atomic::sync_directory(target) {
            Err(error) if error.code() != ErrorCode::ReadOnly => return Err(error),
            _ => {}
        }
        Ok(Self { chunks, anchored: RefCell::default(), syncs: GroupSync::default() })
    }

    fn directory(&self, directory: Directory) -> PathBuf {
        match directory {
            Directory::Top => self.chunks.clone(),
            Directory::Middle(middle) => self.chunks.join(format!("{middle:02x}")),
            Directory::Leaf(leaf) => self.chunks.join(below_chunks(leaf)),
        }
    }

    /// Returns the path of a leaf directory.
    pub(crate) fn leaf(&self, leaf: u16) -> PathBuf {
        self.directory(Directory::Leaf(leaf))
    }

    /// Returns the path of a chunk file.
    pub(crate) fn path(&self, key: &ChunkFileKey) -> PathBuf {
        self.leaf(leaf_of(key)).join(key.to_string())
    }

    /// Returns the existing leaf directories from index `first` on, in ascending order.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(crate) fn leaves(&self, first: u16) -> Result<Vec<u16>> {
        let mut leaves = Vec::new();
        for middle in subdirectories(&self.chunks)? {
            if middle < (first >> 8) as u8 {
                continue;
            }
            let path = self.directory(Directory::Middle(middle));
            let inner = subdirectories(&path)?.into_iter();
            leaves.extend(inner.map(|low| u16::from(middle) << 8 | u16::from(low)));
        }
        leaves.sort_unstable();
        leaves.retain(|leaf| *leaf >= first);
        Ok(leaves)
    }

    /// Returns the chunk files in a leaf directory, in arbitrary order. Skips other files. A
    /// missing leaf counts as empty.
    ///
    /// # Errors
    /// Errors of the file system, with the path.
    pub(crate) fn list(&self, leaf: u16) -> Result<Vec<ChunkFileKey>> {
        let path = self.leaf(leaf);
        let failed = |error: std::io::Error| Error::from(error).within(path.display());
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut keys = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            keys.extend(name.to_str().and_then(|name| name.parse::<ChunkFileKey>().ok()));
        }
        Ok(keys)
    }

    /// Makes the creation and removal of names in these leaves durable. Concurrent callers share
    /// the syncs.
    ///
    /// # Errors
    /// Errors of `fsync`, with the path. After such an error, the target must stop writing.
    pub(crate) async fn sync_leaves(&self, leaves: &BTreeSet<u16>) -> Result<()> {
        let mut wanted = BTreeSet::new();
        for leaf in leaves {
            wanted.insert(Directory::Leaf(*leaf));
            if !self.anchored.borrow().contains(leaf) {
                wanted.extend([Directory::Middle((leaf >> 8) as u8), Directory::Top]);
            }
        }
        self.syncs.sync(&wanted, |directory| self.directory(directory)).await?;
        self.anchored.borrow_mut().extend(leaves);
        Ok(())
    }

    /// Returns whether a sync of directories is in progress.
    #[cfg(test)]
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncs.is_running.get()
    }
}

/// Returns the entries of a directory whose names are two hexadecimal digits.
fn subdirectories(path: &Path) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| Error::from(error).within(path.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let digits = name.to_str().filter(|name| name.len() == 2);
        found.extend(digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()));
    }
    Ok(found)
}

/// Group commit of directory syncs. Directories that callers add during a round are synced by the
/// next round.
#[derive(Debug, Default)]
struct GroupSync {
    pending: RefCell<BTreeSet<Directory>>,
    /// Sequence number of the last round that has started.
    begun: Cell<u64>,
    /// Sequence number of the last round that has succeeded.
    ended: Cell<u64>,
    is_running: Cell<bool>,
    failure: RefCell<Option<Error>>,
    round_ended: Notify,
}

impl GroupSync {
    async fn sync(
        &self,
        wanted: &BTreeSet<Directory>,
        path: impl Fn(Directory) -> PathBuf,
    ) -> Result<()> {
        self.pending.borrow_mut().extend(wanted);
        let own_round = self.begun.get() + 1;
        while self.ended.get() < own_round {
            if let Some(failure) = &*self.failure.borrow() {
                return Err(failure.clone());
            }
            if self.is_running.get() {
                self.round_ended.wait().await;
                continue;
            }
            // Because no round is in progress, this caller runs a round for all waiting callers.
            self.is_running.set(true);
            let mut round = SyncRound { syncs: self, unfinished: self.pending.take() };
            self.begun.set(self.begun.get() + 1);
            let paths = round.unfinished.iter().map(|directory| path(*directory)).collect();
            match sync_all(paths).await {
                Ok(()) => self.ended.set(self.begun.get()),
                // The process lacks descriptors or memory. The directories of this round stay
                // pending, and the caller repeats the sync.
                Err(error) if error.code() == ErrorCode::LimitReached => return Err(error),
                Err(error) => *self.failure.borrow_mut() = Some(error),
            }
            round.unfinished.clear();
        }
        Ok(())
    }
}

/// Guard of a running round. If the caller that runs the round is dropped, the guard returns the
/// directories to the pending set for the next round.
struct SyncRound<'a> {
    syncs: &'a GroupSync,
    unfinished: BTreeSet<Directory>,
}

impl Drop for SyncRound<'_> {
    fn drop(&mut self) {
        self.syncs.pending.borrow_mut().append(&mut self.unfinished);
        self.syncs.is_running.set(false);
        self.syncs.round_ended.notify();
    }
}

async fn sync_all(paths: Vec<PathBuf>) -> Result<()> {
    let permits = Semaphore::new(PARALLEL_SYNCS);
    let mut tasks = Vec::with_capacity(paths.len());
    for path in paths {
        let permit = permits.acquire().await;
        tasks.push(skep_env::spawn(async move {
            let _permit = permit;
            let synced = match std::fs::File::open(&path) {
                Ok(directory) => File::from(directory).sync_all().await,
                // A missing directory has no names to sync.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            };
            synced.map_err(|error| {
                Error::from(error).within(format_args!("cannot sync directory {}", path.display()))
            })
        }));
    }
    let mut result = Ok(());
    for task in tasks {
        result = result.and(task.await);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{InodeId, ShardId};

    fn key(number: u64) -> ChunkFileKey {
        let inode = InodeId::from_parts(ShardId::new(7), number);
        ChunkFileKey { inode, generation: 0, component: 0, index: 0 }
    }

    #[test]
    fn consecutive_inodes_share_a_leaf_and_leaves_fill_evenly() {
        let leaves: BTreeSet<_> = (1..256).map(|number| leaf_of(&key(number))).collect();
        assert_eq!(leaves.len(), 1);
        let mut counts = vec![0_u32; LEAVES as usize];
        for block in 0..LEAVES * 16 {
            counts[usize::from(leaf_of(&key((u64::from(block) << 8) + 1)))] += 1;
        }
        let most = counts.iter().max().copied();
        assert!(most < Some(64) && counts.iter().filter(|count| **count == 0).count() < 100);
    }

    #[test]
    fn listing_returns_keys_and_skips_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::open(dir.path()).unwrap();
        let path = names.path(&key(5));
        assert_eq!(path, dir.path().join(path_in_target(&key(5))));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        std::fs::write(path.with_file_name("notes.txt"), "").unwrap();
        assert_eq!(names.list(leaf_of(&key(5))).unwrap(), [key(5)]);
        assert_eq!(names.list(leaf_of(&key(5)).wrapping_add(1)).unwrap(), []);
    }

    #[test]
    fn sync_of_missing_directories_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::open(dir.path()).unwrap();
        skep_env::block_on(async move {
            names.sync_leaves(&BTreeSet::from([1, 2, 700])).await.unwrap();
            assert_eq!(names.anchored.borrow().len(), 3);
        })
        .unwrap();
    }
}

//! Files that a worker writes repeatedly: a growing log, and a file whose blocks the worker
//! overwrites.

use super::history::Crash;
use super::{Outcome, failed};
use crate::files;
use crate::random::Random;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name of the log.
pub(crate) const LOG: &str = "log";
/// Name of the file of blocks, which the worker overwrites.
pub(crate) const BLOCKS: &str = "blocks";
/// Length in bytes beyond which the worker truncates the log to zero and starts a new log in the
/// same file.
const MAX_LOG: u64 = 6 << 20;
/// Number of blocks in the file of blocks. Each block has [`BLOCK`] bytes, and writes of several
/// blocks cross chunk boundaries.
const BLOCK_COUNT: usize = 400;
const BLOCK: usize = 8192;
/// Length of a sector in bytes. A power loss may tear a write at the boundary of two sectors.
const SECTOR: usize = 512;

/// Returns the byte at `offset` of the log with this seed.
fn log_byte(seed: u64, offset: u64) -> u8 {
    let mixed = (seed ^ (offset / 64)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (offset % 7 * 8)) as u8 | 1
}

fn log_bytes(seed: u64, from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(|offset| log_byte(seed, offset)).collect()
}

#[derive(Debug)]
struct Written {
    len: u64,
    synced: bool,
    acknowledged: Instant,
}

/// A file to which the worker appends. The seed and the offset determine each byte, which is never
/// zero.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    seed: u64,
    written: Vec<Written>,
    /// Whether a truncation of the log to zero has begun and has not returned. The truncation may
    /// or may not have taken effect.
    is_restarting: bool,
}

impl Log {
    pub(crate) fn new(root: &Path, seed: u64) -> Self {
        let path = root.join(LOG);
        let file = files::create_new(&path);
        files::sync_all(&file);
        drop(file);
        let mut log = Self { path, file: None, seed, written: Vec::new(), is_restarting: false };
        log.starts_at(0);
        log.reopen(root);
        log
    }

    fn starts_at(&mut self, len: u64) {
        self.written = vec![Written { len, synced: true, acknowledged: Instant::now() }];
        self.is_restarting = false;
    }

    fn len(&self) -> u64 {
        self.written.last().map_or(0, |it| it.len)
    }

    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    pub(crate) fn reopen(&mut self, root: &Path) {
        self.path = root.join(LOG);
        let file = OpenOptions::new().append(true).open(&self.path);
        self.file = Some(file.unwrap_or_else(|e| panic!("{}: {e}", self.path.display())));
    }

    pub(crate) fn append(&mut self, random: &mut Random) -> Outcome {
        let path = self.path.clone();
        let failed = failed("append to", &path);
        let file = self.file.as_mut().expect("the log is open while the workload runs");
        let from = self.written.last().map_or(0, |it| it.len);
        if from > MAX_LOG {
            self.is_restarting = true;
            file.set_len(0).map_err(&failed)?;
            file.sync_all().map_err(&failed)?;
            self.starts_at(0);
            return Ok(());
        }
        let bytes = log_bytes(self.seed, from, 1 + random.below(150_000));
        file.write_all(&bytes).map_err(&failed)?;
        let synced = random.below(3) == 0;
        if synced {
            file.sync_all().map_err(&failed)?;
        }
        let len = from + bytes.len() as u64;
        self.written.push(Written { len, synced, acknowledged: Instant::now() });
        Ok(())
    }

    /// Checks the log after a crash, and returns a line for each problem. After the check,
    /// truncates the log after the last byte that had to survive.
    pub(crate) fn check(&mut self, root: &Path, crash: &Crash) -> Vec<String> {
        self.path = root.join(LOG);
        let found = match fs::read(&self.path) {
            Ok(found) => found,
            Err(error) => return vec![format!("{}: {error}", self.path.display())],
        };
        let must_survive = |it: &&Written| {
            if crash.loses_unsynced_ends {
                it.synced && it.acknowledged <= crash.begun
            } else {
                it.acknowledged <= crash.begun
            }
        };
        // If the crash interrupted a truncation, the truncation must have taken effect completely
        // or not at all.
        let surviving = match self.is_restarting && found.is_empty() {
            true => 0,
            false => self.written.iter().rfind(must_survive).map_or(0, |it| it.len),
        };
        let mut problems = Vec::new();
        if (found.len() as u64) < surviving {
            problems.push(format!(
                "the log has only {} bytes, but {surviving} bytes had to survive",
                found.len()
            ));
        }
        // Beyond `surviving`, a part of an append may have survived. Each byte beyond `surviving`
        // must be correct, or zero if the append did not write that byte.
        let wrong = found.iter().zip(0_u64..).find(|(byte, offset)| {
            **byte != log_byte(self.seed, *offset) && (*offset < surviving || **byte != 0)
        });
        if let Some((byte, offset)) = wrong {
            problems.push(format!(
                "the log has a wrong byte {byte} at {offset}; {surviving} bytes had to survive"
            ));
        }
        if found.len() as u64 != self.len() || crash.loses_unsynced_ends {
            let file = files::open_with(OpenOptions::new().write(true), &self.path);
            files::set_len(&file, surviving);
            files::sync_all(&file);
        }
        self.starts_at(surviving);
        problems
    }
}

#[derive(Debug, Clone)]
struct Version {
    number: u64,
    started: Instant,
    acknowledged: Option<Instant>,
    synced: Option<Instant>,
}

/// The file of blocks, which the worker overwrites in place. Each block has its own version.
#[derive(Debug)]
pub(crate) struct Blocks {
    seed: u64,
    next: u64,
    versions: Vec<Vec<Version>>,
}

impl Blocks {
    pub(crate) fn new(root: &Path, seed: u64) -> Self {
        let now = Instant::now();
        let first = Version { number: 0, started: now, acknowledged: Some(now), synced: Some(now) };
        let blocks = Self { seed, next: 1, versions: vec![vec![first]; BLOCK_COUNT] };
        let file = files::create_new(root.join(BLOCKS));
        for index in 0..BLOCK_COUNT {
            files::write_all(&file, &blocks.bytes(index, 0));
        }
        files::sync_all(&file);
        blocks
    }

    fn bytes(&self, index: usize, version: u64) -> Vec<u8> {
        Random::new(self.seed ^ ((index as u64) << 40) ^ version).bytes(BLOCK)
    }

    pub(crate) fn overwrite(&mut self, root: &Path, random: &mut Random) -> Outcome {
        let path = root.join(BLOCKS);
        let failed = failed("overwrite", &path);
        let count = 1 + random.below(12);
        let first = random.below(BLOCK_COUNT - count);
        let number = self.next;
        self.next += 1;
        let started = Instant::now();
        let mut bytes = Vec::with_capacity(count * BLOCK);
        for index in first..first + count {
            bytes.extend(self.bytes(index, number));
            let new = Version { number, started, acknowledged: None, synced: None };
            self.versions[index].push(new);
        }
        let file = OpenOptions::new().write(true).open(&path).map_err(&failed)?;
        file.write_all_at(&bytes, (first * BLOCK) as u64).map_err(&failed)?;
        let now = Instant::now();
        let newest = |versions: &mut Vec<Version>| versions.last_mut().map(|it| it.number);
        for versions in &mut self.versions[first..first + count] {
            debug_assert_eq!(newest(versions), Some(number));
            if let Some(new) = versions.last_mut() {
                new.acknowledged = Some(now);
            }
        }
        if random.below(3) == 0 {
            file.sync_all().map_err(&failed)?;
            let now = Instant::now();
            for versions in &mut self.versions {
                if let Some(new) = versions.last_mut().filter(|it| it.acknowledged.is_some()) {
                    new.synced.get_or_insert(now);
                }
                let synced = versions.iter().rposition(|it| {
                    it.synced.is_some_and(|at| now.duration_since(at).as_secs() > 30)
                });
                versions.drain(..synced.unwrap_or(0));
            }
        }
        Ok(())
    }

    /// Checks the blocks after a crash, and returns a line for each problem. After the check,
    /// overwrites the whole file.
    pub(crate) fn check(&mut self, root: &Path, crash: &Crash) -> Vec<String> {
        let path = root.join(BLOCKS);
        let found = match fs::read(&path) {
            Ok(found) => found,
            Err(error) => return vec![format!("{}: {error}", path.display())],
        };
        if found.len() != BLOCK_COUNT * BLOCK {
            return vec![format!("the file of blocks has {} bytes", found.len())];
        }
        let mut problems = Vec::new();
        for (index, block) in found.chunks_exact(BLOCK).enumerate() {
            let versions = &self.versions[index];
            let is_kept = |it: &Version| {
                let moment = if crash.loses_unsynced_data { it.synced } else { it.acknowledged };
                moment.is_some_and(|at| at <= crash.begun)
            };
            let base = versions.iter().rposition(is_kept).unwrap_or(0);
            let allowed: Vec<_> = versions[base..]
                .iter()
                .filter(|it| it.started <= crash.ended)
                .map(|it| self.bytes(index, it.number))
                .collect();
            let torn = block.chunks_exact(SECTOR).enumerate().find(|(sector, bytes)| {
                let at = sector * SECTOR..(sector + 1) * SECTOR;
                !allowed.iter().any(|version| version[at.clone()] == **bytes)
            });
            if let Some((sector, _)) = torn {
                let numbers: Vec<_> = versions.iter().map(|it| it.number).collect();
                problems.push(format!(
                    "blocks: sector {sector} of block {index} has the bytes of none of the \
                     versions {:?}; the versions {numbers:?} were written",
                    &numbers[base..]
                ));
            }
        }
        self.write_all_again(&path);
        problems
    }

    /// Overwrites the whole file, so that the next crash starts from known contents.
    fn write_all_again(&mut self, path: &Path) {
        let number = self.next;
        self.next += 1;
        let file = files::open_with(OpenOptions::new().write(true), path);
        let bytes: Vec<u8> = (0..BLOCK_COUNT).flat_map(|index| self.bytes(index, number)).collect();
        files::write_all_at(&file, &bytes, 0);
        files::sync_all(&file);
        let now = Instant::now();
        let new = Version { number, started: now, acknowledged: Some(now), synced: Some(now) };
        self.versions = vec![vec![new]; BLOCK_COUNT];
    }
}

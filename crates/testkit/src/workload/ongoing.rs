//! Files that are written again and again: a log that grows, and blocks that are overwritten.

use super::history::Cut;
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
/// Name of the file of blocks.
pub(crate) const BLOCKS: &str = "blocks";
/// Longest log; it starts again when it gets there.
const MAX_LOG: u64 = 6 << 20;
/// Blocks in the file, and the length of each. Both such that chunk boundaries are crossed.
const BLOCK_COUNT: usize = 400;
const BLOCK: usize = 8192;
/// The unit in which a write that power interrupted may be torn.
const SECTOR: usize = 512;

/// The byte of a log at an offset.
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

/// A file that is appended to. Its bytes follow from their offsets and are never zero.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    seed: u64,
    written: Vec<Written>,
    /// It is being cut to nothing: whether that was done is known when the call returns.
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
        let file = self.file.as_mut().expect("opened before the workload runs");
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

    /// What is wrong with the log after a cut, if anything. Then cuts off what nobody was promised.
    pub(crate) fn check(&mut self, root: &Path, cut: &Cut) -> Vec<String> {
        self.path = root.join(LOG);
        let found = match fs::read(&self.path) {
            Ok(found) => found,
            Err(error) => return vec![format!("{}: {error}", self.path.display())],
        };
        let is_promised = |it: &&Written| {
            if cut.loses_unsynced_ends {
                it.synced && it.acknowledged <= cut.begun
            } else {
                it.acknowledged <= cut.begun
            }
        };
        let promised = match self.is_restarting {
            true => 0,
            false => self.written.iter().rfind(is_promised).map_or(0, |it| it.len),
        };
        let mut problems = Vec::new();
        if (found.len() as u64) < promised {
            problems.push(format!("log: {} bytes are left of {promised}", found.len()));
        }
        // Beyond, an append may have come in part; its bytes are right or were never written.
        let wrong = found.iter().zip(0_u64..).find(|(byte, offset)| {
            **byte != log_byte(self.seed, *offset) && (*offset < promised || **byte != 0)
        });
        if let Some((byte, offset)) = wrong {
            problems.push(format!("log: byte {offset} of {promised} promised is {byte}"));
        }
        if found.len() as u64 != self.len() || cut.loses_unsynced_ends {
            let file = files::open_with(OpenOptions::new().write(true), &self.path);
            files::set_len(&file, promised);
            files::sync_all(&file);
        }
        self.starts_at(promised);
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

/// A file whose blocks are overwritten in place, each with a version of its own.
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

    /// What is wrong with the blocks after a cut.
    pub(crate) fn check(&mut self, root: &Path, cut: &Cut) -> Vec<String> {
        let path = root.join(BLOCKS);
        let found = match fs::read(&path) {
            Ok(found) => found,
            Err(error) => return vec![format!("{}: {error}", path.display())],
        };
        if found.len() != BLOCK_COUNT * BLOCK {
            return vec![format!("blocks: {} bytes", found.len())];
        }
        let mut problems = Vec::new();
        for (index, block) in found.chunks_exact(BLOCK).enumerate() {
            let versions = &self.versions[index];
            let is_kept = |it: &Version| {
                let moment = if cut.loses_unsynced_data { it.synced } else { it.acknowledged };
                moment.is_some_and(|at| at <= cut.begun)
            };
            let base = versions.iter().rposition(is_kept).unwrap_or(0);
            let allowed: Vec<_> = versions[base..]
                .iter()
                .filter(|it| it.started <= cut.ended)
                .map(|it| self.bytes(index, it.number))
                .collect();
            let torn = block.chunks_exact(SECTOR).enumerate().find(|(sector, bytes)| {
                let at = sector * SECTOR..(sector + 1) * SECTOR;
                !allowed.iter().any(|version| version[at.clone()] == **bytes)
            });
            if let Some((sector, _)) = torn {
                let numbers: Vec<_> = versions.iter().map(|it| it.number).collect();
                problems.push(format!(
                    "blocks: sector {sector} of block {index} is none of versions {:?} of \
                     {numbers:?}",
                    &numbers[base..]
                ));
            }
        }
        self.write_all_again(&path);
        problems
    }

    /// Makes the file whole again, so that the next cut starts from something known.
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

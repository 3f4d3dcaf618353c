//! The workloads, as each of their processes runs them: plain system calls on one directory.
//!
//! They do what IOR (1 MiB transfers, one file for each process) and mdtest (own directories) do.
//! What is read is checked, so that a file system can't win by being wrong.

use crate::fuzz::Random;
use crate::repository::Outcome;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that sequential workloads transfer at once.
const TRANSFER_BYTES: usize = 1 << 20;
/// Bytes that random workloads transfer at once.
const BLOCK_BYTES: usize = 4096;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Writes new files in transfers of 1 MiB, then syncs them.
    SequentialWrite,
    /// Reads those files in transfers of 1 MiB.
    SequentialRead,
    /// Writes blocks of 4 KiB at random places of those files, then syncs them.
    RandomWrite,
    /// Reads blocks of 4 KiB at random places of those files.
    RandomRead,
    /// Makes empty files in own directories.
    Create,
    /// Asks for the attributes of those files.
    Stat,
    /// Removes those files.
    Unlink,
}

impl Workload {
    /// All, in the order in which they can run.
    pub(crate) const ALL: [Self; 7] = [
        Self::SequentialWrite,
        Self::SequentialRead,
        Self::RandomWrite,
        Self::RandomRead,
        Self::Create,
        Self::Stat,
        Self::Unlink,
    ];

    /// Name for tables.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::SequentialWrite => "sequential write, fsync",
            Self::SequentialRead => "sequential read, cold",
            Self::RandomWrite => "random 4 KiB write, fsync",
            Self::RandomRead => "random 4 KiB read, cold",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Unlink => "unlink",
        }
    }

    /// Whether it moves bytes; the others are counted in operations.
    pub(crate) fn is_data(self) -> bool {
        !matches!(self, Self::Create | Self::Stat | Self::Unlink)
    }

    /// Whether caches are dropped before it.
    pub(crate) fn is_cold(self) -> bool {
        matches!(self, Self::SequentialRead | Self::RandomRead)
    }
}

/// One process of a workload.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Worker {
    pub(crate) workload: Workload,
    /// The directory of this process alone.
    pub(crate) directory: PathBuf,
    /// Bytes of its file.
    #[arg(long)]
    pub(crate) file_bytes: u64,
    /// Files, or random blocks.
    #[arg(long)]
    pub(crate) count: u64,
    #[arg(long)]
    pub(crate) seed: u64,
}

impl Worker {
    /// Says that it is ready, waits for a line, and works; ends when all is done.
    ///
    /// # Errors
    /// What the file system refused, or wrong contents.
    pub(crate) fn run(&self) -> Outcome {
        let explain = |error: io::Error| {
            format!("{} in {}: {error}", self.workload.label(), self.directory.display())
        };
        let file = self.open().map_err(explain)?;
        println!("ready");
        io::stdin().lock().read_line(&mut String::new()).map_err(explain)?;
        self.work(&file).map_err(explain)
    }

    fn open(&self) -> io::Result<Option<File>> {
        if !self.workload.is_data() {
            return Ok(None);
        }
        let path = self.directory.join("data");
        let is_new = self.workload == Workload::SequentialWrite;
        let is_writing = is_new || self.workload == Workload::RandomWrite;
        let mut options = OpenOptions::new();
        options.read(!is_writing).write(is_writing).create(is_new).truncate(is_new);
        options.open(path).map(Some)
    }

    fn work(&self, file: &Option<File>) -> io::Result<()> {
        match (self.workload, file) {
            (Workload::SequentialWrite, Some(file)) => self.write_all(file),
            (Workload::SequentialRead, Some(file)) => self.read_all(file),
            (Workload::RandomWrite, Some(file)) => self.write_blocks(file),
            (Workload::RandomRead, Some(file)) => self.read_blocks(file),
            (Workload::Create, _) => self.each_file(|path| File::create_new(path).map(drop)),
            (Workload::Stat, _) => self.each_file(|path| fs::metadata(path).map(drop)),
            (Workload::Unlink, _) => self.each_file(|path| fs::remove_file(path)),
            (_, None) => Err(io::Error::other("no file is open")),
        }
    }

    fn write_all(&self, file: &File) -> io::Result<()> {
        let mut buffer = vec![0x5a; TRANSFER_BYTES];
        for at in (0..self.file_bytes).step_by(TRANSFER_BYTES) {
            mark(&mut buffer, at);
            file.write_all_at(&buffer, at)?;
        }
        file.sync_all()
    }

    fn read_all(&self, file: &File) -> io::Result<()> {
        let mut buffer = vec![0; TRANSFER_BYTES];
        for at in (0..self.file_bytes).step_by(TRANSFER_BYTES) {
            file.read_exact_at(&mut buffer, at)?;
            check_mark(&buffer, at)?;
        }
        Ok(())
    }

    /// Offsets of random blocks, never the same twice in a row, the same for each run.
    fn blocks(&self) -> impl Iterator<Item = u64> {
        let blocks = (self.file_bytes as usize) / BLOCK_BYTES;
        let mut random = Random::new(self.seed);
        (0..self.count).map(move |_| (random.below(blocks) * BLOCK_BYTES) as u64)
    }

    fn write_blocks(&self, file: &File) -> io::Result<()> {
        let mut buffer = vec![0x5a; BLOCK_BYTES];
        for at in self.blocks() {
            mark(&mut buffer, at);
            file.write_all_at(&buffer, at)?;
        }
        file.sync_all()
    }

    fn read_blocks(&self, file: &File) -> io::Result<()> {
        let mut buffer = vec![0; BLOCK_BYTES];
        for at in self.blocks() {
            file.read_exact_at(&mut buffer, at)?;
            check_mark(&buffer, at)?;
        }
        Ok(())
    }

    fn each_file(&self, act: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        (0..self.count).try_for_each(|index| act(&self.directory.join(format!("file-{index:08}"))))
    }
}

/// Writes into each block of a buffer where it lies in the file.
fn mark(buffer: &mut [u8], at: u64) {
    for (index, block) in buffer.chunks_mut(BLOCK_BYTES).enumerate() {
        let place = at + (index * BLOCK_BYTES) as u64;
        block[..8].copy_from_slice(&place.to_le_bytes());
    }
}

fn check_mark(buffer: &[u8], at: u64) -> io::Result<()> {
    for (index, block) in buffer.chunks(BLOCK_BYTES).enumerate() {
        let place = at + (index * BLOCK_BYTES) as u64;
        if block[..8] != place.to_le_bytes() || block[BLOCK_BYTES - 1] != 0x5a {
            return Err(io::Error::other(format!("wrong contents at byte {place}")));
        }
    }
    Ok(())
}

/// Uses as much memory as a workload will, once: on a virtual machine the first touch of memory is
/// paid to the host, and should not be charged to who comes first.
///
/// # Errors
/// If nothing can be printed.
pub(crate) fn touch_memory(bytes: u64) -> Outcome {
    let mut memory = vec![0_u8; bytes as usize];
    memory.iter_mut().step_by(BLOCK_BYTES).for_each(|byte| *byte = 1);
    let sum: u64 = memory.iter().step_by(BLOCK_BYTES).map(|byte| u64::from(*byte)).sum();
    writeln!(io::stdout(), "{sum}").map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_at_another_place_is_noticed() {
        let mut buffer = vec![0x5a; TRANSFER_BYTES];
        mark(&mut buffer, 1 << 30);
        assert!(check_mark(&buffer, 1 << 30).is_ok());
        assert!(check_mark(&buffer, 0).is_err());
        assert!(check_mark(&vec![0; TRANSFER_BYTES], 0).is_err());
    }
}

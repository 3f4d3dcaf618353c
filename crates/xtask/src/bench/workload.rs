//! The workloads, as each worker process runs them: plain system calls in its own directory.
//!
//! The workloads resemble IOR (1 MiB transfers, one file per process) and mdtest (one directory per
//! process). Workers verify all data that they read, so that a file system cannot be fast by
//! returning wrong data.

use crate::fuzz::Random;
use crate::repository::Outcome;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Transfer size of sequential workloads, in bytes.
const TRANSFER_BYTES: usize = 1 << 20;
/// Transfer size of random workloads, in bytes.
const BLOCK_BYTES: usize = 4096;

/// A workload of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Workload {
    /// Writes new files in transfers of 1 MiB, and then syncs the files.
    SequentialWrite,
    /// Reads the files of `SequentialWrite` in transfers of 1 MiB.
    SequentialRead,
    /// Writes blocks of 4 KiB at random offsets of the same files, and then syncs the files.
    RandomWrite,
    /// Reads blocks of 4 KiB at random offsets of the same files.
    RandomRead,
    /// Creates empty files, each process in its own directory.
    Create,
    /// Reads the attributes of the files of `Create`.
    Stat,
    /// Removes the files of `Create`.
    Unlink,
}

impl Workload {
    /// All workloads, in an order in which each workload finds the files that it needs.
    pub(crate) const ALL: [Self; 7] = [
        Self::SequentialWrite,
        Self::SequentialRead,
        Self::RandomWrite,
        Self::RandomRead,
        Self::Create,
        Self::Stat,
        Self::Unlink,
    ];

    /// Returns the name of the workload in tables.
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

    /// Whether the workload transfers data. The other workloads count operations.
    pub(crate) fn is_data(self) -> bool {
        !matches!(self, Self::Create | Self::Stat | Self::Unlink)
    }

    /// Whether caches are dropped before the workload.
    pub(crate) fn is_cold(self) -> bool {
        matches!(self, Self::SequentialRead | Self::RandomRead)
    }
}

/// One process of a workload.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Worker {
    pub(crate) workload: Workload,
    /// The directory of this process.
    pub(crate) directory: PathBuf,
    /// Size of the file of this process, in bytes.
    #[arg(long)]
    pub(crate) file_bytes: u64,
    /// Number of files, or number of random blocks.
    #[arg(long)]
    pub(crate) count: u64,
    #[arg(long)]
    pub(crate) seed: u64,
}

impl Worker {
    /// Prints `ready`, waits for a line on standard input, and then runs the workload.
    ///
    /// # Errors
    /// Describes a failed system call, or wrong data.
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
            write_offsets(&mut buffer, at);
            file.write_all_at(&buffer, at)?;
        }
        file.sync_all()
    }

    fn read_all(&self, file: &File) -> io::Result<()> {
        let mut buffer = vec![0; TRANSFER_BYTES];
        for at in (0..self.file_bytes).step_by(TRANSFER_BYTES) {
            file.read_exact_at(&mut buffer, at)?;
            check_offsets(&buffer, at)?;
        }
        Ok(())
    }

    /// Returns the offsets of random blocks. The same seed always gives the same sequence.
    fn blocks(&self) -> impl Iterator<Item = u64> {
        let blocks = (self.file_bytes as usize) / BLOCK_BYTES;
        let mut random = Random::new(self.seed);
        (0..self.count).map(move |_| (random.below(blocks) * BLOCK_BYTES) as u64)
    }

    fn write_blocks(&self, file: &File) -> io::Result<()> {
        let mut buffer = vec![0x5a; BLOCK_BYTES];
        for at in self.blocks() {
            write_offsets(&mut buffer, at);
            file.write_all_at(&buffer, at)?;
        }
        file.sync_all()
    }

    fn read_blocks(&self, file: &File) -> io::Result<()> {
        let mut buffer = vec![0; BLOCK_BYTES];
        for at in self.blocks() {
            file.read_exact_at(&mut buffer, at)?;
            check_offsets(&buffer, at)?;
        }
        Ok(())
    }

    fn each_file(&self, act: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        (0..self.count).try_for_each(|index| act(&self.directory.join(format!("file-{index:08}"))))
    }
}

/// Writes to each block of a buffer the offset of the block in the file.
fn write_offsets(buffer: &mut [u8], at: u64) {
    for (index, block) in buffer.chunks_mut(BLOCK_BYTES).enumerate() {
        let place = at + (index * BLOCK_BYTES) as u64;
        block[..8].copy_from_slice(&place.to_le_bytes());
    }
}

fn check_offsets(buffer: &[u8], at: u64) -> io::Result<()> {
    for (index, block) in buffer.chunks(BLOCK_BYTES).enumerate() {
        let place = at + (index * BLOCK_BYTES) as u64;
        if block[..8] != place.to_le_bytes() || block[BLOCK_BYTES - 1] != 0x5a {
            return Err(io::Error::other(format!("wrong contents at byte {place}")));
        }
    }
    Ok(())
}

/// Touches as much memory as a workload uses. On a virtual machine, the first access to a page
/// takes additional time on the host. This time must not count for the first measured file system.
///
/// # Errors
/// Fails if standard output is closed.
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
    fn a_misplaced_block_is_detected() {
        let mut buffer = vec![0x5a; TRANSFER_BYTES];
        write_offsets(&mut buffer, 1 << 30);
        assert!(check_offsets(&buffer, 1 << 30).is_ok());
        assert!(check_offsets(&buffer, 0).is_err());
        assert!(check_offsets(&vec![0; TRANSFER_BYTES], 0).is_err());
    }
}

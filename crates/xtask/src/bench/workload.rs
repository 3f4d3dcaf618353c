//! The work of one worker process in each workload. A worker makes plain system calls in its own
//! directory.
//!
//! The workloads resemble IOR (1 MiB transfers, one file per process) and mdtest (one directory per
//! process). [`everyday`] has the workloads that resemble the daily work of a user. Workers verify
//! all data that they read, so that a file system gains nothing by returning wrong data.

mod everyday;

use crate::fuzz::Random;
use crate::repository::Outcome;
pub(crate) use everyday::make_archive;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Transfer size of sequential workloads, in bytes.
const TRANSFER_BYTES: usize = 1 << 20;
/// Transfer size of random workloads, in bytes.
const BLOCK_BYTES: usize = 4096;

/// Number of directories that are created in one parent.
const SUBDIRECTORIES: u64 = 500;

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
    /// Creates empty files. Each process has its own directory.
    Create,
    /// Reads the attributes of the files of `Create`.
    Stat,
    /// Removes the files of `Create`.
    Unlink,
    /// Writes one file with all processes, in transfers of 1 MiB. Each process writes its own part
    /// of the file.
    SharedWrite,
    /// Reads the file of `SharedWrite`. Each process reads the part that the next process has
    /// written.
    SharedRead,
    /// Repeatedly appends 4 KiB to a file and syncs the file.
    AppendSync,
    /// Creates files of 3,901 bytes. Each process has its own directory.
    SmallCreate,
    /// Reads the files of `SmallCreate`.
    SmallRead,
    /// Removes the files of `SmallCreate`.
    SmallRemove,
    /// Creates empty directories, [`SUBDIRECTORIES`] in each parent. Each process has its own
    /// parents.
    MakeDirectory,
    /// Renames the directories of `MakeDirectory`.
    Rename,
    /// Removes the directories of `Rename`.
    RemoveDirectory,
    /// Creates empty directories, all in one parent. Each process has its own parent.
    MakeDirectoryWide,
    /// Removes the directories of `MakeDirectoryWide`.
    RemoveDirectoryWide,
    /// Commits SQLite transactions, with SQLite's default rollback journal.
    Sqlite,
    /// Unpacks an archive of small files with `tar`.
    TreeUnpack,
    /// Packs the tree of `TreeUnpack` with `tar`.
    TreePack,
    /// Removes the tree of `TreeUnpack` with `rm -r`.
    TreeRemove,
}

impl Workload {
    /// All workloads, in an order in which earlier workloads create the files that later workloads
    /// need.
    pub(crate) const ALL: [Self; 22] = [
        Self::SequentialWrite,
        Self::SequentialRead,
        Self::RandomWrite,
        Self::RandomRead,
        Self::Create,
        Self::Stat,
        Self::Unlink,
        Self::SharedWrite,
        Self::SharedRead,
        Self::AppendSync,
        Self::SmallCreate,
        Self::SmallRead,
        Self::SmallRemove,
        Self::MakeDirectory,
        Self::Rename,
        Self::RemoveDirectory,
        Self::MakeDirectoryWide,
        Self::RemoveDirectoryWide,
        Self::Sqlite,
        Self::TreeUnpack,
        Self::TreePack,
        Self::TreeRemove,
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
            Self::SharedWrite => "one shared file: write, fsync",
            Self::SharedRead => "one shared file: read, cold",
            Self::AppendSync => "append 4 KiB, fsync",
            Self::SmallCreate => "create 3,901 bytes",
            Self::SmallRead => "read 3,901 bytes, cold",
            Self::SmallRemove => "unlink 3,901 bytes",
            Self::MakeDirectory => "mkdir",
            Self::Rename => "rename",
            Self::RemoveDirectory => "rmdir",
            Self::MakeDirectoryWide => "mkdir, all in one parent",
            Self::RemoveDirectoryWide => "rmdir, all in one parent",
            Self::Sqlite => "SQLite transactions",
            Self::TreeUnpack => "tar x: files",
            Self::TreePack => "tar c, cold: files",
            Self::TreeRemove => "rm -r: files",
        }
    }

    /// Whether all processes together transfer `--data-mib` MiB. All other workloads count
    /// operations.
    pub(crate) fn is_sequential(self) -> bool {
        use Workload::{SequentialRead, SequentialWrite, SharedRead, SharedWrite};
        matches!(self, SequentialWrite | SequentialRead | SharedWrite | SharedRead)
    }

    /// Whether caches are dropped before the workload runs.
    pub(crate) fn is_cold(self) -> bool {
        matches!(
            self,
            Self::SequentialRead
                | Self::RandomRead
                | Self::SharedRead
                | Self::SmallRead
                | Self::TreePack
        )
    }

    /// Whether the workload always runs with one process.
    pub(crate) fn has_one_process(self) -> bool {
        matches!(self, Self::Sqlite | Self::TreeUnpack | Self::TreePack | Self::TreeRemove)
    }
}

/// One worker process of a workload.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Worker {
    pub(crate) workload: Workload,
    /// The directory of this process.
    pub(crate) directory: PathBuf,
    /// Size in bytes of the file of this process, or of its part of the shared file.
    #[arg(long)]
    pub(crate) file_bytes: u64,
    /// Number of files, random blocks or transactions of this process.
    #[arg(long)]
    pub(crate) count: u64,
    /// Index of this process.
    #[arg(long)]
    pub(crate) index: u64,
    /// Number of processes that run the workload.
    #[arg(long)]
    pub(crate) processes: u64,
    /// The archive that `TreeUnpack` unpacks.
    #[arg(long)]
    pub(crate) archive: PathBuf,
}

impl Worker {
    /// Prints `ready`, waits for a line on standard input, and then runs the workload.
    ///
    /// # Errors
    /// Describes a failed system call, or wrong data in a file.
    pub(crate) fn run(&self) -> Outcome {
        let explain = |error: io::Error| {
            format!(
                "the workload {} in {} failed: {error}",
                self.workload.label(),
                self.directory.display()
            )
        };
        let file = self.open().map_err(explain)?;
        println!("ready");
        io::stdin().lock().read_line(&mut String::new()).map_err(explain)?;
        self.work(&file).map_err(explain)
    }

    /// Opens the file that all system calls of the workload use, if the workload uses such a file.
    /// Creates the parents of the directories that the workload creates.
    fn open(&self) -> io::Result<Option<File>> {
        let name = match self.workload {
            Workload::SharedWrite | Workload::SharedRead => {
                let top = self.directory.parent().unwrap_or(&self.directory);
                return self.options().open(top.join("one-file")).map(Some);
            }
            Workload::MakeDirectory => {
                (0..self.count.div_ceil(SUBDIRECTORIES))
                    .try_for_each(|index| fs::create_dir(self.parent(index)))?;
                return Ok(None);
            }
            Workload::AppendSync => "appended",
            Workload::SequentialWrite
            | Workload::SequentialRead
            | Workload::RandomWrite
            | Workload::RandomRead => "data",
            _ => return Ok(None),
        };
        self.options().open(self.directory.join(name)).map(Some)
    }

    /// Returns the open options of the file that the workload uses.
    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        match self.workload {
            Workload::SequentialWrite => options.write(true).create(true).truncate(true),
            Workload::SharedWrite => options.write(true).create(true),
            Workload::RandomWrite => options.write(true),
            Workload::AppendSync => options.append(true).create(true),
            _ => options.read(true),
        };
        options
    }

    fn work(&self, file: &Option<File>) -> io::Result<()> {
        let Some(file) = file else { return self.work_on_names() };
        match self.workload {
            Workload::SequentialWrite => self.write_part(file, 0),
            Workload::SequentialRead => self.read_part(file, 0),
            Workload::SharedWrite => self.write_part(file, self.index),
            // Read the part of another process, because this process may have its own part in its
            // cache.
            Workload::SharedRead => self.read_part(file, (self.index + 1) % self.processes),
            Workload::RandomWrite => self.write_blocks(file),
            Workload::RandomRead => self.read_blocks(file),
            Workload::AppendSync => self.append_blocks(file),
            _ => Err(io::Error::other("the workload uses no open file")),
        }
    }

    /// Runs a workload whose system calls do not all use the same open file.
    fn work_on_names(&self) -> io::Result<()> {
        let renamed = |path: &Path| path.with_extension("renamed");
        match self.workload {
            Workload::Create => self.each_file(|path| File::create_new(path).map(drop)),
            Workload::Stat => self.each_file(|path| fs::metadata(path).map(drop)),
            Workload::Unlink | Workload::SmallRemove => {
                self.each_file(|path| fs::remove_file(path))
            }
            Workload::SmallCreate => self.each_file(everyday::create_small),
            Workload::SmallRead => self.each_file(everyday::read_small),
            Workload::MakeDirectory => self.each_directory(|path| fs::create_dir(path)),
            Workload::Rename => self.each_directory(|path| fs::rename(path, renamed(path))),
            Workload::RemoveDirectory => self.each_directory(|path| fs::remove_dir(renamed(path))),
            Workload::MakeDirectoryWide => self.each_file(|path| fs::create_dir(path)),
            Workload::RemoveDirectoryWide => self.each_file(|path| fs::remove_dir(path)),
            Workload::Sqlite => everyday::commit_transactions(&self.directory, self.count),
            Workload::TreeUnpack => everyday::unpack(&self.directory, &self.archive),
            Workload::TreePack => everyday::pack(&self.directory),
            Workload::TreeRemove => everyday::remove(&self.directory),
            _ => Err(io::Error::other("the workload needs an open file")),
        }
    }

    /// Writes part number `part` of a file, and syncs the file.
    fn write_part(&self, file: &File, part: u64) -> io::Result<()> {
        let mut buffer = vec![0x5a; TRANSFER_BYTES];
        let start = part * self.file_bytes;
        for at in (start..start + self.file_bytes).step_by(TRANSFER_BYTES) {
            write_offsets(&mut buffer, at);
            file.write_all_at(&buffer, at)?;
        }
        file.sync_all()
    }

    fn read_part(&self, file: &File, part: u64) -> io::Result<()> {
        let mut buffer = vec![0; TRANSFER_BYTES];
        let start = part * self.file_bytes;
        for at in (start..start + self.file_bytes).step_by(TRANSFER_BYTES) {
            file.read_exact_at(&mut buffer, at)?;
            check_offsets(&buffer, at)?;
        }
        Ok(())
    }

    fn append_blocks(&self, mut file: &File) -> io::Result<()> {
        let buffer = [0x5a; BLOCK_BYTES];
        (0..self.count).try_for_each(|_| {
            file.write_all(&buffer)?;
            file.sync_all()
        })
    }

    /// Returns the offsets of random blocks. The same worker always gets the same sequence.
    fn blocks(&self) -> impl Iterator<Item = u64> {
        let blocks = (self.file_bytes as usize) / BLOCK_BYTES;
        let mut random = Random::new(self.index + 1);
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

    /// Calls `act` with the path of each directory. [`Self::open`] has created the parents.
    fn each_directory(&self, act: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        (0..self.count).try_for_each(|index| {
            act(&self.parent(index / SUBDIRECTORIES).join(format!("directory-{index:08}")))
        })
    }

    /// Returns the path of the parent directory with the index `index`.
    fn parent(&self, index: u64) -> PathBuf {
        self.directory.join(format!("parent-{index:04}"))
    }
}

/// Writes into each block of a buffer the file offset of that block. The buffer begins at the file
/// offset `at`.
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
            return Err(io::Error::other(format!("the file has wrong contents at byte {place}")));
        }
    }
    Ok(())
}

/// Touches as much memory as a workload uses. On a virtual machine, the first access to a page
/// takes additional time on the host. The result of the first measured file system must not include
/// this time.
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
    fn block_at_the_wrong_offset_is_detected() {
        let mut buffer = vec![0x5a; TRANSFER_BYTES];
        write_offsets(&mut buffer, 1 << 30);
        assert!(check_offsets(&buffer, 1 << 30).is_ok());
        assert!(check_offsets(&buffer, 0).is_err());
        assert!(check_offsets(&vec![0; TRANSFER_BYTES], 0).is_err());
    }
}

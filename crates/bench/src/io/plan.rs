//! The plan of a run, which has the same options as IOR, and the check of a plan.

use crate::launcher::Host;
use crate::limits::{DEFAULT_PATIENCE_S, MAX_REPETITIONS, MAX_SAMPLES, MAX_TRANSFER_BYTES};
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;

/// Alignment that direct I/O requires, in bytes. Offsets and lengths of transfers must be multiples
/// of this number.
const DIRECT_UNIT: u64 = 512;
/// Number of bytes in a word. A transfer consists of whole words.
pub(crate) const WORD_BYTES: u64 = 8;

/// The options of a test. The doc of each field begins with the letter of the corresponding option
/// of IOR.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// `-o`: an absolute path. In the path, `{host}` stands for the name of the host on which a
    /// process runs. If each process has its own file, the benchmark appends a dot and the rank in
    /// eight digits.
    pub path: String,
    /// `-t`: number of bytes that one system call transfers.
    pub transfer_bytes: u64,
    /// `-b`: number of contiguous bytes of each process in one segment.
    pub block_bytes: u64,
    /// `-s`: number of segments. Each segment has one block of each process.
    pub segments: u64,
    /// `-F`: each process uses its own file.
    pub file_per_process: bool,
    /// `-w`: the run writes.
    pub write: bool,
    /// `-r`: the run reads.
    pub read: bool,
    /// `-z`: each process does its transfers in random order.
    pub random: bool,
    /// `-C`: each process reads the data of the next rank, which runs on the next host.
    pub reorder: bool,
    /// `-e`: processes call `fsync` after writing, within the measured time.
    pub fsync: bool,
    /// `-k`: the run does not remove its files at the end.
    pub keep: bool,
    /// `-E`: the files exist already. The run overwrites these files, and does not remove them at
    /// the end.
    pub use_existing: bool,
    /// `-i`: number of repetitions.
    pub repetitions: u32,
    /// `-W`: the run reads the written data again and compares the data with the expected data. The
    /// comparison is not part of the measured time.
    pub verify_write: bool,
    /// `-R`: processes compare the data that they read with the expected data, as part of the
    /// measured time.
    pub verify_read: bool,
    /// `-B`: direct I/O, which bypasses the page cache.
    pub direct: bool,
    /// `-G`: the signature in the written data, which is a number that identifies the run. A
    /// comparison with the data of an earlier run needs this signature.
    pub signature: Option<u32>,
    /// Seed of the random order of transfers.
    pub seed: u64,
    /// Minimum time in milliseconds between two samples of the progress of a process. `None` means
    /// that the results have no samples.
    pub sample_interval_ms: Option<u64>,
    /// Whether the hosts keep their page caches between phases.
    pub keep_caches: bool,
    /// Maximum bandwidth of the hardware in bytes per second. The output also shows results as a
    /// fraction of this limit.
    pub limit_bytes_per_s: Option<u64>,
    /// Maximum rate of the hardware in operations per second. The output also shows results as a
    /// fraction of this limit.
    pub limit_operations_per_s: Option<u64>,
    /// Shell command that each host with processes runs before each phase, for example to remount
    /// the file system. In the command, `{host}` stands for the host's name.
    pub before_phase: Option<String>,
    /// Hosts that run no processes, but whose caches the benchmark also drops.
    pub server_hosts: Vec<Host>,
    /// Seconds without progress of any process after which the run fails.
    pub patience_s: u32,
    /// `-a MPIIO`: processes transfer data by MPI-IO. Only the external program IOR supports
    /// MPI-IO.
    pub mpi_io: bool,
    /// `-c`: all processes take part in each transfer of MPI-IO (collective I/O).
    pub collective: bool,
    /// Name of the preset from which the command line took options that the user did not give.
    /// `None` if the user named no preset.
    pub preset: Option<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            path: String::new(),
            transfer_bytes: 256 << 10,
            block_bytes: 1 << 20,
            segments: 1,
            file_per_process: false,
            write: true,
            read: true,
            random: false,
            reorder: false,
            fsync: false,
            keep: false,
            use_existing: false,
            repetitions: 1,
            verify_write: false,
            verify_read: false,
            direct: false,
            signature: None,
            seed: 0,
            sample_interval_ms: None,
            keep_caches: false,
            limit_bytes_per_s: None,
            limit_operations_per_s: None,
            before_phase: None,
            server_hosts: Vec::new(),
            patience_s: DEFAULT_PATIENCE_S,
            mpi_io: false,
            collective: false,
            preset: None,
        }
    }
}

/// A phase of a repetition: measured transfers, or work that is not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Write,
    /// Reads the written data again and compares the data with the expected data.
    Check,
    Read,
    Remove,
}

impl Phase {
    /// Returns the name of the phase in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Check => "check",
            Self::Read => "read",
            Self::Remove => "remove",
        }
    }

    /// Returns the phase with the name `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Write, Self::Check, Self::Read, Self::Remove]
            .into_iter()
            .find(|it| it.name() == name)
    }
}

impl Plan {
    /// Checks whether `processes` processes can run the plan.
    ///
    /// # Errors
    /// `InvalidArgument`, with a text that lists every mistake in the plan.
    pub fn check(&self, processes: u32) -> Result<()> {
        let mut problems = Vec::new();
        let mut must = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        let unit = if self.direct { DIRECT_UNIT } else { WORD_BYTES };
        must(self.path.starts_with('/'), "the path (-o) must be absolute");
        must(!self.path.ends_with('/'), "the path (-o) must name a file, not a directory");
        must(self.write || self.read, "the plan does nothing: enable writing (-w) or reading (-r)");
        must(self.transfer_bytes > 0, "the transfer size (-t) must not be 0");
        must(
            self.transfer_bytes <= MAX_TRANSFER_BYTES,
            "the transfer size (-t) must be at most 1 GiB",
        );
        must(
            self.transfer_bytes.is_multiple_of(unit),
            &format!("the transfer size (-t) must be a multiple of {unit} bytes"),
        );
        must(
            self.block_bytes > 0 && self.block_bytes.is_multiple_of(self.transfer_bytes.max(1)),
            "the block size (-b) must be a multiple of the transfer size (-t)",
        );
        must(self.segments > 0, "invalid number of segments (-s): expected at least 1");
        must(
            (1..=MAX_REPETITIONS).contains(&self.repetitions),
            &format!("invalid number of repetitions (-i): expected 1 to {MAX_REPETITIONS}"),
        );
        must(
            self.patience_s > 0,
            "invalid limit of 0 s for the time without progress: expected at least 1 s",
        );
        must(
            self.limit_bytes_per_s != Some(0) && self.limit_operations_per_s != Some(0),
            "a rate limit must not be 0",
        );
        must(
            self.sample_interval_ms != Some(0),
            "invalid interval of 0 ms for samples: expected at least 1 ms",
        );
        let total = self.total_bytes(processes);
        must(
            total.is_some_and(|it| i64::try_from(it).is_ok()),
            "the data of the plan is larger than the maximum size of a file",
        );
        must(
            !self.verify_write || self.write,
            "-W compares the data that -w writes: enable writing (-w)",
        );
        must(
            !self.verify_read || self.read,
            "-R compares the data that -r reads: enable reading (-r)",
        );
        must(
            !self.verify_read || self.write || self.signature.is_some(),
            "to compare (-R) the data of an earlier run, name the signature (-G) of that run",
        );
        must(
            self.mpi_io || !self.collective,
            "collective I/O (--collective) is a part of MPI-IO: enable MPI-IO (--mpi-io)",
        );
        must(
            self.write || !self.keep,
            "-k has no effect without -w: files that a run only reads are never removed",
        );
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidArgument, problems.join("; ")))
    }

    /// Returns the number of bytes that one process transfers in a phase, or `None` on overflow.
    pub fn bytes_per_process(&self) -> Option<u64> {
        self.block_bytes.checked_mul(self.segments)
    }

    /// Returns the number of bytes that all processes transfer in a phase, or `None` on overflow.
    pub fn total_bytes(&self, processes: u32) -> Option<u64> {
        self.bytes_per_process()?.checked_mul(u64::from(processes))
    }

    /// Returns the maximum number of samples in the record of one process in one phase.
    pub fn samples_per_process(&self) -> u64 {
        let transfers = self.bytes_per_process().and_then(|it| it.checked_div(self.transfer_bytes));
        let bound = MAX_SAMPLES as u64;
        match self.sample_interval_ms {
            Some(_) => transfers.unwrap_or(bound).min(bound),
            None => 0,
        }
    }

    /// Returns the phases of one repetition, in order.
    pub(crate) fn phases(&self) -> Vec<Phase> {
        let all = [
            (self.write, Phase::Write),
            (self.verify_write, Phase::Check),
            (self.read, Phase::Read),
        ];
        all.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, phase)| phase).collect()
    }

    /// Whether each word of the written data identifies its run, rank and offset (see
    /// [`crate::io::stamp`]).
    pub(crate) fn is_stamped(&self) -> bool {
        self.verify_write || self.verify_read || self.signature.is_some()
    }

    /// Returns the path of the file that the process with the rank `rank` uses on `host`.
    pub(crate) fn file_of(&self, rank: u32, host: &str) -> PathBuf {
        let path = self.path.replace("{host}", host);
        if self.file_per_process { format!("{path}.{rank:08}").into() } else { path.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = Plan { path: "/mnt/x/file".into(), ..Plan::default() };
        change(&mut plan);
        plan.check(4).err().map(|error| error.context().to_owned()).unwrap_or_default()
    }

    #[test]
    fn contradictory_io_plans_are_refused() {
        assert_eq!(problem(|_| ()), "");
        assert!(problem(|plan| plan.path = "file".into()).contains("absolute"));
        assert!(problem(|plan| plan.transfer_bytes = 0).contains("must not be 0"));
        assert!(problem(|plan| plan.transfer_bytes = 12).contains("multiple of 8"));
        assert!(problem(|plan| plan.block_bytes = (1 << 20) + 8).contains("multiple of the"));
        assert!(problem(|plan| plan.segments = u64::MAX).contains("larger than the maximum"));
        assert!(problem(|plan| (plan.write, plan.read) = (false, false)).contains("nothing"));
        assert!(problem(|plan| plan.repetitions = 0).contains("repetitions"));
        assert!(problem(|plan| plan.collective = true).contains("--mpi-io"));
        let unsigned = |plan: &mut Plan| (plan.write, plan.verify_read) = (false, true);
        assert!(problem(unsigned).contains("-G"));
        let direct = |plan: &mut Plan| {
            (plan.direct, plan.transfer_bytes, plan.block_bytes) = (true, 8, 8);
        };
        assert!(problem(direct).contains("512"));
        assert!(problem(|plan| plan.limit_bytes_per_s = Some(0)).contains("limit"));
        assert!(problem(|plan| plan.sample_interval_ms = Some(0)).contains("samples"));
        assert!(problem(|plan| (plan.segments, plan.repetitions) = (0, 0)).contains("; "));
    }

    #[test]
    fn file_names_equal_the_names_of_ior() {
        let mut plan = Plan { path: "/mnt/{host}/f".into(), ..Plan::default() };
        assert_eq!(plan.file_of(3, "a"), PathBuf::from("/mnt/a/f"));
        plan.file_per_process = true;
        assert_eq!(plan.file_of(3, "b"), PathBuf::from("/mnt/b/f.00000003"));
    }
}

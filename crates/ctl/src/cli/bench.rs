//! What can be typed behind `skep bench`.

use crate::access::ClusterArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    /// Move data in IOR's patterns, from any number of hosts, on any mounted file system
    Io(IoArgs),
    /// Make, look at, read and remove files and directories as mdtest does
    Metadata(MetadataArgs),
    /// Measure the network between hosts and services, and between services
    Net {
        #[command(flatten)]
        query: ClusterArgs,
        #[command(flatten)]
        args: NetArgs,
    },
    /// Let storage targets write and read files of their own, without network
    Storage {
        #[command(flatten)]
        query: ClusterArgs,
        #[command(flatten)]
        args: StorageArgs,
    },
    /// Find storage targets that are slower than the others, and say how sure that is
    SlowTargets {
        #[command(flatten)]
        query: ClusterArgs,
        #[command(flatten)]
        args: SlowTargetsArgs,
    },
    /// What a benchmark has on a host.
    #[command(hide = true)]
    Agent,
    /// A process of a benchmark.
    #[command(hide = true)]
    Worker,
}

/// Where processes run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct HostArgs {
    /// Hosts on which processes run, in turn; `localhost` is this one [default: localhost]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) hosts: Vec<String>,
    /// File with a host on each line; what comes after a # or the first word is ignored
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) host_file: Option<PathBuf>,
    /// The client hosts of a lab (`skep lab up`); a relative path is in the mount of each, and the
    /// result says whether the processors of this machine were its limit
    #[arg(long, value_name = "NAME", conflicts_with_all = ["hosts", "host_file", "enter"])]
    pub(crate) lab: Option<String>,
    /// Processes on each host
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) processes_per_host: u32,
    /// What is put before a command to run it on a host, {host} being its name; `skep` has to be
    /// found there, and nothing asked
    #[arg(long, default_value = "ssh -o BatchMode=yes {host}", value_name = "COMMAND")]
    pub(crate) enter: String,
    /// Give up when no process has moved for so long
    #[arg(long, default_value_t = skep_bench::limits::DEFAULT_PATIENCE_S, value_name = "SECONDS")]
    pub(crate) patience: u32,
}

/// Whose caches are dropped.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Caches")]
pub(crate) struct CacheArgs {
    /// Hosts without processes on which caches are dropped too
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) server_hosts: Vec<String>,
    /// Leave caches as they are between phases
    #[arg(long)]
    pub(crate) keep_caches: bool,
    /// Let a shell do this on each host before each phase, {host} being its name: to mount anew,
    /// for example
    #[arg(long, value_name = "COMMAND")]
    pub(crate) before_phase: Option<String>,
}

/// A program that does the work.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Other programs")]
pub(crate) struct RunnerArgs {
    /// The command that starts jobs of MPI, with options of its own
    #[arg(long, default_value = "mpirun", value_name = "COMMAND")]
    pub(crate) mpirun: String,
}

/// Where results are kept while a run goes on.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ResultArgs {
    /// Keep each result in this new file as soon as it is measured, as a line of JSON; room for
    /// all of them is set aside before anything is measured
    #[arg(long, value_name = "FILE")]
    pub(crate) result_file: Option<PathBuf>,
}

/// IOR's options under IOR's letters.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct IoArgs {
    #[command(flatten)]
    pub(crate) place: HostArgs,
    #[command(flatten)]
    pub(crate) caches: CacheArgs,
    #[command(flatten)]
    pub(crate) runner: RunnerArgs,
    /// Let this program write and read, with the options translated, if it is installed
    #[arg(long, value_name = "PROGRAM", value_parser = ["ior", "fio", "iozone"])]
    pub(crate) tool: Option<String>,
    /// The file; with -F a dot and the process's number are added. {host} is the host's name
    #[arg(short = 'o', long = "path", value_name = "FILE")]
    pub(crate) path: String,
    /// Bytes of one system call: 4k, 1m, 1MiB, ...
    #[arg(short = 't', long, default_value = "256k", value_name = "SIZE", value_parser = size)]
    pub(crate) transfer_size: u64,
    /// Bytes of one process in one piece
    #[arg(short = 'b', long, default_value = "1m", value_name = "SIZE", value_parser = size)]
    pub(crate) block_size: u64,
    /// So often the blocks of all processes follow each other
    #[arg(short = 's', long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) segments: u64,
    /// A file for each process (N-N) instead of one for all (N-1)
    #[arg(short = 'F', long)]
    pub(crate) file_per_process: bool,
    /// Write [default: write and read]
    #[arg(short = 'w', long)]
    pub(crate) write: bool,
    /// Read [default: write and read]
    #[arg(short = 'r', long)]
    pub(crate) read: bool,
    /// Transfers come in random order
    #[arg(short = 'z', long)]
    pub(crate) random: bool,
    /// Each process reads what one on the next host wrote
    #[arg(short = 'C', long)]
    pub(crate) reorder: bool,
    /// Sync each file after writing, within the measured time
    #[arg(short = 'e', long)]
    pub(crate) fsync: bool,
    /// Don't remove the files at the end
    #[arg(short = 'k', long)]
    pub(crate) keep: bool,
    /// Write over files that exist, and don't remove them
    #[arg(short = 'E', long)]
    pub(crate) use_existing: bool,
    /// How often all is done
    #[arg(short = 'i', long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) repetitions: u32,
    /// Compare what was written, after it was measured
    #[arg(short = 'W', long)]
    pub(crate) verify_write: bool,
    /// Compare what is read, while it is measured
    #[arg(short = 'R', long)]
    pub(crate) verify_read: bool,
    /// Past the page cache (`O_DIRECT`)
    #[arg(short = 'B', long)]
    pub(crate) direct: bool,
    /// Number by which what is written tells its run: with it a later run can compare (-r -R)
    #[arg(short = 'G', long, value_name = "NUMBER")]
    pub(crate) signature: Option<u32>,
    /// What the hardware can move at most in a second: results are compared with it
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) limit: Option<u64>,
    /// How many operations it can do at most in a second
    #[arg(long, value_name = "NUMBER")]
    pub(crate) limit_iops: Option<u64>,
    /// Seed of random orders: the same seed gives the same order
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// mdtest's options under mdtest's letters.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct MetadataArgs {
    #[command(flatten)]
    pub(crate) place: HostArgs,
    #[command(flatten)]
    pub(crate) caches: CacheArgs,
    #[command(flatten)]
    pub(crate) runner: RunnerArgs,
    /// Let this program do the work, with the options translated, if it is installed
    #[arg(long, value_name = "PROGRAM", value_parser = ["mdtest"])]
    pub(crate) tool: Option<String>,
    /// A directory that exists; {host} is the host's name
    #[arg(short = 'd', long, value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Items of each process, over all directories of the tree
    #[arg(short = 'n', long, value_name = "NUMBER", conflicts_with = "items_per_directory")]
    pub(crate) items: Option<u64>,
    /// Items of each process in each directory of the tree
    #[arg(short = 'I', long, value_name = "NUMBER")]
    pub(crate) items_per_directory: Option<u64>,
    /// Depth of the tree of directories
    #[arg(short = 'z', long, default_value_t = 0, value_name = "NUMBER")]
    pub(crate) depth: u32,
    /// Directories in each directory of the tree
    #[arg(short = 'b', long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) branching: u64,
    /// Items are in the leaves of the tree only
    #[arg(short = 'L', long)]
    pub(crate) leaves_only: bool,
    /// A tree for each process
    #[arg(short = 'u', long)]
    pub(crate) unique_trees: bool,
    /// Files only
    #[arg(short = 'F', long)]
    pub(crate) files_only: bool,
    /// Directories only
    #[arg(short = 'D', long)]
    pub(crate) directories_only: bool,
    /// Create [default: all four]
    #[arg(short = 'C', long)]
    pub(crate) create: bool,
    /// Look at (stat) [default: all four]
    #[arg(short = 'T', long)]
    pub(crate) stat: bool,
    /// Read [default: all four]
    #[arg(short = 'E', long)]
    pub(crate) read: bool,
    /// Remove [default: all four]
    #[arg(short = 'r', long)]
    pub(crate) remove: bool,
    /// How often all is done
    #[arg(short = 'i', long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) repetitions: u32,
    /// Bytes that are written into each new file
    #[arg(short = 'w', long, default_value = "0", value_name = "SIZE", value_parser = size)]
    pub(crate) write_bytes: u64,
    /// Bytes that are read of each file
    #[arg(short = 'e', long, default_value = "0", value_name = "SIZE", value_parser = size)]
    pub(crate) read_bytes: u64,
    /// Sync each file after writing
    #[arg(short = 'y', long)]
    pub(crate) sync: bool,
    /// Look at what the process so many places on has made: with 1 the one on the next host
    #[arg(short = 'N', long, default_value_t = 0, value_name = "NUMBER")]
    pub(crate) stride: u32,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// What goes over the network.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NetArgs {
    #[command(flatten)]
    pub(crate) place: HostArgs,
    /// Only these services: names or ids with commas between them [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) services: Vec<String>,
    /// Measure only from hosts to services [default: also between services]
    #[arg(long, conflicts_with = "only_between_services")]
    pub(crate) only_from_hosts: bool,
    /// Measure only between services [default: also from hosts to services]
    #[arg(long)]
    pub(crate) only_between_services: bool,
    /// All hosts with all services at the same time, instead of one pair after the other
    #[arg(long)]
    pub(crate) all_at_once: bool,
    /// Bytes of a message's data, up to 4 MiB
    #[arg(long, default_value = "1m", value_name = "SIZE", value_parser = size)]
    pub(crate) message_size: u64,
    /// Messages of each stream
    #[arg(long, default_value_t = 32, value_name = "NUMBER")]
    pub(crate) messages: u32,
    /// Connections from each process to each service; one message is under way on each
    #[arg(long, default_value_t = 4, value_name = "NUMBER")]
    pub(crate) streams: u16,
    /// Messages without data that are timed one by one; 0: none
    #[arg(long, default_value_t = 200, value_name = "NUMBER")]
    pub(crate) round_trips: u32,
    /// How often all is done
    #[arg(long, default_value_t = 3, value_name = "NUMBER")]
    pub(crate) repetitions: u32,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// What storage targets do.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct StorageArgs {
    /// Only these targets: ids with commas between them [default: all]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub(crate) targets: Vec<u32>,
    /// Measure writing [default: writing and reading]
    #[arg(long)]
    pub(crate) write: bool,
    /// Measure reading, of what is written before [default: writing and reading]
    #[arg(long)]
    pub(crate) read: bool,
    /// Files of each target, written and read at the same time
    #[arg(long, default_value_t = 4, value_name = "NUMBER")]
    pub(crate) threads: u16,
    /// Bytes of each file
    #[arg(long, default_value = "256m", value_name = "SIZE", value_parser = size)]
    pub(crate) size: u64,
    /// Bytes moved at once: a multiple of 4 KiB up to 4 MiB
    #[arg(long, default_value = "1m", value_name = "SIZE", value_parser = size)]
    pub(crate) block_size: u64,
    /// How often all is done
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) repetitions: u32,
    /// One target after the other, instead of all at the same time
    #[arg(long)]
    pub(crate) one_by_one: bool,
    /// Give up when no target has moved anything for so long
    #[arg(long, default_value_t = skep_bench::limits::DEFAULT_PATIENCE_S, value_name = "SECONDS")]
    pub(crate) patience: u32,
    #[command(flatten)]
    pub(crate) results: ResultArgs,
}

/// How targets are judged.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SlowTargetsArgs {
    #[command(flatten)]
    pub(crate) storage: StorageArgs,
    /// Judge a result of `skep bench storage --output json`, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with = "result_file")]
    pub(crate) result: Option<PathBuf>,
    /// Slow is what is slower than the others by so much
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT")]
    pub(crate) slower_by: f64,
    /// How sure that must be
    #[arg(long, default_value_t = 95.0, value_name = "PERCENT")]
    pub(crate) confidence: f64,
}

/// A size as Skep writes them, or as IOR does: 4096, 4k, 1m, 2g, 1MiB.
fn size(text: &str) -> Result<u64, String> {
    let of_ior = || {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let shift = match unit.to_ascii_lowercase().as_str() {
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return None,
        };
        digits.parse::<u64>().ok()?.checked_mul(1 << shift)
    };
    skep_types::size::parse(text)
        .or_else(of_ior)
        .ok_or_else(|| format!("'{text}' is no size: write 4096, 4k, 1m, 2g, or 1MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_skep_and_as_ior_write_them() {
        for (text, bytes) in [("4096", 4096), ("4k", 4096), ("1M", 1 << 20), ("2 GiB", 2 << 30)] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "k", "1x", "-1", "1.5m", "99999999999999t"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}

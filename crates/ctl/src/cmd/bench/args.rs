//! Options that several subcommands of `skep bench` share.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// The options that select the hosts and processes of a benchmark.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct HostArgs {
    /// Hosts to run processes on: process 0 on the first host, process 1 on the second, and so on;
    /// `localhost` is this host [default: localhost]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(super) hosts: Vec<String>,
    /// File with one host per line; text after the first word or a # is ignored
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(super) host_file: Option<PathBuf>,
    /// Run on the client hosts of this lab (`skep lab up`); a relative path is relative to the
    /// mount of each host, and the result shows whether the processors of this machine were the
    /// limit
    #[arg(long, value_name = "NAME", conflicts_with_all = ["hosts", "host_file", "enter"])]
    pub(super) lab: Option<String>,
    /// Processes on each host [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub(super) processes_per_host: Option<u32>,
    /// Command prefix that runs a command on a host, with {host} for its name; this command must
    /// not prompt, and `skep` must be in the PATH of the host
    #[arg(long, default_value = "ssh -o BatchMode=yes {host}", value_name = "COMMAND")]
    pub(super) enter: String,
    /// Stop the benchmark if no process makes progress for this time
    #[arg(long, default_value_t = skep_bench::limits::DEFAULT_PATIENCE_S, value_name = "SECONDS")]
    pub(super) patience: u32,
}

/// The options for dropping the page caches of hosts between the phases of a benchmark.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Caches")]
pub(crate) struct CacheArgs {
    /// More hosts to drop caches on, such as servers
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(super) server_hosts: Vec<String>,
    /// Do not drop caches between phases
    #[arg(long)]
    pub(super) keep_caches: bool,
    /// Shell command to run on each host before each phase, with {host} for its name, for example
    /// to remount the file system
    #[arg(long, value_name = "COMMAND")]
    pub(super) before_phase: Option<String>,
}

/// The command that starts other benchmark programs as MPI jobs.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Other programs")]
pub(crate) struct RunnerArgs {
    /// Command that starts MPI jobs, with its own options
    #[arg(long, default_value = "mpirun", value_name = "COMMAND")]
    pub(super) mpirun: String,
}

/// The option for the file to which a run writes its results.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ResultArgs {
    /// Write each result to this new file immediately after its measurement, as a line of JSON;
    /// disk space for all results is allocated before the first measurement
    #[arg(long, value_name = "FILE")]
    pub(super) result_file: Option<PathBuf>,
}

/// Parses a size such as 4096, 4k, 1m, 2g or 1MiB.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    skep_types::size::parse(text).ok_or_else(|| {
        format!(
            "invalid size '{text}': expected a number of bytes, or a number with {}",
            skep_types::size::SUFFIXES
        )
    })
}

/// Parses a time such as 1s or 100ms.
pub(super) fn parse_span(text: &str) -> Result<Duration, String> {
    text.parse::<skep_service::Interval>().map(|span| span.0)
}

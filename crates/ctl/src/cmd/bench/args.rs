//! Options that several verbs of `skep bench` have.

use clap::Args;
use std::path::PathBuf;

/// Where processes run.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct HostArgs {
    /// Hosts on which processes run, in turn; `localhost` is this one [default: localhost]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(super) hosts: Vec<String>,
    /// File with a host on each line; what comes after a # or the first word is ignored
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub(super) host_file: Option<PathBuf>,
    /// The client hosts of a lab (`skep lab up`); a relative path is in the mount of each, and the
    /// result says whether the processors of this machine were its limit
    #[arg(long, value_name = "NAME", conflicts_with_all = ["hosts", "host_file", "enter"])]
    pub(super) lab: Option<String>,
    /// Processes on each host
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(super) processes_per_host: u32,
    /// What is put before a command to run it on a host, {host} being its name; `skep` has to be
    /// found there, and nothing asked
    #[arg(long, default_value = "ssh -o BatchMode=yes {host}", value_name = "COMMAND")]
    pub(super) enter: String,
    /// Give up when no process has moved for so long
    #[arg(long, default_value_t = skep_bench::limits::DEFAULT_PATIENCE_S, value_name = "SECONDS")]
    pub(super) patience: u32,
}

/// Whose caches are dropped.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Caches")]
pub(crate) struct CacheArgs {
    /// Hosts without processes on which caches are dropped too
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(super) server_hosts: Vec<String>,
    /// Leave caches as they are between phases
    #[arg(long)]
    pub(super) keep_caches: bool,
    /// Let a shell do this on each host before each phase, {host} being its name: to mount anew,
    /// for example
    #[arg(long, value_name = "COMMAND")]
    pub(super) before_phase: Option<String>,
}

/// A program that does the work.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Other programs")]
pub(crate) struct RunnerArgs {
    /// The command that starts jobs of MPI, with options of its own
    #[arg(long, default_value = "mpirun", value_name = "COMMAND")]
    pub(super) mpirun: String,
}

/// Where results are kept while a run goes on.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ResultArgs {
    /// Keep each result in this new file as soon as it is measured, as a line of JSON; room for
    /// all of them is set aside before anything is measured
    #[arg(long, value_name = "FILE")]
    pub(super) result_file: Option<PathBuf>,
}

/// A size as Skep writes them, or as IOR does: 4096, 4k, 1m, 2g, 1MiB.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
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
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "k", "1x", "-1", "1.5m", "99999999999999t"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}

//! Subcommands of `skep ondemand`, which makes a file system of the local disks of a job's hosts.

mod args;
mod job_copy;
mod job_input;
mod job_output;
mod job_results;
mod report;
mod staging;
mod start;
mod status;
mod stop;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Make a file system of the local disks of a job's hosts, for the time of the job
#[derive(Debug, Subcommand)]
pub(crate) enum OndemandVerb {
    Start(start::StartArgs),
    Status(status::StatusArgs),
    Stop(stop::StopArgs),
}

impl OndemandVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Start(args) => done(start::run(&args)),
            Self::Status(args) => status::run(&args),
            Self::Stop(args) => stop::run(&args),
        }
    }
}

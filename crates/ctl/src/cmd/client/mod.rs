//! Subcommands of `skep client`.

mod evict;
mod files;
mod list;
mod stats;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List clients (the mounts of the cluster), show the load of clients, and evict clients
#[derive(Debug, Subcommand)]
pub(crate) enum ClientVerb {
    List(list::ListArgs),
    Stats(stats::StatsArgs),
    Files(files::FilesArgs),
    Evict(evict::EvictArgs),
}

impl ClientVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Stats(args) => done(stats::run(args)),
            Self::Files(args) => done(files::run(args)),
            Self::Evict(args) => done(evict::run(args)),
        }
    }
}

//! Subcommands of `skep node`.

mod disks;
mod list;
mod log_level;
mod remove;
mod rename;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List, rename and remove nodes, show their disks, and control their logs
#[derive(Debug, Subcommand)]
pub(crate) enum NodeVerb {
    List(list::ListArgs),
    Disks(disks::DisksArgs),
    LogLevel(log_level::LogLevelArgs),
    Rename(rename::RenameArgs),
    Remove(remove::RemoveArgs),
}

impl NodeVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Disks(args) => done(disks::run(args)),
            Self::LogLevel(args) => log_level::run(args),
            Self::Rename(args) => done(rename::run(args)),
            Self::Remove(args) => done(remove::run(args)),
        }
    }
}

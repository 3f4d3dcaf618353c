//! Subcommands of `skep cluster`.

mod backup;
mod format;
mod restore;
mod token;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Format the cluster, print its token, or copy the state of management
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    Format(format::FormatArgs),
    Token(token::TokenArgs),
    Backup(backup::BackupArgs),
    Restore(restore::RestoreArgs),
}

impl ClusterVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Format(args) => done(format::run(args)),
            Self::Token(args) => done(token::run(&args)),
            Self::Backup(args) => done(backup::run(&args)),
            Self::Restore(args) => done(restore::run(&args)),
        }
    }
}

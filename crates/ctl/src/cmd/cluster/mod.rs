//! Subcommands of `skep cluster`.

mod backup;
mod format;
mod info;
mod restore;
mod token;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Identify or format the cluster, print its token, or copy the state of management
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    Info(info::InfoArgs),
    Format(format::FormatArgs),
    Token(token::TokenArgs),
    Backup(backup::BackupArgs),
    Restore(restore::RestoreArgs),
}

impl ClusterVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Info(args) => done(info::run(&args)),
            Self::Format(args) => done(format::run(args)),
            Self::Token(args) => done(token::run(&args)),
            Self::Backup(args) => done(backup::run(&args)),
            Self::Restore(args) => done(restore::run(&args)),
        }
    }
}

//! Verbs of `skep target`.

mod list;
mod stats;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List targets, and show their load
#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    List(list::ListArgs),
    Stats(stats::StatsArgs),
}

impl TargetVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Stats(args) => done(stats::run(args)),
        }
    }
}

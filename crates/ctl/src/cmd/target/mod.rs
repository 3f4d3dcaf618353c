//! Verbs of `skep target`.

mod list;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List targets
#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    List(list::ListArgs),
}

impl TargetVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
        }
    }
}

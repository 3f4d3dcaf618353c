//! Subcommands of `skep lock`.

mod list;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List the file locks of applications
#[derive(Debug, Subcommand)]
pub(crate) enum LockVerb {
    List(list::ListArgs),
}

impl LockVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
        }
    }
}

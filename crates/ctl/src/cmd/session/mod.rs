//! Subcommands of `skep session`.

mod list;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List the sessions of clients at metadata targets
#[derive(Debug, Subcommand)]
pub(crate) enum SessionVerb {
    List(list::ListArgs),
}

impl SessionVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
        }
    }
}

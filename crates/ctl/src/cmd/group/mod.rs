//! Verbs of `skep group`.

mod create;
mod list;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List and create groups, the sets of targets that hold the same data
#[derive(Debug, Subcommand)]
pub(crate) enum GroupVerb {
    List(list::ListArgs),
    Create(create::CreateArgs),
}

impl GroupVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Create(args) => done(create::run(args)),
        }
    }
}

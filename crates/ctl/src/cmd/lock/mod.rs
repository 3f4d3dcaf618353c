//! Verbs of `skep lock`.

mod list;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Look at what applications have locked
#[derive(Debug, Subcommand)]
pub(crate) enum LockVerb {
    List(list::ListArgs),
}

impl LockVerb {
    /// Carries out a verb.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
        }
    }
}

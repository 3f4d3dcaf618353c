//! Verbs of `skep cluster`.

mod format;
mod token;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Format the cluster, or print its token
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    Format(format::FormatArgs),
    Token(token::TokenArgs),
}

impl ClusterVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Format(args) => done(format::run(args)),
            Self::Token(args) => done(token::run(&args)),
        }
    }
}

//! Subcommands of `skep debug`.

mod archive;
mod bundle;
mod directory;
mod hosts;
mod metrics;
mod partial_file;
mod redaction;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Collect what a developer needs to find the cause of a problem
#[derive(Debug, Subcommand)]
pub(crate) enum DebugVerb {
    Bundle(bundle::BundleArgs),
}

impl DebugVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Bundle(args) => done(bundle::run(&args)),
        }
    }
}

//! Subcommands of `skep tune`.

mod apply;
mod args;
mod check;
mod deviations;
mod undo;

pub(super) use deviations::deviating_rules;

use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Check and change the kernel settings of this host for its roles
#[derive(Debug, Subcommand)]
pub(crate) enum TuneVerb {
    Check(check::CheckArgs),
    Apply(apply::ApplyArgs),
    Undo(undo::UndoArgs),
}

impl TuneVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Check(args) => check::run(&args),
            Self::Apply(args) => apply::run(&args),
            Self::Undo(args) => undo::run(&args),
        }
    }
}

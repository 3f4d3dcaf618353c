//! Subcommands of `skep tune`.

mod apply;
mod args;
mod check;
mod deviations;
mod measure;
mod measured_command;
mod peers;
mod undo;

pub(super) use deviations::deviating_rules;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Check and change the kernel settings of this host for its roles
#[derive(Debug, Subcommand)]
pub(crate) enum TuneVerb {
    Check(check::CheckArgs),
    Apply(apply::ApplyArgs),
    Measure(measure::MeasureArgs),
    Undo(undo::UndoArgs),
}

impl TuneVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Check(args) => check::run(&args),
            Self::Apply(args) => apply::run(&args),
            Self::Measure(args) => done(measure::run(&args)),
            Self::Undo(args) => undo::run(&args),
        }
    }
}

//! Subcommands of `skep target`.

mod add;
mod files;
mod give_up;
mod list;
mod remove;
mod replace;
mod restored;
mod set_state;
mod stats;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List targets, add targets, show the load of targets, and remove targets from the cluster
#[derive(Debug, Subcommand)]
pub(crate) enum TargetVerb {
    List(list::ListArgs),
    Add(add::AddArgs),
    Files(files::FilesArgs),
    SetState(set_state::SetStateArgs),
    Remove(remove::RemoveArgs),
    Replace(replace::ReplaceArgs),
    Restored(restored::RestoredArgs),
    Stats(stats::StatsArgs),
}

impl TargetVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Add(args) => done(add::run(args)),
            Self::Files(args) => done(files::run(args)),
            Self::SetState(args) => done(set_state::run(args)),
            Self::Remove(args) => done(remove::run(args)),
            Self::Replace(args) => done(replace::run(args)),
            Self::Restored(args) => done(restored::run(&args)),
            Self::Stats(args) => done(stats::run(args)),
        }
    }
}

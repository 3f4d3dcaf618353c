//! Subcommands of `skep health`.

mod balances;
mod check;
mod df;
mod from_monitor;
mod history;
pub(super) mod last_map;
mod members;
mod problem;
mod report;
mod services;
mod since;
mod transactions;
mod waits;
mod watch;
mod without_management;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Check the cluster and its free space
#[derive(Debug, Subcommand)]
pub(crate) enum HealthVerb {
    Df(df::DfArgs),
    Check(check::CheckArgs),
}

impl HealthVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Df(args) => done(df::run(args)),
            Self::Check(args) if args.is_watch => watch::run(&args),
            Self::Check(args) => check::run(args),
        }
    }
}

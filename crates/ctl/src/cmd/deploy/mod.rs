//! Subcommands of `skep deploy`, which manages clusters of several hosts over ssh.

mod add;
mod apply;
mod args;
mod destroy;
mod monitor_settings;
mod plan;
mod remove;
mod status;
mod units;
mod upgrade;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Install, extend, upgrade and remove a cluster of several hosts over ssh
#[derive(Debug, Subcommand)]
pub(crate) enum DeployVerb {
    Plan(plan::PlanArgs),
    Apply(apply::ApplyArgs),
    Status(status::StatusArgs),
    Add(add::AddArgs),
    Remove(remove::RemoveArgs),
    Upgrade(upgrade::UpgradeArgs),
    Destroy(destroy::DestroyArgs),
    #[command(hide = true)]
    Units(units::UnitsArgs),
}

impl DeployVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Plan(args) => plan::run(&args),
            Self::Apply(args) => done(apply::run(&args)),
            Self::Status(args) => status::run(&args),
            Self::Add(args) => done(add::run(&args)),
            Self::Remove(args) => done(remove::run(&args)),
            Self::Upgrade(args) => done(upgrade::run(&args)),
            Self::Destroy(args) => done(destroy::run(&args)),
            Self::Units(args) => done(units::run(&args)),
        }
    }
}

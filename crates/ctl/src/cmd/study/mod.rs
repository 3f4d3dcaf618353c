//! Subcommands of `skep study`.

mod compare;
mod plan;
mod plans;
mod published;
mod report;
mod run;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Measure a storage system under many conditions, and report the findings
#[derive(Debug, Subcommand)]
pub(crate) enum StudyVerb {
    Plans(plans::PlansArgs),
    Plan(plan::PlanArgs),
    Run(run::RunArgs),
    Report(report::ReportArgs),
    Compare(compare::CompareArgs),
    Published(published::PublishedArgs),
}

impl StudyVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Plans(args) => done(plans::run(args)),
            Self::Plan(args) => done(plan::run(&args)),
            Self::Run(args) => done(run::run(&args)),
            Self::Report(args) => report::run(&args),
            Self::Compare(args) => done(compare::run(&args)),
            Self::Published(args) => done(published::run(&args)),
        }
    }
}

//! Subcommands of `skep plan`.

mod args;
mod calibrate;
mod catalogue;
mod compare;
mod explain;
mod predict;
mod propose;
mod size;

pub(super) use args::catalogue_with;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Predict the speed and cost of a system before you buy it
#[derive(Debug, Subcommand)]
pub(crate) enum PlanVerb {
    Propose(propose::ProposeArgs),
    Predict(predict::PredictArgs),
    Explain(explain::ExplainArgs),
    Size(size::SizeArgs),
    Compare(compare::CompareArgs),
    Calibrate(calibrate::CalibrateArgs),
    Catalogue(catalogue::CatalogueArgs),
}

impl PlanVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Propose(args) => done(propose::run(&args)),
            Self::Predict(args) => done(predict::run(&args)),
            Self::Explain(args) => done(explain::run(&args)),
            Self::Size(args) => done(size::run(&args)),
            Self::Compare(args) => done(compare::run(&args)),
            Self::Calibrate(args) => done(calibrate::run(&args)),
            Self::Catalogue(args) => done(catalogue::run(&args)),
        }
    }
}

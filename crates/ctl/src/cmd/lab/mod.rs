//! Subcommands of `skep lab`, which emulates clusters on this host.

mod down;
mod run;
mod shapes;
mod status;
mod up;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Emulate clusters on this host, with limited links, limited targets and many clients
#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    Up(Box<up::UpArgs>),
    Run(run::RunArgs),
    Status(status::StatusArgs),
    Down(down::DownArgs),
    Shapes(shapes::ShapesArgs),
}

impl LabVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Up(args) => done(up::run(&args)),
            Self::Run(args) => run::run(&args),
            Self::Status(args) => status::run(&args),
            Self::Down(args) => done(down::run(args)),
            Self::Shapes(args) => done(shapes::run(args)),
        }
    }
}

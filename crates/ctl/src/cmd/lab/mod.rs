//! `skep lab`: emulated clusters on this host.

mod down;
mod run;
mod shapes;
mod status;
mod up;

use crate::cli::LabVerb;
use skep_types::Result;
use std::process::ExitCode;

/// Carries out a verb.
pub(super) fn run(verb: LabVerb) -> Result<ExitCode> {
    let done = |result: Result<()>| result.map(|()| ExitCode::SUCCESS);
    match verb {
        LabVerb::Up(args) => done(up::run(&args)),
        LabVerb::Run(args) => run::run(&args),
        LabVerb::Status(args) => status::run(&args.name),
        LabVerb::Down { name, is_all, is_dry_run } => done(down::run(name, is_all, is_dry_run)),
        LabVerb::Shapes => done(shapes::run()),
    }
}

//! Subcommands of `skep entry`.

mod create;
mod explanation;
pub(crate) mod info;
mod map;
mod path;
pub(crate) mod pattern;
mod set;
mod who;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// Show files and directories, and set their stripe patterns
#[derive(Debug, Subcommand)]
pub(crate) enum EntryVerb {
    Info(info::InfoArgs),
    Set(set::SetArgs),
    Create(create::CreateArgs),
    Map(map::MapArgs),
    Path(path::PathArgs),
    Who(who::WhoArgs),
}

impl EntryVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Info(args) => done(info::run(args)),
            Self::Set(args) => done(set::run(&args)),
            Self::Create(args) => done(create::run(&args)),
            Self::Map(args) => done(map::run(&args)),
            Self::Path(args) => path::run(args),
            Self::Who(args) => done(who::run(&args)),
        }
    }
}

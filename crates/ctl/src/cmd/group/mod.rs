//! Subcommands of `skep group`.

pub(super) mod add;
pub(super) mod change;
pub(super) mod create;
mod list;
mod status;

use crate::cmd::done;
use clap::Subcommand;
use skep_types::Result;
use std::process::ExitCode;

/// List, create and change groups, the sets of targets that hold the same data
#[derive(Debug, Subcommand)]
pub(crate) enum GroupVerb {
    List(list::ListArgs),
    Status(status::StatusArgs),
    Create(create::CreateArgs),
    Add(add::AddArgs),
    Remove(add::RemoveArgs),
    Drop(change::DropArgs),
    Move(change::MoveArgs),
}

impl GroupVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(args)),
            Self::Status(args) => done(status::run(args)),
            Self::Create(args) => done(create::run(args)),
            Self::Add(args) => done(add::add_member(args)),
            Self::Remove(args) => done(add::remove_member(args)),
            Self::Drop(args) => done(change::drop_member(args)),
            Self::Move(args) => done(change::move_primary(args)),
        }
    }
}

//! Subcommands of `skep token`. The subcommands list and change the tokens in the directories of
//! services on this host. Running services apply a change without a restart. `skep_service::tokens`
//! reads and writes the files, and defines the rules.

mod install;
mod list;
mod replace;
mod revoke;

use crate::cmd::done;
use clap::Subcommand;
use serde::Serialize;
use skep_types::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// List, replace, install and revoke the tokens in directories of services
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    List(list::ListArgs),
    Replace(replace::ReplaceArgs),
    Install(install::InstallArgs),
    Revoke(revoke::RevokeArgs),
}

impl TokenVerb {
    /// Runs the chosen subcommand.
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(args) => done(list::run(&args)),
            Self::Replace(args) => done(replace::run(&args)),
            Self::Install(args) => done(install::run(&args)),
            Self::Revoke(args) => done(revoke::run(&args)),
        }
    }
}

/// The option that names the directories of services.
#[derive(Debug, clap::Args)]
struct DirectoryArgs {
    /// Directory of a service on this host, the value of its setting `node.directory`; may be
    /// repeated
    #[arg(long, value_name = "DIR", required = true)]
    directory: Vec<PathBuf>,
}

/// The JSON output: the change of the tokens in one directory.
#[derive(Debug, Serialize)]
struct DirectoryChange {
    directory: String,
    is_changed: bool,
}

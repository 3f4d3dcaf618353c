//! `skep token install`: gives services on this host another token of their cluster.

use super::{DirectoryArgs, DirectoryChange};
use crate::help::{Example, examples};
use crate::output::print;
use skep_service::directory::read_token;
use skep_service::tokens;
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[(
    "two services of this host",
    "skep token install --token-file new-token --directory /srv/skep/metadata --directory \
     /srv/skep/storage",
)];

/// Give services on this host a new token of their cluster
///
/// A running service uses the new secret after a second, without a restart. Until `skep token
/// revoke`, it still accepts the previous token, because other nodes may not have the new token
/// yet. If the new token has other addresses of management, the service uses them from its next
/// start.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct InstallArgs {
    /// File that holds the new token; `-` reads it from the standard input
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    #[command(flatten)]
    place: DirectoryArgs,
}

pub(crate) fn run(args: &InstallArgs) -> Result<()> {
    let token = match args.token_file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin())?.parse()?,
        _ => read_token(&args.token_file)?,
    };
    let mut changes = Vec::new();
    for directory in &args.place.directory {
        let is_changed = tokens::install(directory, &token)?;
        changes.push(DirectoryChange { directory: directory.display().to_string(), is_changed });
    }
    let id = token.secrets.newest().id();
    print(&changes, |changes| {
        let line = |change: &DirectoryChange| match change.is_changed {
            true => format!("{} has the token {id} now.\n", change.directory),
            false => format!("{} has the token {id} already.\n", change.directory),
        };
        changes.iter().map(line).collect()
    })
}

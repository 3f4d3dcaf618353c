//! `skep token install`: replaces the token of services on this host by another token of their
//! cluster.

use super::{DirectoryArgs, DirectoryChange};
use crate::help::{Example, examples};
use crate::output::print;
use crate::token_check::{
    foreign_secret, forget, prove, warn_about_lasting_refusals, way_to_the_token,
};
use skep_service::directory::read_token;
use skep_service::tokens;
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[(
    "give a new token to two services of this host",
    "skep token install --token-file new-token --directory /srv/skep/metadata --directory \
     /srv/skep/storage",
)];

/// Give services on this host a new token of their cluster
///
/// A running service uses the new secret after a second, without a restart. Until `skep token
/// revoke`, the service still accepts the previous token, because other nodes may not have the new
/// token yet. If the new token has other addresses of management, the service uses these addresses
/// from its next start.
///
/// The command first checks that management, at the addresses in the token, accepts the token. With
/// a wrong token, the service could not join its cluster any more. If other management nodes refuse
/// the token, the command warns about these nodes: also install the token on these nodes. If a
/// service has never joined, and management refuses the previous token of its directory, the
/// command removes that token.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct InstallArgs {
    /// File that holds the new token; `-` reads it from the standard input
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Install the token although management does not answer, or refuses the token
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    place: DirectoryArgs,
}

pub(crate) fn run(args: &InstallArgs) -> Result<()> {
    let token = match args.token_file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin())?.parse()?,
        _ => read_token(&args.token_file)?,
    };
    let mut has_change = false;
    for directory in &args.place.directory {
        has_change |= tokens::check_install(directory, &token)?;
    }
    let must_prove = has_change && !args.force;
    if must_prove {
        prove(&token).map_err(|error| refusal(&error))?;
    }
    let mut changes = Vec::new();
    for directory in &args.place.directory {
        let foreign = if must_prove { foreign_secret(directory, &token) } else { None };
        let is_changed = tokens::install(directory, &token)?;
        forget(directory, foreign)?;
        changes.push(DirectoryChange { directory: directory.display().to_string(), is_changed });
    }
    if must_prove {
        warn_about_lasting_refusals(&token);
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

fn refusal(error: &Error) -> Error {
    let what = match error.code() {
        ErrorCode::AuthenticationFailed => format!(
            "cannot install the token: management refuses this token ({}){}. Only for a directory \
             of management that was restored from an old backup, add --force",
            error.context(),
            way_to_the_token(error)
        ),
        _ => format!(
            "cannot check the token with management: {}; start management, or install the token \
             without this check by --force",
            error.context()
        ),
    };
    Error::new(error.code(), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_token_and_absent_management_have_different_remedies() {
        let refused = refusal(&Error::new(ErrorCode::AuthenticationFailed, "another secret"));
        assert_eq!(refused.code(), ErrorCode::AuthenticationFailed);
        assert!(refused.context().contains("skep cluster token"), "{refused}");
        assert!(!refused.context().contains("start management"), "{refused}");
        let named = "another secret; `skep cluster token --cluster DIRECTORY` prints the right one";
        let refused = refusal(&Error::new(ErrorCode::AuthenticationFailed, named));
        assert_eq!(refused.context().matches("skep cluster token").count(), 1, "{refused}");
        let absent = refusal(&Error::new(ErrorCode::Disconnected, "10.0.0.1:7400: no answer"));
        assert!(absent.context().contains("start management"), "{absent}");
    }
}

//! `skep token install`: replaces the token of services on this host by another token of their
//! cluster.

use super::{DirectoryArgs, DirectoryChange};
use crate::access::{Access, PATIENCE, block_on};
use crate::help::{Example, examples};
use crate::output::print;
use skep_rpc::{Channel, Connection, JoinToken};
use skep_service::directory::read_token;
use skep_service::tokens::{self, FOLLOW_INTERVAL};
use skep_types::{Error, ErrorCode, Result, TargetId};
use std::path::PathBuf;
use std::time::Duration;

/// Time for which a token may be refused because management has not read its own new token yet.
const REFUSED_FOR: Duration = FOLLOW_INTERVAL.saturating_mul(3);
/// Pause between two attempts to prove the token to management.
const PAUSE: Duration = Duration::from_millis(250);

const EXAMPLES: &[Example] = &[(
    "give a new token to two services of this host",
    "skep token install --token-file new-token --directory /srv/skep/metadata --directory \
     /srv/skep/storage",
)];

/// Give services on this host a new token of their cluster
///
/// A running service uses the new secret after a second, without a restart. Until `skep token
/// revoke`, it still accepts the previous token, because other nodes may not have the new token
/// yet. If the new token has other addresses of management, the service uses them from its next
/// start.
///
/// The command first checks that management, at the addresses in the token, accepts the token. With
/// a wrong token, the service could not join its cluster any more.
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
    if has_change && !args.force {
        prove(&token)?;
    }
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

/// Proves the token to management. Any management node is enough, since all of them have the token
/// when the replacement is complete.
fn prove(token: &JoinToken) -> Result<()> {
    let name = token.addresses.join(", ");
    let access = Access::new(token.clone(), &name, PathBuf::new());
    block_on(async move {
        let until = skep_env::now() + REFUSED_FOR;
        loop {
            let Err(error) = try_addresses(&access).await else { return Ok(()) };
            let is_refused = error.code() == ErrorCode::AuthenticationFailed;
            if !is_refused || skep_env::now() >= until {
                return Err(refusal(&error));
            }
            skep_env::sleep(PAUSE).await;
        }
    })
}

/// Returns success if a management node accepts the token. If any node refuses the token, returns
/// the refusal.
async fn try_addresses(access: &Access) -> Result<()> {
    let identity = access.identity();
    let mut failure = Error::new(ErrorCode::Disconnected, "the token names no address");
    for address in &access.token.addresses {
        let attempt = Connection::connect(address, &identity, TargetId::default(), Channel::NONE);
        let error = match skep_env::timeout(PATIENCE, attempt).await {
            Some(Ok(_)) => return Ok(()),
            Some(Err(error)) => error,
            None => {
                Error::new(ErrorCode::TimedOut, format!("{address}: no reply within {PATIENCE:?}"))
            }
        };
        if failure.code() != ErrorCode::AuthenticationFailed {
            failure = error;
        }
    }
    Err(failure)
}

fn refusal(error: &Error) -> Error {
    let what = match error.code() {
        ErrorCode::AuthenticationFailed => format!(
            "cannot install the token: management refuses it ({}); use the token that `skep \
             cluster token --cluster DIRECTORY` prints on the management host. Only for a \
             directory of management that was restored from an old backup, add --force",
            error.context()
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
        let absent = refusal(&Error::new(ErrorCode::Disconnected, "10.0.0.1:7400: no answer"));
        assert!(absent.context().contains("start management"), "{absent}");
    }
}

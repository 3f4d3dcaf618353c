//! `skep token replace`: creates a new random secret for a cluster, and prints the new token.

use crate::help::{Example, examples};
use crate::output::print;
use crate::token_check::{prove, warn_about_refusals};
use serde::Serialize;
use skep_format::identity::DirectoryKind;
use skep_service::tokens;
use skep_store::identity::read_identity;
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[(
    "create a new token on the management host; run `umask 077` before you send the output to a \
     file",
    "skep token replace --directory /srv/skep/management",
)];

/// Create a new token on the management host and print this token; keep the token secret
///
/// The previous token stays valid until `skep token revoke`. Give the new token to all services
/// with `skep token install` before a client uses it, because a service without the new token
/// refuses that client. If the cluster has several management nodes, install the new token on each
/// other management node first. The command warns about management nodes that refuse the new token.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ReplaceArgs {
    /// Directory of the management service
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
}

/// The JSON output: the new token.
#[derive(Serialize)]
struct NewToken {
    id: String,
    token: String,
}

pub(crate) fn run(args: &ReplaceArgs) -> Result<()> {
    let identity = read_identity(&args.directory)?;
    if identity.is_none_or(|identity| identity.kind != DirectoryKind::Management) {
        let what = format!(
            "cannot replace the token in {}: this is not the directory of management, which issues \
             the tokens; run the command on the management host",
            args.directory.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    }
    let token = tokens::replace(&args.directory)?;
    let new = NewToken { id: token.secrets.newest().id().to_string(), token: token.to_text() };
    print(&new, |it| it.token.clone())?;
    // The management process on this host reads the new token after a moment. Warn only if this
    // process runs and accepts the new token. If management does not run on this host, only `skep
    // token install` asks the other management nodes.
    if token.addresses.len() > 1 && prove(&token).is_ok() {
        warn_about_refusals(&token);
    }
    Ok(())
}

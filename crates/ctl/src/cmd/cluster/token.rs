//! `skep cluster token`: prints the token that other nodes need to join. The command reads it from
//! the directory of management, so only users with access to that directory get it.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_types::Result;

const EXAMPLES: &[Example] =
    &[("on the management host", "skep cluster token --cluster /srv/skep/management")];

/// Print the token that nodes need to join and clients to mount; keep it secret
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// The token of a cluster, as JSON.
#[derive(Serialize)]
struct Token {
    token: String,
}

pub(crate) fn run(args: &TokenArgs) -> Result<()> {
    let token = Token { token: args.query.access(None)?.token.to_text() };
    print(&token, |it| it.token.clone())
}

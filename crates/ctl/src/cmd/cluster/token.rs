//! `skep cluster token`: prints what other nodes need to join. Reads it from management's
//! directory, so only those who may read that get it.

use crate::access::ClusterArgs;
use crate::output::print;
use serde::Serialize;
use skep_types::Result;

/// The key to a cluster, as text.
#[derive(Serialize)]
struct Token {
    token: String,
}

pub(crate) fn run(args: &ClusterArgs) -> Result<()> {
    let token = Token { token: args.access(None)?.token.to_text() };
    print(&token, |it| it.token.clone())
}

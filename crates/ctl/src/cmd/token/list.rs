//! `skep token list`: lists the tokens that services on this host accept.

use super::DirectoryArgs;
use crate::help::{Example, examples};
use crate::output::{print, render, table};
use serde::Serialize;
use skep_service::directory::load_token;
use skep_types::Result;
use std::path::Path;

const EXAMPLES: &[Example] =
    &[("list the tokens of a storage service", "skep token list --directory /srv/skep/storage")];

/// List the tokens that services on this host accept
///
/// `newest`: the service uses this token. `accepted`: every process that has this token may join.
/// `members only`: the token is revoked for new nodes, and nodes that have joined continue to use
/// it.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    place: DirectoryArgs,
}

/// A token in the directory of a service, as one entry of the list.
#[derive(Debug, Serialize)]
struct TokenLine {
    directory: String,
    id: String,
    state: &'static str,
    /// The addresses of management in the newest token. Empty for all other tokens.
    addresses: Vec<String>,
}

pub(crate) fn run(args: &ListArgs) -> Result<()> {
    let mut lines = Vec::new();
    for directory in &args.place.directory {
        lines.extend(tokens_in(directory)?);
    }
    print(&lines, |lines| {
        let mut shown = table(&["TOKEN", "STATE", "MANAGEMENT", "DIRECTORY"]);
        for line in lines {
            let TokenLine { directory, id, state, addresses } = line;
            let addresses = addresses.join(",");
            shown.add_row([id.clone(), (*state).to_owned(), addresses, directory.clone()]);
        }
        render(&shown)
    })
}

fn tokens_in(directory: &Path) -> Result<Vec<TokenLine>> {
    let token = load_token(directory)?;
    let line = |(index, held): (usize, skep_rpc::HeldSecret)| TokenLine {
        directory: directory.display().to_string(),
        id: held.secret.id().to_string(),
        state: match (index, held.is_closed) {
            (0, _) => "newest",
            (_, false) => "accepted",
            (_, true) => "members only",
        },
        addresses: if index == 0 { token.addresses.clone() } else { Vec::new() },
    };
    Ok(token.secrets.held().into_iter().enumerate().map(line).collect())
}

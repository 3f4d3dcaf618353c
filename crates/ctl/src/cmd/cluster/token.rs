//! `skep cluster token`: prints the token that other nodes need to join. The command reads the
//! token from the directory of management, so only users who may read this directory can print the
//! token.

use crate::access::ClusterArgs;
use crate::help::{Example, examples};
use crate::output::{print, warn};
use serde::Serialize;
use skep_format::identity::DirectoryKind;
use skep_store::identity::read_identity;
use skep_types::Result;
use std::path::Path;

const EXAMPLES: &[Example] = &[(
    "print the newest token, on the management host",
    "skep cluster token --cluster /srv/skep/management",
)];

/// Print the token that nodes need to join and clients need to mount; keep this token secret
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    query: ClusterArgs,
}

/// The JSON output: the token of a cluster.
#[derive(Serialize)]
struct Token {
    token: String,
}

pub(crate) fn run(args: &TokenArgs) -> Result<()> {
    let access = args.query.access(None)?;
    let token = Token { token: access.token.to_text() };
    print(&token, |it| it.token.clone())?;
    if !is_of_management(&access.token_file) {
        warn(&format!(
            "this is the token in {}; its secret and its addresses of management may be outdated; \
             on the management host, `skep cluster token --cluster DIRECTORY` with the directory \
             of management prints the newest token",
            access.token_file.display()
        ));
    }
    Ok(())
}

/// Whether a token file is in a directory of management. Management writes its newest token to this
/// file.
fn is_of_management(token_file: &Path) -> bool {
    let directory = token_file.parent().unwrap_or(Path::new("."));
    let identity = read_identity(directory).ok().flatten();
    identity.is_some_and(|identity| identity.kind == DirectoryKind::Management)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_file_in_a_directory_of_management_is_recognised() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("management/join-token");
        assert!(!is_of_management(&file), "a copied token");
        let identity = skep_format::identity::Identity {
            kind: DirectoryKind::Management,
            cluster: skep_types::ClusterId::new([1; 16]),
            node_uuid: 1,
            node: skep_types::NodeId::default(),
            target_uuid: 0,
            target: skep_types::TargetId::default(),
        };
        let directory = file.parent().unwrap();
        drop(skep_store::identity::Directory::initialise(directory, identity).unwrap());
        assert!(is_of_management(&file));
    }
}

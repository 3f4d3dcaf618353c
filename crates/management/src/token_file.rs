//! The addresses in the join token of a management node: its own addresses first, then the
//! addresses of the other management nodes. So nodes and commands that use the token find a running
//! member.
//!
//! This module decides when management writes the file. `skep_service::tokens` changes the secrets
//! in the file.

use crate::authority::Authority;
use crate::limits::TOKEN_FILE_PAUSE;
use skep_rpc::JoinToken;
use skep_service::NodeDirectory;
use skep_service::directory::write_token;
use skep_service::tokens;
use skep_types::{ClusterMap, NodeId, NodeKind, Result};
use std::path::PathBuf;
use std::rc::Rc;

/// The token file of a management node.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    node: NodeId,
    is_alone: bool,
    own: Vec<String>,
}

impl TokenFile {
    /// Creates the [`TokenFile`] of the file at `path`. `own` are the addresses of this node.
    pub(crate) fn new(path: PathBuf, authority: &Authority, own: Vec<String>) -> Self {
        let is_alone = authority.member().is_only_voter();
        Self { path, node: authority.own(), is_alone, own }
    }

    /// At a start, puts this node's own addresses first into the token. Keeps the other addresses,
    /// unless this node is the only member.
    pub(crate) fn write(&self, directory: &mut NodeDirectory) -> Result<()> {
        let former = &directory.token.addresses;
        let common: Vec<_> =
            former.iter().filter(|it| self.own.contains(it)).map(String::as_str).collect();
        if self.is_alone && *former != self.own && !common.is_empty() {
            tracing::info!(
                "the addresses of management change from {} to {}, and services and mounts still \
                 reach management at {}; `skep cluster token --cluster DIRECTORY` prints the token \
                 with the new addresses for new hosts",
                former.join(", "),
                self.own.join(", "),
                common.join(", ")
            );
        } else if common.is_empty() {
            tracing::warn!(
                "the addresses of management change from {} to {}: a service or mount that uses \
                 the previous addresses needs the new token. `skep cluster token --cluster \
                 DIRECTORY` prints this token, and `skep token install` gives it to a service, \
                 which uses the new addresses from its next start",
                former.join(", "),
                self.own.join(", ")
            );
        }
        let others = match self.is_alone {
            true => Vec::new(),
            false => former.clone(),
        };
        let addresses = self.with_others(others);
        if *former != addresses {
            directory.token.addresses = addresses;
            write_token(&self.path, &directory.token)?;
        }
        Ok(())
    }

    /// Writes the addresses of the other management nodes into the token whenever the map changes,
    /// until the process ends.
    pub(crate) async fn follow(self, authority: Rc<Authority>, token: JoinToken) {
        let mut written = token.addresses;
        loop {
            let changed = authority.changed.wait();
            let map = authority.map();
            let addresses = self.with_others(self.in_map(&map));
            if map.version.raw() > 0 && addresses != written {
                match tokens::set_addresses(&self.path, &addresses) {
                    Ok(()) => written = addresses,
                    Err(error) => {
                        tracing::warn!(
                            "management cannot write its new addresses into its token file, and \
                             retries: {error}"
                        );
                        // Retry: the next attempt to write the file begins with the next map, or
                        // after this time, without limit.
                        skep_env::timeout(TOKEN_FILE_PAUSE, changed).await;
                        continue;
                    }
                }
            }
            changed.await;
        }
    }

    fn in_map(&self, map: &ClusterMap) -> Vec<String> {
        let is_other =
            |node: &&skep_types::Node| node.kind == NodeKind::Management && node.id != self.node;
        let others = map.nodes.iter().filter(is_other);
        others.flat_map(|node| node.addresses.iter().cloned()).collect()
    }

    fn with_others(&self, others: Vec<String>) -> Vec<String> {
        let is_other = |address: &String| !self.own.contains(address);
        let others: Vec<_> = others.into_iter().filter(is_other).collect();
        self.own.iter().cloned().chain(others).collect()
    }
}

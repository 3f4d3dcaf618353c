//! Initialises and opens the directories of a node and of its targets. Refuses directories that
//! belong to other nodes or clusters.

use super::Host;
use crate::directory::NodeDirectory;
use skep_format::identity::Identity as DirectoryIdentity;
use skep_rpc::JoinToken;
use skep_store::identity::{Directory, is_initialised};
use skep_types::{Error, ErrorCode, NodeId, Result, TargetId};
use std::path::Path;

impl Host {
    /// Initialises blank directories for a new node and its targets in the token's cluster. If the
    /// node is initialised already, initialises only the targets that an administrator has added to
    /// its settings. If a call was interrupted, the next call completes it.
    ///
    /// # Errors
    /// - `Configuration` if the node and all its targets are initialised already.
    /// - `Configuration` if a directory is not blank, or belongs to another cluster or node.
    ///
    /// The context contains a hint how to fix the problem.
    pub fn initialise(&self, token: JoinToken) -> Result<()> {
        let (node_kind, target_kind, _) = self.kinds();
        let path = &self.settings.directory;
        let cluster = token.cluster;
        let is_new = !is_initialised(path);
        let node = if is_new {
            NodeDirectory::initialise(path, node_kind, token)?
        } else {
            NodeDirectory::open(path, node_kind)?
        };
        if node.token.cluster != cluster {
            let own = node.token.cluster;
            let problem =
                format!("belongs to cluster {own}, but the token is of cluster {cluster}");
            return Err(refused(path, &problem));
        }
        let mut has_initialised = is_new;
        for target in &self.targets {
            if is_initialised(target) {
                drop(self.open_target(target, &node)?);
                continue;
            }
            let identity = DirectoryIdentity {
                kind: target_kind,
                node: NodeId::default(),
                target_uuid: skep_env::random_u128(),
                target: TargetId::default(),
                ..*node.directory.identity()
            };
            drop(Directory::initialise(target, identity)?);
            has_initialised = true;
        }
        if !has_initialised {
            let problem =
                "is initialised already, and so are all its targets; start without --init";
            return Err(refused(path, problem));
        }
        Ok(())
    }

    /// Opens a target's directory and checks that the directory belongs to this node.
    pub(super) fn open_target(&self, path: &Path, node: &NodeDirectory) -> Result<Directory> {
        let (_, kind, _) = self.kinds();
        let own = node.directory.identity();
        let target = Directory::open(path, kind, Some(own.cluster))?;
        let owner = target.identity();
        if owner.node_uuid == own.node_uuid {
            return Ok(target);
        }
        let problem = format!(
            "{kind} {} belongs to node {} ({:032x}), not to node {} ({:032x}) in {}; name it in \
             that node's settings",
            owner.target,
            owner.node,
            owner.node_uuid,
            own.node,
            own.node_uuid,
            node.directory.path().display()
        );
        Err(refused(path, &problem))
    }
}

fn refused(path: &Path, problem: &str) -> Error {
    Error::new(ErrorCode::Configuration, format!("{}: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeSettings;
    use crate::directory::tests::token;
    use skep_format::identity::DirectoryKind;
    use skep_types::NodeKind;

    fn host(dir: &Path, node: &str, targets: &[&str]) -> Host {
        let mut settings = NodeSettings::with_port(0);
        settings.directory = dir.join(node);
        let targets = targets.iter().map(|target| dir.join(target)).collect();
        Host { kind: NodeKind::Storage, settings, targets, reserve: |_| 0 }
    }

    /// Opens the target directories of `host`, and returns the text of the first refusal.
    fn problem(host: &Host) -> String {
        let node = NodeDirectory::open(&host.settings.directory, DirectoryKind::StorageNode);
        let node = node.unwrap();
        let mut opened = host.targets.iter().map(|path| host.open_target(path, &node));
        opened.find_map(Result::err).expect("one is refused").to_string()
    }

    #[test]
    fn init_adds_targets_and_refuses_foreign_directories() {
        let dir = tempfile::tempdir().unwrap();
        let token_1 = token(1);
        let init = |node: &str, targets: &[&str], token: &JoinToken| {
            host(dir.path(), node, targets).initialise(token.clone())
        };
        init("n", &["a"], &token_1).unwrap();
        init("n", &["a", "b"], &token_1).unwrap();
        let again = init("n", &["a", "b"], &token_1).unwrap_err().to_string();
        assert!(again.contains("without --init"), "{again}");
        let foreign = init("n", &["a", "c"], &token(2)).unwrap_err().to_string();
        assert!(foreign.contains("cluster 0202"), "{foreign}");
        init("m", &["d"], &token_1).unwrap();
        let stolen = init("m", &["d", "a"], &token_1).unwrap_err().to_string();
        assert!(stolen.contains("belongs to node") && stolen.contains("/a:"), "{stolen}");
        let stolen = problem(&host(dir.path(), "m", &["d", "a"]));
        assert!(stolen.contains("belongs to node") && stolen.contains("/a:"), "{stolen}");
        let blank = problem(&host(dir.path(), "m", &["e"]));
        assert!(blank.contains("--init"), "{blank}");
    }
}

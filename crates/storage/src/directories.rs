//! The directories of a storage service: its own, and one for each target.

use crate::settings::StorageSettings;
use skep_format::identity::{DirectoryKind, Identity};
use skep_rpc::JoinToken;
use skep_service::NodeDirectory;
use skep_store::identity::{Directory, is_initialised};
use skep_types::{Error, ErrorCode, NodeId, Result, TargetId};
use std::path::Path;

/// Makes blank directories those of a new storage node and its targets. Of a node that there is
/// already, the targets that were added to the settings. What was interrupted goes on where it was.
///
/// # Errors
/// `Configuration` if there is nothing to make, a directory isn't blank, or belongs to another
/// cluster or node; the context says what to do.
pub fn initialise(settings: &StorageSettings, token: JoinToken) -> Result<()> {
    let path = &settings.node.directory;
    let is_new = !is_initialised(path);
    let node = if is_new {
        NodeDirectory::initialise(path, DirectoryKind::StorageNode, token)?
    } else {
        let node = NodeDirectory::open(path, DirectoryKind::StorageNode)?;
        if node.token.cluster != token.cluster {
            return Err(refused(
                path,
                &format!(
                    "belongs to cluster {}, but the token is of cluster {}",
                    node.token.cluster, token.cluster
                ),
            ));
        }
        node
    };
    let mut made = 0;
    for target in &settings.targets {
        if is_initialised(target) {
            drop(open_target(target, &node)?);
            continue;
        }
        let identity = Identity {
            kind: DirectoryKind::StorageTarget,
            target_uuid: skep_env::random_u128(),
            target: TargetId::default(),
            node: NodeId::default(),
            ..*node.directory.identity()
        };
        drop(Directory::initialise(target, identity)?);
        made += 1;
    }
    if made == 0 && !is_new {
        return Err(refused(
            path,
            "is a storage node already, and so are all its targets; start without --init",
        ));
    }
    Ok(())
}

/// Opens the directories of a service.
pub(crate) fn open(settings: &StorageSettings) -> Result<(NodeDirectory, Vec<Directory>)> {
    let node = NodeDirectory::open(&settings.node.directory, DirectoryKind::StorageNode)?;
    let targets = settings.targets.iter().map(|path| open_target(path, &node));
    let targets = targets.collect::<Result<_>>()?;
    Ok((node, targets))
}

fn open_target(path: &Path, node: &NodeDirectory) -> Result<Directory> {
    let own = node.directory.identity();
    let target = Directory::open(path, DirectoryKind::StorageTarget, Some(own.cluster))?;
    let found = target.identity();
    if found.node_uuid != own.node_uuid {
        return Err(refused(
            path,
            &format!(
                "storage target {} belongs to node {} ({:032x}), not to node {} ({:032x}) in {}; \
                 name it in that node's settings",
                found.target,
                found.node,
                found.node_uuid,
                own.node,
                own.node_uuid,
                node.directory.path().display()
            ),
        ));
    }
    Ok(target)
}

fn refused(path: &Path, what: &str) -> Error {
    Error::new(ErrorCode::Configuration, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_rpc::Secret;
    use skep_types::ClusterId;

    fn token(cluster: u8) -> JoinToken {
        JoinToken {
            cluster: ClusterId::new([cluster; 16]),
            secret: Secret::generate(),
            addresses: vec!["127.0.0.1:1".into()],
        }
    }

    fn settings(dir: &Path, node: &str, targets: &[&str]) -> StorageSettings {
        let mut settings = StorageSettings::default();
        settings.node.directory = dir.join(node);
        settings.targets = targets.iter().map(|target| dir.join(target)).collect();
        settings
    }

    #[test]
    fn targets_are_added_to_a_node_and_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let token_1 = token(1);
        let init = |node: &str, targets: &[&str], token: &JoinToken| {
            initialise(&settings(dir.path(), node, targets), token.clone())
        };
        init("n", &["a"], &token_1).unwrap();
        init("n", &["a", "b"], &token_1).unwrap();
        let (node, targets) = open(&settings(dir.path(), "n", &["a", "b"])).unwrap();
        assert_eq!(targets.len(), 2);
        drop((node, targets));
        let again = init("n", &["a", "b"], &token_1).unwrap_err().to_string();
        assert!(again.contains("without --init"), "{again}");
        let foreign = init("n", &["a", "c"], &token(2)).unwrap_err().to_string();
        assert!(foreign.contains("cluster 0202"), "{foreign}");
        init("m", &["d"], &token_1).unwrap();
        let stolen = open(&settings(dir.path(), "m", &["d", "a"])).unwrap_err().to_string();
        assert!(stolen.contains("belongs to node") && stolen.contains("/a:"), "{stolen}");
        let blank = open(&settings(dir.path(), "m", &["e"])).unwrap_err().to_string();
        assert!(blank.contains("--init"), "{blank}");
    }
}

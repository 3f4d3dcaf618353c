//! Initialises and opens the directories of a node and of its targets. Refuses directories that
//! belong to other nodes or clusters.

use super::{Host, absolute};
use crate::cached_map;
use crate::directory::{NodeDirectory, load_token};
use crate::known_map;
use crate::mount_points::{is_on_root, unmounted_above};
use crate::tokens;
use skep_format::identity::{DirectoryKind, Identity as DirectoryIdentity};
use skep_rpc::JoinToken;
use skep_store::identity::{Directory, is_initialised};
use skep_types::map::Consistency;
use skep_types::{
    ClusterId, ClusterMap, Error, ErrorCode, GroupId, NodeId, Result, Target, TargetId, TargetKind,
};
use std::path::Path;

/// The changes that `--init` has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Initialised {
    /// The cluster of the node.
    pub cluster: ClusterId,
    /// Whether the node itself is new.
    pub is_new: bool,
    /// Whether the token of an existing node was replaced.
    pub has_new_token: bool,
    /// Number of targets that `--init` has initialised.
    pub new_targets: usize,
}

impl Host {
    /// Initialises blank directories for a new node and its targets in the token's cluster. If the
    /// node is initialised already, initialises only the targets that an administrator has added to
    /// its settings. Also stores `token` if it differs from the token in the directory. After an
    /// interrupted call, the next call completes the initialisation.
    ///
    /// Only a new node needs a token.
    ///
    /// # Errors
    /// - `Exists` if there is nothing to initialise.
    /// - `Configuration` if the token of a new node is missing.
    /// - `Configuration` if a directory is not blank, belongs to another cluster or node, or is
    ///   below a mount point of `/etc/fstab` on which nothing is mounted.
    ///
    /// The context of an error contains a hint on how to fix the problem.
    pub fn initialise(&self, token: Option<JoinToken>) -> Result<Initialised> {
        let (node_kind, _, _) = self.kinds();
        let path = &self.settings.directory;
        let blank = self.targets.iter().filter(|target| !is_initialised(target));
        for blank in blank.chain((!is_initialised(path)).then_some(path)) {
            check_disk(blank)?;
        }
        let is_new = !is_initialised(path);
        let (node, has_new_token) = match (is_new, token) {
            (true, Some(token)) => (NodeDirectory::initialise(path, node_kind, token)?, false),
            (true, None) => return Err(no_token(path)),
            (false, token) => reopen(path, node_kind, token)?,
        };
        let mut new_targets = 0;
        for target in &self.targets {
            if is_initialised(target) {
                drop(self.open_target(target, &node)?);
                continue;
            }
            if is_on_root(target) {
                tracing::warn!(
                    "target {} is on the root file system of this host; if the target should be on \
                     its own disk, remove the directory, mount the disk, and repeat --init",
                    target.display()
                );
            }
            if let Some(warning) = former_target_warning(target, &node) {
                tracing::warn!("{warning}");
            }
            drop(Directory::initialise(target, self.new_identity(&node))?);
            new_targets += 1;
        }
        if !is_new && !has_new_token && new_targets == 0 {
            let what = format!(
                "cannot initialise {}: the directory, all targets of its node and this token are \
                 initialised already; start the service without --init. If the node was removed \
                 from the cluster and must join as a new node, first move this directory and the \
                 directories of all targets of the node away",
                path.display()
            );
            return Err(Error::new(ErrorCode::Exists, what));
        }
        Ok(Initialised { cluster: node.token.cluster, is_new, has_new_token, new_targets })
    }

    /// Returns the identity of a new target of `node`. Management has not assigned its id yet.
    pub(super) fn new_identity(&self, node: &NodeDirectory) -> DirectoryIdentity {
        let (_, target_kind, _) = self.kinds();
        DirectoryIdentity {
            kind: target_kind,
            node: NodeId::default(),
            target_uuid: skep_env::random_u128(),
            target: TargetId::default(),
            ..*node.directory.identity()
        }
    }

    /// Opens a target's directory and checks that the directory belongs to this node.
    pub(super) fn open_target(&self, path: &Path, node: &NodeDirectory) -> Result<Directory> {
        let (_, kind, _) = self.kinds();
        let own = node.directory.identity();
        if !is_initialised(path)
            && let Some(former) = former_target(path, node)
        {
            return Err(refused(path, &missing(&former, group_of(&former, node))));
        }
        let target = Directory::open(path, kind, Some(own.cluster))?;
        let owner = target.identity();
        if owner.node_uuid == own.node_uuid {
            return Ok(target);
        }
        let problem = format!(
            "{kind} {} belongs to node {} ({:032x}), not to node {} ({:032x}) in {}; name this \
             directory in the settings of the first of these nodes. If that node was removed from \
             the cluster, move the directory away",
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

/// Opens the directory of an initialised node, and stores `token` if it differs from the stored
/// token. Returns whether the tokens differ.
fn reopen(
    path: &Path,
    kind: DirectoryKind,
    token: Option<JoinToken>,
) -> Result<(NodeDirectory, bool)> {
    let mut node = NodeDirectory::open(path, kind)?;
    let Some(token) = token.filter(|token| *token != node.token) else { return Ok((node, false)) };
    let (own, cluster) = (node.token.cluster, token.cluster);
    if own != cluster {
        let problem = format!(
            "this directory belongs to cluster {own}, but the token is of cluster {cluster}; use a \
             token of cluster {own}, or another directory"
        );
        return Err(refused(path, &problem));
    }
    tokens::install(path, &token)?;
    node.token = load_token(path)?;
    Ok((node, true))
}

/// Returns the target of `node` that was in the directory `path`, according to the cached cluster
/// map of the node. Returns `None` if the map has no such target, or if there is no cached map.
fn former_target(path: &Path, node: &NodeDirectory) -> Option<Target> {
    let (map, path) = (cached_map::read(node)?, absolute(path));
    let own = node.directory.identity().node;
    map.targets.into_iter().find(|target| target.node == own && target.path == path)
}

/// Returns a warning if the directory `path` belongs to a target of `node` that may still exist.
/// Uses the newer of the maps that the node and the commands of this host have stored. An
/// administrator may have removed the target while the service was down.
fn former_target_warning(path: &Path, node: &NodeDirectory) -> Option<String> {
    let known = known_map::read(node.token.cluster).map(|known| known.map);
    let maps = cached_map::read(node).into_iter().chain(known);
    let map = maps.max_by_key(|map| map.version)?;
    warning_by(&map, path, node.directory.identity().node)
}

/// Returns the warning of [`former_target_warning`] according to `map`. `own` is the id of the
/// node.
fn warning_by(map: &ClusterMap, path: &Path, own: NodeId) -> Option<String> {
    let at = absolute(path);
    let former = map.targets.iter().find(|target| target.node == own && target.path == at)?;
    (former.consistency != Consistency::Bad).then(|| {
        format!(
            "{} was the directory of target {id} of this node, and --init makes a new target in \
             this directory. Version {} of the cluster map, the newest on this host, still has \
             target {id} and does not mark it as lost. If the disk of {id} still exists, remove \
             the new directory and mount the disk. If {id} has been removed from the cluster since \
             then, no action is needed",
            path.display(),
            map.version.raw(),
            id = former.id
        )
    })
}

/// Returns the group of a target of `node`, and the number of members of this group, according to
/// the cached cluster map of the node.
fn group_of(target: &Target, node: &NodeDirectory) -> Option<(GroupId, usize)> {
    let map = cached_map::read(node)?;
    map.group_of(target.id).map(|group| (group.id, group.members.len()))
}

/// Returns the error text for a target of this node whose directory is missing, with the possible
/// remedies. `group` is the group of the target, with the number of members of this group.
fn missing(target: &Target, group: Option<(GroupId, usize)>) -> String {
    let Target { id, consistency, kind, .. } = target;
    // The text is short, because the cluster map truncates the path and this text together to
    // `TargetHealth::MAX_PROBLEM_CHARS`.
    let data = format!(
        "this is the directory of target {id}, whose data is missing: mount the disk of the target"
    );
    match (consistency, kind, group) {
        (Consistency::Bad, ..) => format!(
            "this was the directory of target {id}, which is marked as lost: for a new target, \
             mount the new disk, stop the service, run the service with --init, and start the \
             service; otherwise remove the directory from the settings of the service"
        ),
        (_, TargetKind::Metadata, Some((group, 2..))) => format!(
            "{data}. If the disk is lost: run `skep group remove {group} {id}` and `skep target \
             remove {id}`, then run the service with --init, start the service, and run `skep \
             group add`",
            group = group.raw(),
            id = id.raw()
        ),
        (_, TargetKind::Metadata, _) => format!(
            "{data}. If the disk is lost, put the directory back from a copy: see \
             docs/operations/backups.md"
        ),
        (_, TargetKind::Storage, _) => format!(
            "{data}; if this data is lost for good, `skep target remove --lost {}` lists the files \
             of the target, and explains how to mark the target as lost",
            id.raw()
        ),
    }
}

/// Refuses a directory that would be created on the wrong file system.
pub(super) fn check_disk(path: &Path) -> Result<()> {
    match unmounted_above(path) {
        None => Ok(()),
        Some(point) => {
            let problem = format!(
                "/etc/fstab has a file system for {0} that is not mounted; mount this file system \
                 first (`mount {0}`)",
                point.display()
            );
            Err(refused(path, &problem))
        }
    }
}

fn no_token(path: &Path) -> Error {
    let problem = "the token of the cluster is missing; name the file that holds the token with \
                   --token-file (`skep cluster token --cluster DIRECTORY` on the management host \
                   prints the token)";
    refused(path, problem)
}

fn refused(path: &Path, problem: &str) -> Error {
    Error::new(ErrorCode::Configuration, format!("{}: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeSettings;
    use crate::directory::tests::token;
    use skep_types::NodeKind;

    fn host(dir: &Path, node: &str, targets: &[&str]) -> Host {
        let mut settings = NodeSettings::with_port(0);
        settings.directory = dir.join(node);
        let targets = targets.iter().map(|target| dir.join(target)).collect();
        Host { kind: NodeKind::Storage, settings, targets, reserve: |_| 0 }
    }

    /// Opens the target directories of `host`, and returns the error text of the first refusal.
    fn problem(host: &Host) -> String {
        let node = NodeDirectory::open(&host.settings.directory, DirectoryKind::StorageNode);
        let node = node.unwrap();
        let mut opened = host.targets.iter().map(|path| host.open_target(path, &node));
        opened.find_map(Result::err).expect("one of the directories is refused").to_string()
    }

    #[test]
    fn init_adds_targets_and_refuses_foreign_directories() {
        let dir = tempfile::tempdir().unwrap();
        let token_1 = token(1);
        let init = |node: &str, targets: &[&str], token: &JoinToken| {
            host(dir.path(), node, targets).initialise(Some(token.clone()))
        };
        init("n", &["a"], &token_1).unwrap();
        init("n", &["a", "b"], &token_1).unwrap();
        let again = init("n", &["a", "b"], &token_1).unwrap_err().to_string();
        assert!(again.contains("without --init") && again.contains("move"), "{again}");
        let foreign = init("n", &["a", "c"], &token(2)).unwrap_err().to_string();
        assert!(foreign.contains("cluster 0202"), "{foreign}");
        init("m", &["d"], &token_1).unwrap();
        let stolen = init("m", &["d", "a"], &token_1).unwrap_err().to_string();
        assert!(stolen.contains("belongs to node") && stolen.contains("/a:"), "{stolen}");
        let stolen = problem(&host(dir.path(), "m", &["d", "a"]));
        assert!(stolen.contains("belongs to node") && stolen.contains("/a:"), "{stolen}");
        assert!(stolen.contains("was removed from the cluster, move"), "{stolen}");
        let blank = problem(&host(dir.path(), "m", &["e"]));
        assert!(blank.contains("--init"), "{blank}");
    }

    /// Writes a cached map according to which the node in `dir/n` has a target in `dir/a`.
    fn cache_map(dir: &Path, consistency: Consistency) {
        let mut node = NodeDirectory::open(&dir.join("n"), DirectoryKind::StorageNode).unwrap();
        node.directory.assign(NodeId::new(3), TargetId::default()).unwrap();
        let mut map = skep_types::ClusterMap::empty(node.token.cluster);
        map.targets.push(Target {
            id: TargetId::new(6),
            kind: skep_types::TargetKind::Storage,
            node: NodeId::new(3),
            path: dir.join("a").display().to_string(),
            reachability: skep_types::map::Reachability::Online,
            consistency,
            health: skep_types::map::TargetHealth::default(),
            capacity: skep_types::map::Capacity::default(),
            capacity_pool: skep_types::map::CapacityPool::Normal,
        });
        let node_uuid = node.directory.identity().node_uuid;
        let bytes = skep_format::cached_map::CachedMap { node_uuid, map }.to_file();
        std::fs::write(dir.join("n").join(cached_map::CACHED_MAP_FILE), bytes).unwrap();
    }

    #[test]
    fn missing_disk_of_a_target_is_reported_with_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let with_target = host(dir.path(), "n", &["a"]);
        with_target.initialise(Some(token(1))).unwrap();
        std::fs::remove_dir_all(dir.path().join("a")).unwrap();
        cache_map(dir.path(), Consistency::Good);
        let lost = problem(&with_target);
        let words = [
            "the directory of target t6",
            "mount the disk of the target",
            "skep target remove --lost 6",
        ];
        assert!(words.iter().all(|word| lost.contains(word)), "{lost}");
        assert!(!lost.contains("--init"), "{lost}");
        // The other members of a metadata group also have the data of the target, so the data are
        // not lost.
        let metadata = Target::new(TargetId::new(6), TargetKind::Metadata, NodeId::new(3), "/a");
        let in_group = missing(&metadata, Some((GroupId::new(7), 2)));
        assert!(in_group.contains("`skep group remove 7 6`"), "{in_group}");
        assert!(in_group.contains("--init") && !in_group.contains("--lost"), "{in_group}");
        let alone = missing(&metadata, Some((GroupId::new(7), 1)));
        assert!(alone.contains("backups.md") && !alone.contains("--lost"), "{alone}");
        // A target that was marked as lost never returns to the cluster, so a new target can use
        // its directory.
        cache_map(dir.path(), Consistency::Bad);
        let given_up = problem(&with_target);
        assert!(given_up.contains("marked as lost") && given_up.contains("--init"), "{given_up}");
        assert_eq!(with_target.initialise(None).unwrap().new_targets, 1);
    }

    #[test]
    fn directory_of_a_lost_or_removed_target_causes_no_warning() {
        let own = NodeId::new(3);
        let mut map = ClusterMap::empty(ClusterId::default());
        map.targets = vec![Target::new(TargetId::new(6), TargetKind::Storage, own, "/disk/a")];
        let warning = |map: &ClusterMap| warning_by(map, Path::new("/disk/a"), own);
        let found = warning(&map).expect("a warning");
        assert!(
            found.contains("target t6") && found.contains("removed from the cluster"),
            "{found}"
        );
        map.targets[0].consistency = Consistency::Bad;
        assert_eq!(warning(&map), None, "the target is marked as lost");
        map.targets.clear();
        assert_eq!(warning(&map), None, "the target was removed");
    }

    #[test]
    fn init_of_an_initialised_node_replaces_its_token() {
        let dir = tempfile::tempdir().unwrap();
        let old = token(1);
        let new = JoinToken { addresses: vec!["10.0.0.2:7400".into()], ..old.clone() };
        let with_targets = |targets: &[&str]| host(dir.path(), "n", targets);
        let missing = with_targets(&["a"]).initialise(None).unwrap_err().to_string();
        assert!(missing.contains("--token-file"), "{missing}");
        with_targets(&["a"]).initialise(Some(old)).unwrap();
        let replaced = with_targets(&["a"]).initialise(Some(new.clone())).unwrap();
        assert!(replaced.has_new_token && !replaced.is_new && replaced.new_targets == 0);
        let stored = NodeDirectory::open(&dir.path().join("n"), DirectoryKind::StorageNode);
        assert_eq!(stored.unwrap().token, new);
        // The initialisation of a new target needs no token, because the node already has the
        // token.
        let added = with_targets(&["a", "b"]).initialise(None).unwrap();
        assert_eq!((added.has_new_token, added.new_targets), (false, 1));
        let again = with_targets(&["a", "b"]).initialise(None).unwrap_err();
        assert_eq!(again.code(), ErrorCode::Exists, "{again}");
    }
}

//! Finds the directories of a cluster's targets, and locks them, so that no service can use them
//! during the check.
//!
//! The module owns the search for the directories of services and targets, and the choice of the
//! cluster map for the check. The module does not read the records in these directories.

use skep_format::cached_map::CachedMap;
use skep_format::identity::{DirectoryKind, Identity};
use skep_store::identity::{Directory, read_identity};
use skep_types::{ClusterMap, Error, ErrorCode, Result, TargetId, TargetKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the file with the cached cluster map, in the directory of a metadata or storage service.
const CACHED_MAP_FILE: &str = "kept-map";
/// Maximum depth of the search below a root. The levels are the data directory, the directory of a
/// service, and the directory of a target. One more level is for targets on disks that are mounted
/// below a common directory.
const MAX_DEPTH: u32 = 4;

/// The directories of a cluster's targets, which are locked while this value exists.
#[derive(Debug)]
pub(crate) struct Directories {
    /// The newest of the cluster maps that the services have cached.
    pub(crate) map: ClusterMap,
    metadata: BTreeMap<TargetId, Directory>,
    storage: BTreeMap<TargetId, Directory>,
}

fn refused(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::Configuration, what)
}

/// The results of a search for directories.
#[derive(Default)]
struct Search {
    targets: Vec<(PathBuf, Identity)>,
    map: Option<ClusterMap>,
}

impl Search {
    fn visit(&mut self, path: &Path, depth: u32) -> Result<()> {
        let failed = |error: std::io::Error| Error::from(error).within(path.display());
        match read_identity(path)? {
            Some(identity) => match identity.kind {
                DirectoryKind::MetadataTarget | DirectoryKind::StorageTarget => {
                    self.targets.push((path.to_owned(), identity));
                    return Ok(());
                }
                DirectoryKind::Management => return Ok(()),
                DirectoryKind::MetadataNode | DirectoryKind::StorageNode => self.read_map(path)?,
            },
            None if depth == MAX_DEPTH => return Ok(()),
            None => {}
        }
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // The search does not follow symbolic links, so a link cannot lead it into a loop.
            if entry.file_type().map_err(failed)?.is_dir() && depth < MAX_DEPTH {
                self.visit(&entry.path(), depth + 1)?;
            }
        }
        Ok(())
    }

    fn read_map(&mut self, service: &Path) -> Result<()> {
        let path = service.join(CACHED_MAP_FILE);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| Error::from(error).within(path.display()))?,
        };
        let CachedMap { map, .. } =
            CachedMap::from_file(&bytes).map_err(|error| error.within(path.display()))?;
        if self.map.as_ref().is_none_or(|it| it.version < map.version) {
            self.map = Some(map);
        }
        Ok(())
    }
}

impl Directories {
    /// Searches the directories `roots` for targets, and locks all targets that the search finds.
    pub(crate) fn open(roots: &[PathBuf]) -> Result<Self> {
        let mut search = Search::default();
        for root in roots {
            if !root.is_dir() {
                let what = format!(
                    "cannot check {}: no such directory; name the data directory of `skep up`, or \
                     the directories of all services and targets of the stopped cluster",
                    root.display()
                );
                return Err(Error::new(ErrorCode::NotFound, what));
            }
            search.visit(root, 0)?;
        }
        let Some(map) = search.map else {
            return Err(refused(
                "cannot check: no service below the named directories has a cached cluster map; \
                 name the directories of the services, for example the data directory of `skep \
                 up`",
            ));
        };
        let mut found = Self { map, metadata: BTreeMap::new(), storage: BTreeMap::new() };
        for (path, identity) in search.targets {
            if identity.cluster != found.map.cluster {
                return Err(refused(format!(
                    "cannot check: {} belongs to cluster {}, and another directory to cluster {}; \
                     name the directories of one cluster",
                    path.display(),
                    identity.cluster,
                    found.map.cluster
                )));
            }
            let directory = Directory::open(&path, identity.kind, Some(identity.cluster))?;
            let all = match identity.kind {
                DirectoryKind::MetadataTarget => &mut found.metadata,
                _ => &mut found.storage,
            };
            if let Some(other) = all.insert(identity.target, directory) {
                return Err(refused(format!(
                    "cannot check: the directories {} and {} are the same target; name only one of \
                     these directories",
                    other.path().display(),
                    path.display()
                )));
            }
        }
        found.check_complete()?;
        Ok(found)
    }

    /// Refuses a check if the records of a metadata group are missing, since all counts would be
    /// wrong. Records are missing if the directory of a group's primary was not found, or if a
    /// target with records belongs to no group of the cached map.
    fn check_complete(&self) -> Result<()> {
        for (target, directory) in &self.metadata {
            let has_records = directory.path().join("store").exists();
            if has_records && self.map.group_of(*target).is_none() {
                return Err(refused(format!(
                    "cannot check: metadata target {target} has records, but the cached cluster \
                     map is older than its group; run the cluster for some seconds, and stop it"
                )));
            }
        }
        let groups = self.map.groups.iter().filter(|it| it.kind == TargetKind::Metadata);
        for group in groups {
            if !self.metadata.contains_key(&group.primary) {
                return Err(refused(format!(
                    "cannot check: the directory of metadata target {} (primary of group {}) is \
                     not below the named directories; name this directory too",
                    group.primary, group.id
                )));
            }
        }
        Ok(())
    }

    /// Returns each metadata target that is the primary of its group, with its directory.
    pub(crate) fn metadata_primaries(&self) -> impl Iterator<Item = (TargetId, &Directory)> {
        let is_primary = |target: TargetId| self.map.group_led_by(target).is_some();
        let all = self.metadata.iter().map(|(target, directory)| (*target, directory));
        all.filter(move |(target, _)| is_primary(*target))
    }

    /// Returns the directory of a metadata target. `None` means that the search did not find it.
    pub(crate) fn metadata_of(&self, target: TargetId) -> Option<&Directory> {
        self.metadata.get(&target)
    }

    /// Returns each storage target with its directory.
    pub(crate) fn storage(&self) -> impl Iterator<Item = (TargetId, &Directory)> {
        self.storage.iter().map(|(target, directory)| (*target, directory))
    }

    /// Returns a line of text for each metadata target that is in no group.
    pub(crate) fn targets_without_group(&self) -> Vec<String> {
        let others = self.metadata.keys().filter(|it| self.map.group_of(**it).is_none());
        others.map(|it| format!("metadata target {it}, which is in no group")).collect()
    }
}

//! Lists the chunk files of storage targets, and checks them against the inodes. Each chunk file
//! must belong to an inode, and each chunk file that an inode marks as synced must exist.
//!
//! The module finds chunk files by the names of files. The module does not read the contents of
//! chunk files, since a read would also have to check the checksums of a file. The module makes no
//! findings about targets and groups that are newer than the cached cluster map.

use crate::directories::Directories;
use crate::finding::{Finding, Findings};
use crate::records::{Inode, Records};
use skep_types::{ChunkFileKey, ClusterMap, Error, GroupId, InodeId, Result, TargetId, TargetKind};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Name of the directory in a storage target that contains all chunk files of the target.
const CHUNKS: &str = "chunks";
/// Number of directory levels between the directory [`CHUNKS`] and the chunk files.
const LEVELS: u32 = 2;

/// The chunk files of each storage target whose directory was found.
#[derive(Debug, Default)]
pub(crate) struct ChunkFiles(BTreeMap<TargetId, BTreeSet<ChunkFileKey>>);

impl ChunkFiles {
    /// Lists the chunk files of all storage targets in `directories`.
    pub(crate) fn read(directories: &Directories) -> Result<Self> {
        let mut files = Self::default();
        for (target, directory) in directories.storage() {
            let keys = files.0.entry(target).or_default();
            list(&directory.path().join(CHUNKS), LEVELS, keys)?;
        }
        Ok(files)
    }

    /// Returns the total number of chunk files on all targets.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().map(|keys| keys.len() as u64).sum()
    }

    /// Returns a line of text for each storage target in the map whose directory was not found.
    pub(crate) fn missing_targets(&self, map: &ClusterMap) -> Vec<String> {
        let targets = map.targets.iter().filter(|it| it.kind == TargetKind::Storage);
        let missing = targets.filter(|it| !self.0.contains_key(&it.id));
        missing
            .map(|it| format!("storage target {}, whose directory was not named", it.id))
            .collect()
    }

    /// Returns the targets that belong to no group of the map. Such targets exist if the cached map
    /// is older than the newest group. A cached map lacks a group if a service stops right after
    /// management has created the group.
    fn without_group(&self, map: &ClusterMap) -> impl Iterator<Item = TargetId> {
        self.0.keys().copied().filter(|it| map.group_of(*it).is_none())
    }

    /// Returns a line of text for each storage target that has chunk files but belongs to no group
    /// of the map.
    pub(crate) fn unknown_groups(&self, map: &ClusterMap) -> Vec<String> {
        let with_files = |it: &TargetId| self.0.get(it).is_some_and(|keys| !keys.is_empty());
        let unknown = self.without_group(map).filter(with_files);
        let line = |target| {
            format!(
                "storage target {target}, whose group is not in the cached cluster map; run the \
                 cluster for some seconds, stop it, and check again"
            )
        };
        unknown.map(line).collect()
    }
}

fn list(directory: &Path, levels: u32, keys: &mut BTreeSet<ChunkFileKey>) -> Result<()> {
    let failed = |error: std::io::Error| Error::from(error).within(directory.display());
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if levels > 0 && entry.file_type().map_err(failed)?.is_dir() {
            list(&entry.path(), levels - 1, keys)?;
        } else if levels == 0 {
            keys.extend(
                entry.file_name().to_str().and_then(|name| name.parse::<ChunkFileKey>().ok()),
            );
        }
    }
    Ok(())
}

/// Checks that each chunk file belongs to an inode, and that the chunk files of each inode exist.
pub(crate) fn check(
    records: &Records,
    files: &ChunkFiles,
    map: &ClusterMap,
    findings: &mut Findings,
) {
    // Each new group gets a higher id than all earlier groups. So a group whose id is above all ids
    // in the map may be newer than the map.
    let has_newer_groups = files.without_group(map).next().is_some();
    let newest = map.groups.iter().map(|it| it.id).max().filter(|_| has_newer_groups);
    for (inode, record) in &records.inodes {
        check_groups(*inode, record, map, newest, findings);
        check_synced(*inode, record, files, map, findings);
    }
    // Chunk files without an inode only waste space, so the findings about them follow the findings
    // about lost data.
    for (target, keys) in &files.0 {
        let Some(group) = map.group_of(*target).map(|group| group.id) else { continue };
        for key in keys.iter().filter(|key| !is_owned(records, group, key)) {
            findings.add(Finding::Orphan { target: *target, key: *key });
        }
    }
}

/// Whether a chunk file on a target of `group` belongs to the stripe pattern of an inode, or is
/// recorded for removal.
fn is_owned(records: &Records, group: GroupId, key: &ChunkFileKey) -> bool {
    let pattern = records.inodes.get(&key.inode).and_then(|it| it.pattern.as_ref());
    let is_part = pattern.is_some_and(|pattern| {
        let component = pattern.components.get(usize::from(key.component));
        let named = component.and_then(|it| it.groups.get(usize::from(key.index)));
        pattern.generation == key.generation && named == Some(&group)
    });
    is_part || records.removals.contains(&(group, *key))
}

/// Checks that the groups in the stripe pattern of a file are storage groups of the cluster. If
/// `newest` is set, ignores groups with higher ids than `newest`.
fn check_groups(
    inode: InodeId,
    record: &Inode,
    map: &ClusterMap,
    newest: Option<GroupId>,
    findings: &mut Findings,
) {
    let Some(pattern) = &record.pattern else { return };
    let groups: BTreeSet<_> = pattern.components.iter().flat_map(|it| &it.groups).collect();
    for group in groups.into_iter().filter(|it| newest.is_none_or(|newest| **it <= newest)) {
        if map.group(*group).is_none_or(|it| it.kind != TargetKind::Storage) {
            findings.add(Finding::NoGroup { inode, group: *group });
        }
    }
}

/// Checks that all chunk files that an inode marks as synced exist. Skips targets whose directories
/// were not found.
fn check_synced(
    inode: InodeId,
    record: &Inode,
    files: &ChunkFiles,
    map: &ClusterMap,
    findings: &mut Findings,
) {
    let Some(pattern) = &record.pattern else { return };
    for (component, index) in record.synced.numbers().filter_map(|it| pattern.chunk_file_at(it)) {
        let group = pattern.components[usize::from(component)].groups[usize::from(index)];
        let Some(target) = map.group(group).map(|it| it.primary) else { continue };
        let key = ChunkFileKey { inode, generation: pattern.generation, component, index };
        if files.0.get(&target).is_some_and(|keys| !keys.contains(&key)) {
            findings.add(Finding::NoChunkFile { target, key });
        }
    }
}

//! `skep entry info`: shows details of a file or directory in a mount.

use super::explanation::{effect_of_absent, why};
use crate::access::{Access, ClusterArgs, block_on};
use crate::help::{Example, examples};
use crate::output::{self, print, size, utc};
use crate::path_lookup::entry_at;
use crate::tree_walk::walk;
use crate::{through_mount, view};
use serde::Serialize;
use skep_cluster::patterns;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_storage::chunk_store::path_in_target;
use skep_types::{
    ChunkFileKey, ClusterMap, Error, FileKind, GroupId, InodeId, NodeId, PatternOrigin,
    PatternRequest, Redundancy, Result, SHARD_COUNT, StripePattern, Target, TargetKind, Timestamp,
};
use skep_wire::metadata::{EntryInfo, GetEntryInfo};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &[Example] = &[
    ("show the targets of a file", "skep entry info /mnt/skep/file"),
    ("also show the chunk files of the file", "skep entry info --verbose /mnt/skep/file"),
    (
        "show all files below a directory, with one line of JSON for each file",
        "skep entry info --recursive --output ndjson /mnt/skep/results",
    ),
];

/// Show details of files and directories: ids, size, stripe pattern, targets
///
/// The mount answers, so no token is needed. With one path, the JSON output is an object; with
/// several paths or --recursive, the JSON output is a list.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    query: ClusterArgs,
    /// Also show chunk files, links and open sessions
    #[arg(long)]
    verbose: bool,
    /// Also show all files and directories below the given directories
    #[arg(long = "recursive", short = 'r')]
    is_recursive: bool,
    /// Paths of files or directories in a mount
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Timeout of the request to the metadata target.
const PATIENCE: Duration = Duration::from_secs(10);

/// The details of an entry, as JSON.
#[derive(Debug, Serialize)]
struct Info {
    #[serde(serialize_with = "crate::output::path")]
    path: PathBuf,
    kind: &'static str,
    entry_id: String,
    parent_id: String,
    /// The virtual shard of the inode, which is the first part of the entry id.
    shard: u16,
    metadata: Option<TargetLocation>,
    size_bytes: u64,
    links: u32,
    open_sessions: u32,
    /// Time of the last modification, in UTC.
    modified_at: String,
    pattern: Option<PatternInfo>,
}

/// A target, and the server of this target.
#[derive(Debug, Serialize)]
struct TargetLocation {
    target: u32,
    group: u32,
    node: u32,
    node_name: String,
    /// The server's failure domain.
    domain: Option<String>,
    path: String,
}

#[derive(Debug, Serialize)]
struct PatternInfo {
    generation: u32,
    /// The origin of the pattern: the settings of the cluster, the directory, or the request that
    /// created the file.
    origin: &'static str,
    components: Vec<ComponentInfo>,
}

#[derive(Debug, Serialize)]
struct ComponentInfo {
    start_byte: u64,
    redundancy: &'static str,
    chunk_bytes: u64,
    targets_wanted: u16,
    chooser: &'static str,
    /// Explains how the targets were chosen, and why a file may have fewer targets than requested.
    why: String,
    targets: Vec<Stripe>,
    /// The smallest and the largest number of the file's targets on one storage server.
    targets_per_server: Option<(usize, usize)>,
    /// The smallest and the largest number of the file's targets in one failure domain. `None` if
    /// no server has a domain.
    targets_per_domain: Option<(usize, usize)>,
}

#[derive(Debug, Serialize)]
struct Stripe {
    /// Name of the chunk file. `None` if the entry is a directory.
    chunk_file: Option<String>,
    /// Path of the chunk file on its server. The chunk file exists only if a client has written
    /// data to it.
    chunk_file_path: Option<String>,
    #[serde(flatten)]
    place: TargetLocation,
}

pub(crate) fn run(args: InfoArgs) -> Result<()> {
    let InfoArgs { query, verbose, is_recursive, paths } = args;
    let mut source = Source { query, map: None };
    if let ([path], false) = (&paths[..], is_recursive) {
        return print(&source.info(path)?, |info| as_text(info, verbose));
    }
    let is_list = output::is_one_value();
    let mut list = Vec::new();
    let mut is_first = true;
    walk(&paths, is_recursive, &mut |path| {
        let info = source.info(path)?;
        if is_list {
            list.push(info);
            return Ok(());
        }
        // In formats other than JSON, CSV and XML, the command prints each file immediately after
        // reading the details of this file. So the memory of the command does not grow with the
        // number of files.
        let blank_line = if is_first { "" } else { "\n" };
        is_first = false;
        print(&info, |info| blank_line.to_owned() + &as_text(info, verbose))
    })?;
    if is_list { print(&list, |_| String::new()) } else { Ok(()) }
}

/// The source of the details: the mount of each path, or the cluster that the options name.
struct Source {
    query: ClusterArgs,
    /// The device number of a mount, and the cluster map that was read from this mount. Paths of
    /// the same mount share this map.
    map: Option<(u64, ClusterMap)>,
}

impl Source {
    fn info(&mut self, path: &Path) -> Result<Info> {
        let (inode, place) = entry_at(path)?;
        let device = std::fs::metadata(&place).map_or(0, |found| found.dev());
        // If no option names a cluster, the details come from the mount, which needs no token.
        if !self.query.is_explicit()
            && let Some(map) = self.map_at(device, &place)?
        {
            if let Some(info) = special(path, &place, (inode, map))? {
                return Ok(info);
            }
            if let Some(info) = through_mount::entry_info(path)? {
                return describe(map, inode, path.to_owned(), &info);
            }
        }
        let access = self.query.access(Some(&place))?;
        let (map, info) = block_on(async move { ask(&access, inode).await })?;
        describe(&map, inode, path.to_owned(), &info)
    }

    /// Returns the cluster map of a mount. Reads the map once for all paths of the mount.
    fn map_at(&mut self, device: u64, place: &Path) -> Result<Option<&ClusterMap>> {
        if self.map.as_ref().is_none_or(|(of, _)| *of != device) {
            self.map = through_mount::cluster_map(place)?.map(|map| (device, map));
        }
        Ok(self.map.as_ref().map(|(_, map)| map))
    }
}

async fn ask(access: &Access, inode: InodeId) -> Result<(ClusterMap, EntryInfo)> {
    let map = access.map().await?;
    let cell = MapCell::new(map.clone(), skep_types::NodeId::default());
    let router = Router::new(access.identity(), Channel::random(), cell);
    let options = CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() };
    let info = router.call_inode(inode, &GetEntryInfo { inode }, options).await?;
    Ok((map, info))
}

/// Returns the details of a symbolic link or a special file in `directory`. The kernel does not
/// pass requests for their extended attributes to the mount. `None` means that the path is a file
/// or a directory.
fn special(
    path: &Path,
    directory: &Path,
    (inode, map): (InodeId, &ClusterMap),
) -> Result<Option<Info>> {
    let failed = |error: std::io::Error| {
        Error::from(error).within(format_args!("cannot read the attributes of {}", path.display()))
    };
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    let kind = FileKind::from_mode(found.mode());
    let Some(kind) = kind.filter(|it| ![FileKind::Regular, FileKind::Directory].contains(it))
    else {
        return Ok(None);
    };
    let parent = std::fs::metadata(directory).map_err(failed)?.ino();
    let nanoseconds = u32::try_from(found.mtime_nsec()).unwrap_or(0);
    Ok(Some(Info {
        path: path.to_owned(),
        kind: kind_word(kind),
        entry_id: inode.to_string(),
        parent_id: InodeId::new(parent).to_string(),
        shard: inode.shard().raw(),
        metadata: map.shard_group(inode.shard()).map(|group| place(map, group)),
        size_bytes: found.size(),
        links: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
        // The kernel opens symbolic links, pipes, sockets and devices without a request to the
        // mount. So no session has such a file open.
        open_sessions: 0,
        modified_at: utc(Timestamp { seconds: found.mtime(), nanoseconds }),
        pattern: None,
    }))
}

fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "named pipe",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

fn place(map: &ClusterMap, group: GroupId) -> TargetLocation {
    let target: Option<&Target> = map.primary(group);
    let node = target.and_then(|target| map.node(target.node));
    TargetLocation {
        target: target.map_or(0, |target| target.id.raw()),
        group: group.raw(),
        node: node.map_or(0, |node| node.id.raw()),
        node_name: node.map_or_else(|| "unknown".into(), |node| node.name.clone()),
        domain: node.and_then(view::domain),
        path: target.map(|target| target.path.clone()).unwrap_or_default(),
    }
}

fn describe(map: &ClusterMap, inode: InodeId, path: PathBuf, info: &EntryInfo) -> Result<Info> {
    let attributes = &info.attributes;
    Ok(Info {
        path,
        kind: kind_word(attributes.kind),
        entry_id: inode.to_string(),
        parent_id: info.parent.to_string(),
        shard: inode.shard().raw(),
        metadata: map.shard_group(inode.shard()).map(|group| place(map, group)),
        size_bytes: attributes.size,
        links: attributes.links,
        open_sessions: info.open_sessions,
        modified_at: utc(attributes.modified),
        pattern: effective(map, info)?
            .map(|pattern| describe_pattern(map, (inode, attributes.kind), &pattern)),
    })
}

/// Returns the pattern of a file, or the pattern that a new file in a directory gets.
pub(crate) fn effective(map: &ClusterMap, info: &EntryInfo) -> Result<Option<StripePattern>> {
    Ok(match info.attributes.kind {
        FileKind::Directory => {
            let default = info.pattern.as_ref().map(PatternRequest::from_record).transpose()?;
            let merged = patterns::merge(None, default.as_ref());
            Some(patterns::resolve(&merged, &map.policy))
        }
        _ => info.pattern.clone(),
    })
}

/// Counts the targets of `groups` for each value of `place`, such as the server or its failure
/// domain. Returns the smallest and the largest count. A server or domain without a target of
/// `groups` counts as 0.
fn allocation<P: Ord>(
    map: &ClusterMap,
    groups: &[GroupId],
    place: impl Fn(NodeId) -> P,
) -> Option<(usize, usize)> {
    let stored = map.groups.iter().filter(|group| group.kind == TargetKind::Storage);
    let servers = stored.filter_map(|group| map.primary(group.id)).map(|target| target.node);
    let mut counts: BTreeMap<P, usize> = servers.map(|node| (place(node), 0)).collect();
    for target in groups.iter().filter_map(|group| map.primary(*group)) {
        *counts.entry(place(target.node)).or_default() += 1;
    }
    let counts = || counts.values().copied();
    counts().min().zip(counts().max()).filter(|_| !groups.is_empty())
}

fn describe_pattern(
    map: &ClusterMap,
    (inode, kind): (InodeId, FileKind),
    pattern: &StripePattern,
) -> PatternInfo {
    // A server without a failure domain counts as a domain by itself.
    let domain_of = |node: NodeId| map.node(node).and_then(view::domain).ok_or(node);
    let mut components = Vec::new();
    for (number, component) in pattern.components.iter().enumerate() {
        // After a move of the inline bytes to storage, the inline component contains no bytes.
        if component.is_inline() && pattern.has_moved_inline() {
            continue;
        }
        let stripe = |(index, group): (usize, &GroupId)| {
            let place = place(map, *group);
            let key = ChunkFileKey {
                inode,
                generation: pattern.generation,
                component: number as u16,
                index: index as u16,
            };
            let has_chunk_files = pattern.generation > 0;
            let on_server = || Path::new(&place.path).join(path_in_target(&key));
            Stripe {
                chunk_file: has_chunk_files.then(|| key.to_string()),
                chunk_file_path: has_chunk_files.then(|| on_server().display().to_string()),
                place,
            }
        };
        components.push(ComponentInfo {
            start_byte: component.start,
            redundancy: match component.redundancy {
                Redundancy::Stripe => "stripe",
                Redundancy::Inline => "inline",
            },
            chunk_bytes: component.chunk_bytes,
            targets_wanted: component.wanted,
            chooser: if component.is_inline() { "none" } else { component.chooser.word() },
            why: why(map, component) + &effect_of_absent(map, kind, &component.groups),
            targets_per_server: allocation(map, &component.groups, |node| node),
            targets_per_domain: allocation(map, &component.groups, domain_of)
                .filter(|_| map.has_domains()),
            targets: component.groups.iter().enumerate().map(stripe).collect(),
        });
    }
    let origin = match pattern.origin {
        PatternOrigin::Cluster => "cluster",
        PatternOrigin::Directory => "directory",
        PatternOrigin::Asked => "asked",
    };
    PatternInfo { generation: pattern.generation, origin, components }
}

fn as_text(info: &Info, verbose: bool) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    line(format!("Path: {}", info.path.display()));
    line(format!("Entry type: {}", info.kind));
    line(format!("EntryID: {}", info.entry_id));
    line(format!("ParentID: {}", info.parent_id));
    line(format!("Shard: {0} of {SHARD_COUNT} ({0:X} in the EntryID)", info.shard));
    match &info.metadata {
        Some(it) => line(format!(
            "Metadata node: {} [ID: {}], target {}, group {}{}",
            it.node_name,
            it.node,
            it.target,
            it.group,
            if verbose { format!(", {}", it.path) } else { String::new() }
        )),
        None => line(
            "Metadata node: none, since no metadata target serves the shard of this inode".into(),
        ),
    }
    match (info.kind, info.size_bytes) {
        // The size of a directory is the number of its entries.
        ("directory", 1) => line("Size: 1 entry".into()),
        ("directory", entries) => line(format!("Size: {entries} entries")),
        (_, bytes) => line(format!("Size: {bytes} ({})", size(bytes))),
    }
    if verbose {
        line(format!("Links: {}", info.links));
        line(format!("Open sessions: {}", info.open_sessions));
    }
    if let Some(pattern) = &info.pattern {
        line("Stripe pattern details:".into());
        for part in &pattern.components {
            describe_component(info, pattern, part, verbose, &mut line);
        }
        line(format!(
            "+ Set by: {}",
            match pattern.origin {
                "cluster" => "the cluster's settings",
                "directory" if info.kind == "directory" => "this directory",
                "directory" => "the directory in which the file was created",
                _ => "the request that created the file",
            }
        ));
    }
    text
}

fn describe_component(
    info: &Info,
    pattern: &PatternInfo,
    part: &ComponentInfo,
    verbose: bool,
    line: &mut impl FnMut(String),
) {
    if pattern.components.len() > 1 {
        line(format!("+ From byte {}:", part.start_byte));
    }
    line(format!("+ Type: {}", part.redundancy));
    if part.redundancy == "inline" {
        let mut starts = pattern.components.iter().map(|it| it.start_byte);
        let end = starts.find(|start| *start > part.start_byte).unwrap_or_default();
        line(format!("+ Bytes: {} ({})", size(end), part.why));
        return;
    }
    line(format!("+ Chunksize: {}", size(part.chunk_bytes)));
    // A directory has no data and so no targets, unless its pattern lists targets. The pattern of a
    // directory applies only to new files.
    let actual = match info.kind {
        "directory" => String::new(),
        _ => format!("; actual: {}", part.targets.len()),
    };
    line(format!("+ Number of storage targets: desired: {}{actual}", part.targets_wanted));
    line(format!("+ Chosen by: {} ({})", part.chooser, part.why));
    if let Some((min, max)) = part.targets_per_server {
        line(format!("+ Number of targets per server (min,max): ({min},{max})"));
    }
    if let Some((min, max)) = part.targets_per_domain {
        line(format!("+ Number of targets per failure domain (min,max): ({min},{max})"));
    }
    if part.targets.is_empty() {
        return;
    }
    line("+ Storage targets:".into());
    for Stripe { chunk_file_path, place, .. } in &part.targets {
        let more = match chunk_file_path {
            Some(path) if verbose => format!(", group {}, chunk file {path}", place.group),
            _ => String::new(),
        };
        let domain = place.domain.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
        let TargetLocation { target, node_name, node, .. } = place;
        line(format!("  + {target} @ {node_name} [ID: {node}{domain}]{more}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::ClusterId;

    #[test]
    fn entry_info_describes_a_link_itself_and_not_its_target() {
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("target", &link).unwrap();
        let (inode, map) = (InodeId::new(9), ClusterMap::empty(ClusterId::default()));
        let info = special(&link, scratch.path(), (inode, &map)).unwrap().unwrap();
        assert_eq!((info.kind, info.links, info.size_bytes), ("symbolic link", 1, 6));
        assert_eq!((info.entry_id.as_str(), info.shard), ("0-9", 0));
        let of_kind = |kind, size_bytes| {
            let info = special(&link, scratch.path(), (inode, &map)).unwrap().unwrap();
            as_text(&Info { kind, size_bytes, ..info }, false)
        };
        let (directory, file) = (of_kind("directory", 5), of_kind("regular file", 5));
        assert!(directory.contains("\nSize: 5 entries\n"), "{directory}");
        assert!(file.contains("\nSize: 5 (5B)\n"), "{file}");
        let elsewhere = InodeId::from_parts(skep_types::ShardId::new(42), 9);
        let elsewhere = special(&link, scratch.path(), (elsewhere, &map)).unwrap().unwrap();
        let shown = as_text(&elsewhere, false);
        assert!(shown.contains("EntryID: 2A-9\n"), "{shown}");
        assert!(shown.contains("Shard: 42 of 65536 (2A in the EntryID)\n"), "{shown}");
        let found = special(scratch.path(), scratch.path(), (inode, &map)).unwrap();
        assert!(found.is_none(), "a directory");
    }
}

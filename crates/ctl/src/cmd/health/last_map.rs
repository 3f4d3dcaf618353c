//! The newest cluster map that this host has, for `skep health check`, `skep stats` and `skep why`
//! while management does not answer. The map may be in a mount, in the directory of a cluster or a
//! service, or in the file of this host.

use super::problem::Problem;
use crate::access::{Access, is_silence};
use crate::output::utc;
use crate::{mounts, through_mount};
use skep_service::cached_map::CACHED_MAP_FILE;
use skep_service::known_map::{self, KnownMap};
use skep_types::map::Reachability;
use skep_types::{ClusterMap, Error, Result, Timestamp};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A cluster map that does not come from management.
#[derive(Debug)]
pub(in crate::cmd) struct LastMap {
    /// The map. Its reachability is replaced: all nodes are offline and all targets are online, so
    /// that only a failed connection to a service causes a problem.
    pub(in crate::cmd) map: ClusterMap,
    /// A note with the origin of the map, if the map may be older than the map of a mount.
    pub(super) note: Option<Problem>,
}

/// Gets the cluster map from management. If management does not answer, returns the newest map that
/// this host has, and the error of the request to management.
///
/// # Errors
/// - Errors in the reply of management.
/// - The error of the request, if management does not answer and this host has no map.
pub(in crate::cmd) async fn newest(access: &Access) -> Result<(ClusterMap, Option<Error>)> {
    match access.map().await {
        Err(error) if is_silence(&error) => match find(access) {
            Some(last) => Ok((last.map, Some(error))),
            None => Err(error),
        },
        map => Ok((map?, None)),
    }
}

/// Returns the newest cluster map that this host has. `None` means that this host has no map.
pub(in crate::cmd) fn find(access: &Access) -> Option<LastMap> {
    let of_cluster = |point: PathBuf| {
        let map = through_mount::cluster_map(&point).ok().flatten();
        map.filter(|map| map.cluster == access.token.cluster)
    };
    if let Some(map) = mounts::mount_points().into_iter().find_map(of_cluster) {
        return Some(LastMap { map: without_reachability(map), note: None });
    }
    let directory = Path::new(&access.name);
    let in_directory = cached_maps(directory).into_iter();
    let read = in_directory.filter_map(|file| known_map::read_file(&file, access.token.cluster));
    let found = read.chain(known_map::read(access.token.cluster));
    let newest = found.max_by_key(|it| it.map.version)?;
    let note = Some(note(&newest));
    Some(LastMap { map: without_reachability(newest.map), note })
}

/// Returns the files with the cached maps of services in a directory: the directory of a service,
/// or the data directory of a cluster.
fn cached_maps(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let services = entries.map(|entry| entry.path());
    services.chain([directory.to_owned()]).map(|it| it.join(CACHED_MAP_FILE)).collect()
}

fn note(known: &KnownMap) -> Problem {
    let changed = known.written_at.and_then(timestamp).map(utc);
    let changed = changed.map_or_else(String::new, |time| format!(", last changed at {time}"));
    Problem {
        key: "cached-map".into(),
        rule: "cached-map",
        what: format!(
            "management sends no cluster map, so this check uses version {} in {}{changed}",
            known.map.version.raw(),
            known.file.display()
        ),
        remedy: "servers that were added, moved or removed since then are missing or shown as \
                 unreachable; a host that mounts the cluster has a newer map"
            .into(),
        ..Problem::default()
    }
}

fn timestamp(time: SystemTime) -> Option<Timestamp> {
    let seconds = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(Timestamp { seconds: i64::try_from(seconds).ok()?, nanoseconds: 0 })
}

fn without_reachability(mut map: ClusterMap) -> ClusterMap {
    map.nodes.iter_mut().for_each(|node| node.reachability = Reachability::Offline);
    map.targets.iter_mut().for_each(|target| target.reachability = Reachability::Online);
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, MapVersion};
    use std::time::Duration;

    #[test]
    fn health_check_names_file_and_age_of_the_cached_map() {
        let version = MapVersion::new(12);
        let known = KnownMap {
            map: ClusterMap { version, ..ClusterMap::empty(ClusterId::default()) },
            file: "/var/cache/skep/a.map".into(),
            written_at: Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        };
        let words = "uses version 12 in /var/cache/skep/a.map, last changed at \
                     2023-11-14T22:13:20Z";
        let note = note(&known);
        assert!(note.what.ends_with(words), "{}", note.what);
    }

    #[test]
    fn cached_maps_of_a_service_and_of_skep_up_are_found() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("metadata-1")).unwrap();
        let found = cached_maps(place.path());
        let files = ["metadata-1/kept-map", "kept-map"].map(|it| place.path().join(it));
        assert_eq!(found, files);
        assert_eq!(cached_maps(Path::new("/absent")).len(), 1);
    }
}

//! The files of runs: sets their stripe patterns, and finds the targets that store them.
//!
//! The study accesses the files only through the mount, with the extended attributes that
//! docs/operations/patterns.md describes. For this reason, users without the cluster's token can
//! also run studies. File systems other than Skep do not have these attributes. On such a file
//! system, the study creates files without a pattern, and cannot find their targets.

use crate::limits::MAX_COUNT;
use crate::plan::{Access, Targets};
use crate::record::{Allocation, MinMax, Settings};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use skep_types::{Error, ErrorCode, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

const PATTERN: &str = "user.skep.pattern";
const MAP: &str = "user.skep.map";
/// Size of a buffer for the longest map of a file. The longest map has 16 components with 256
/// groups each.
const MAX_MAP_BYTES: usize = 1 << 20;

/// A storage target, and the server of this target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) server: String,
    pub(super) id: u32,
}

/// Creates an empty file. Sets the stripe pattern of the file if the run requires a pattern.
pub(super) fn create(path: &Path, pattern: Option<&str>) -> Result<()> {
    File::create_new(path).map_err(|error| {
        Error::from(error).within(format_args!("cannot create {}", path.display()))
    })?;
    let Some(pattern) = pattern else { return Ok(()) };
    set_pattern(path, pattern).inspect_err(|_| {
        // A file without the required pattern must not stay, so remove the file.
        let _ = std::fs::remove_file(path);
    })
}

/// Sets the stripe pattern of an empty file, or the pattern that new files in a directory get.
pub(super) fn set_pattern(path: &Path, pattern: &str) -> Result<()> {
    let set = rustix::fs::setxattr(path, PATTERN, pattern.as_bytes(), XattrFlags::empty());
    set.map_err(|errno| {
        let (code, why) = match errno {
            Errno::ACCESS => (
                ErrorCode::PermissionDenied,
                "the pattern exceeds the limits that root has set for users",
            ),
            Errno::NXIO => (ErrorCode::NotFound, "the pattern names an unknown target"),
            _ => (ErrorCode::Io, "the file system refuses the pattern"),
        };
        let what =
            format!("cannot set the pattern '{pattern}' of {}: {why} ({errno})", path.display());
        Error::new(code, what)
    })
}

/// Returns the targets of a file in stripe order. `None` if the file system does not report
/// targets.
pub(super) fn targets(path: &Path) -> Result<Option<Vec<Target>>> {
    let mut bytes = vec![0; MAX_MAP_BYTES];
    let text = match rustix::fs::getxattr(path, MAP, &mut bytes) {
        Ok(len) => String::from_utf8_lossy(&bytes[..len]).into_owned(),
        Err(Errno::NODATA | Errno::NOTSUP) => return Ok(None),
        Err(errno) => {
            let error = Error::from(std::io::Error::from(errno));
            return Err(
                error.within(format!("cannot read the attribute {MAP} of {}", path.display()))
            );
        }
    };
    let unreadable = || {
        let what = format!("cannot parse the attribute {MAP} of {}: {text}", path.display());
        Error::new(ErrorCode::Protocol, what)
    };
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, _, chunk, _, _, _, target, node, _] = words[..] else { return Err(unreadable()) };
        if chunk == "0" {
            // Metadata stores inline bytes, so inline bytes have no storage targets.
            continue;
        }
        let id = target.strip_prefix('t').and_then(|id| id.parse().ok()).ok_or_else(unreadable)?;
        found.push(Target { server: node.to_owned(), id });
    }
    Ok(Some(found))
}

/// Returns the targets of an application's files. Also returns the smallest and the largest number
/// of these targets on a server. `all` has the targets of all servers.
pub(super) fn allocation(files: &[Vec<Target>], all: &[Target]) -> Allocation {
    let used: BTreeSet<&Target> = files.iter().flatten().collect();
    let mut counts: BTreeMap<&str, u32> = all.iter().map(|it| (it.server.as_str(), 0)).collect();
    for target in &used {
        *counts.entry(&target.server).or_default() += 1;
    }
    let min_max = MinMax(
        counts.values().copied().min().unwrap_or(0),
        counts.values().copied().max().unwrap_or(0),
    );
    let targets = match files {
        // The targets of a single file stay in stripe order.
        [only] => only.iter().map(|it| it.id).collect(),
        _ => {
            let mut ids: Vec<u32> = used.iter().map(|it| it.id).collect();
            ids.sort_unstable();
            ids
        }
    };
    Allocation { targets, min_max }
}

/// Returns the targets among `all` that a run may use. If the run uses only some of the servers,
/// these are the targets of the first servers, in the order of their names. `all` is in the same
/// order.
pub(super) fn usable<'a>(settings: &Settings, all: &'a [Target]) -> &'a [Target] {
    let Some(servers) = settings.servers else { return all };
    let mut names: Vec<&str> = all.iter().map(|it| it.server.as_str()).collect();
    names.dedup();
    match names.get(servers as usize) {
        Some(next) => &all[..all.iter().position(|it| it.server == *next).unwrap_or(all.len())],
        None => all,
    }
}

/// Whether the study assigns targets to each file separately: each process has its own file, and
/// the run uses only some of the servers. With one pattern for all files, all processes would begin
/// on the same target.
pub(super) fn has_pattern_for_each_file(settings: &Settings) -> bool {
    settings.servers.is_some() && settings.access == Access::FilePerProcess
}

/// Returns the stripe pattern for an application's files. `None` means that the file system
/// decides. `all` are the targets that the run may use. `turn` rotates the targets that the study
/// selects. If the files have separate patterns, `file` is the index of the file, and also rotates
/// the targets.
pub(super) fn pattern(
    settings: &Settings,
    application: u32,
    file: usize,
    all: &[Target],
    turn: usize,
) -> Option<String> {
    let is_assigned = settings.targets != Targets::Chosen || settings.servers.is_some();
    if is_assigned && !all.is_empty() {
        let most = all.len().min(MAX_COUNT as usize);
        let count = settings.count.map_or(most, |count| count as usize);
        let first = match settings.targets {
            Targets::Shared => 0,
            Targets::Separate | Targets::Chosen => application as usize * count,
        };
        let order = alternating(all);
        let ids: Vec<String> = (0..count)
            .map(|index| order[(turn + first + file + index) % order.len()].to_string())
            .collect();
        return Some(format!("targets={}", ids.join(":")));
    }
    let words = [
        settings.count.map(|count| format!("count={count}")),
        settings.chooser.as_ref().map(|chooser| format!("chooser={chooser}")),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(","))
}

/// Returns all targets in an order in which neighbours are on different servers, as far as this is
/// possible.
fn alternating(all: &[Target]) -> Vec<u32> {
    let mut servers: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for target in all {
        servers.entry(&target.server).or_default().push(target.id);
    }
    let longest = servers.values().map(Vec::len).max().unwrap_or(0);
    (0..longest)
        .flat_map(|row| servers.values().filter_map(move |it| it.get(row).copied()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cache, DataPer, Operation};

    fn target(server: &str, id: u32) -> Target {
        Target { server: server.to_owned(), id }
    }

    fn two_by_four() -> Vec<Target> {
        (1..=8).map(|id| target(if id < 5 { "n1" } else { "n2" }, id)).collect()
    }

    fn settings(count: Option<u32>, chooser: Option<&str>, targets: Targets) -> Settings {
        Settings {
            data_bytes: 1 << 20,
            hosts: 1,
            processes: 1,
            count,
            chooser: chooser.map(str::to_owned),
            transfer_bytes: 1 << 20,
            access: Access::SharedFile,
            operation: Operation::Write,
            applications: 2,
            targets,
            data_per: DataPer::Application,
            servers: None,
            cache: Cache::Dropped,
            files: None,
        }
    }

    #[test]
    fn allocation_includes_servers_without_a_target() {
        let all = two_by_four();
        let of = |ids: &[u32]| -> Vec<Target> {
            ids.iter().map(|id| all[*id as usize - 1].clone()).collect()
        };
        let check = |files: &[&[u32]], min: u32, max: u32| {
            let files: Vec<Vec<Target>> = files.iter().map(|ids| of(ids)).collect();
            assert_eq!(allocation(&files, &all).min_max, MinMax(min, max), "{files:?}");
        };
        check(&[&[2, 3, 4, 5]], 1, 3);
        check(&[&[1, 2]], 0, 2);
        check(&[&[6, 1]], 1, 1);
        // A target that several files use counts once.
        check(&[&[1, 5], &[5, 2], &[1]], 1, 2);
        assert_eq!(allocation(&[of(&[6, 1])], &all).targets, [6, 1], "as in the stripe");
    }

    #[test]
    fn patterns_contain_only_the_requested_fields() {
        let all = two_by_four();
        let text = |count, chooser, targets, application, turn| {
            pattern(&settings(count, chooser, targets), application, 0, &all, turn)
        };
        assert_eq!(text(None, None, Targets::Chosen, 0, 0), None);
        let both = text(Some(4), Some("roundrobin"), Targets::Chosen, 1, 3);
        assert_eq!(both.as_deref(), Some("count=4,chooser=roundrobin"));
        let shared = |application| text(Some(4), None, Targets::Shared, application, 0);
        assert_eq!(shared(0).as_deref(), Some("targets=1:5:2:6"));
        assert_eq!(shared(0), shared(1));
        let separate = text(Some(4), None, Targets::Separate, 1, 0);
        assert_eq!(separate.as_deref(), Some("targets=3:7:4:8"));
        let turned = text(Some(4), None, Targets::Separate, 1, 6);
        assert_eq!(turned.as_deref(), Some("targets=2:6:3:7"));
    }

    #[test]
    fn run_on_n_servers_uses_the_targets_of_the_first_n_servers() {
        let all = two_by_four();
        let on =
            |servers, access| Settings { servers, access, ..settings(None, None, Targets::Chosen) };
        let one = on(Some(1), Access::FilePerProcess);
        let usable_on_one = usable(&one, &all);
        assert_eq!(usable_on_one, &all[..4]);
        assert_eq!(usable(&on(Some(2), Access::SharedFile), &all), all);
        assert_eq!(usable(&on(None, Access::SharedFile), &all), all);
        assert!(has_pattern_for_each_file(&one));
        assert!(!has_pattern_for_each_file(&on(Some(1), Access::SharedFile)));
        let of_file = |file| pattern(&one, 0, file, usable_on_one, 0);
        assert_eq!(of_file(0).as_deref(), Some("targets=1:2:3:4"));
        assert_eq!(of_file(5).as_deref(), Some("targets=2:3:4:1"));
        let both = on(Some(2), Access::FilePerProcess);
        let text = pattern(&both, 0, 1, usable(&both, &all), 0);
        assert_eq!(text.as_deref(), Some("targets=5:2:6:3:7:4:8:1"));
    }

    #[test]
    fn files_of_other_file_systems_have_no_pattern_or_map() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("file");
        create(&path, None).expect("made");
        assert_eq!(targets(&path).expect("asked"), None);
        assert!(create(&path, None).is_err(), "an existing file is refused");
    }
}

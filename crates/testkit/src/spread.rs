//! Directories on different metadata groups, for tests of changes that concern several groups.
//!
//! Metadata spreads the new directories in the root directory over its groups. By default, any
//! other new directory is on the group of its parent. A rename does not change the group of a
//! directory. So this module creates directories in the root directory, and moves these directories
//! to their final paths.

use crate::cluster::{TRANSPORT_ATTRIBUTE, skep};
use crate::files;
use crate::view::Typed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Minimum number of directories that one step of [`create_dirs`] creates in the root directory.
const STEP: usize = 4;
/// Maximum number of steps. The hash of a directory's name selects the metadata group. So the first
/// steps almost certainly find two groups.
const MAX_STEPS: usize = 50;

/// The number in the name of the next directory in the root directory.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Creates an empty directory in `parent` for each name, and returns the paths. The first, third,
/// fifth, ... directory is on another metadata group than `parent`. The second, fourth, ...
/// directory is on the same group as `parent`. On another file system than Skep, this function only
/// creates the directories.
///
/// # Panics
/// Panics if a call fails, or if metadata has only one group.
#[track_caller]
pub fn create_dirs<P: AsRef<Path>>(
    parent: &Path,
    names: impl IntoIterator<Item = P>,
) -> Vec<PathBuf> {
    let places: Vec<PathBuf> = names.into_iter().map(|name| parent.join(name)).collect();
    let Some(root) = root_of(parent) else {
        for place in &places {
            files::create_dir(place);
        }
        return places;
    };
    let (mut elsewhere, mut here) = (Vec::new(), Vec::new());
    let wanted = (places.len().div_ceil(2), places.len() / 2);
    let mut steps = 0;
    while elsewhere.len() < wanted.0 || here.len() < wanted.1 {
        assert!(steps < MAX_STEPS, "no two groups serve the directories in {}", root.display());
        steps += 1;
        let mut paths = vec![parent.to_owned()];
        for _ in 0..places.len().max(STEP) {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = root.join(format!("spread-{}-{number}", std::process::id()));
            files::create_dir(&path);
            paths.push(path);
        }
        let groups = groups(&paths);
        for (path, group) in paths.into_iter().zip(&groups).skip(1) {
            if *group == groups[0] { here.push(path) } else { elsewhere.push(path) }
        }
    }
    for (index, place) in places.iter().enumerate() {
        let from = if index % 2 == 0 { elsewhere.pop() } else { here.pop() };
        files::rename(from.expect("the loop has created enough directories"), place);
    }
    for unused in elsewhere.iter().chain(&here) {
        files::remove_dir(unused);
    }
    places
}

/// Returns `count` names in `root`, the root directory of a Skep file system. If a program creates
/// a directory with such a name in `root`, the new directory is on another metadata group than
/// `root`. The hash of a name selects the group. So this function creates a directory for each
/// candidate name, reads the group of the directory, and removes the directory. All names begin
/// with `prefix`.
///
/// # Panics
/// Panics if a call fails, or if metadata has only one group.
#[track_caller]
pub fn names_elsewhere(root: &Path, prefix: &str, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    for step in 0..MAX_STEPS {
        let candidates = (0..count.max(STEP)).map(|number| format!("{prefix}-{step}-{number}"));
        let candidates: Vec<String> = candidates.collect();
        let mut paths = vec![root.to_owned()];
        paths.extend(candidates.iter().map(|name| root.join(name)));
        for path in &paths[1..] {
            files::create_dir(path);
        }
        let groups = groups(&paths);
        for path in &paths[1..] {
            files::remove_dir(path);
        }
        let all = candidates.into_iter().zip(&groups[1..]);
        found.extend(all.filter(|(_, group)| **group != groups[0]).map(|(name, _)| name));
        if found.len() >= count {
            found.truncate(count);
            return found;
        }
    }
    panic!("no two groups serve the directories in {}", root.display());
}

/// Checks that the files and directories `paths` are not all on one metadata group. On another file
/// system than Skep, checks nothing.
///
/// # Panics
/// Panics if all paths are on one group.
#[track_caller]
pub fn assert_spread(paths: &[PathBuf]) {
    if paths.iter().all(|path| root_of(path).is_some()) {
        let found: BTreeSet<u64> = groups(paths).into_iter().collect();
        assert!(found.len() > 1, "all of {paths:?} are on metadata group {found:?}");
    }
}

/// Returns the metadata group of each path.
fn groups(paths: &[PathBuf]) -> Vec<u64> {
    let words = ["entry", "info", "--output", "json"].into_iter().map(OsStr::new);
    let output = skep(words.chain(paths.iter().map(|path| path.as_os_str()))).expect_success();
    let shown: Value = serde_json::from_str(&output)
        .unwrap_or_else(|error| panic!("skep entry info: {error}\n{output}"));
    // With a single path, the output is not a list.
    let shown = match shown {
        Value::Array(list) => list,
        single => vec![single],
    };
    assert_eq!(shown.len(), paths.len(), "skep entry info: {output}");
    shown.iter().map(|info| info["metadata"]["group"].number()).collect()
}

/// Returns the root directory of the Skep file system with `path`. `None` means that the path is on
/// another file system.
fn root_of(path: &Path) -> Option<&Path> {
    let is_root =
        |it: &&Path| rustix::fs::getxattr(*it, TRANSPORT_ATTRIBUTE, &mut [0_u8; 64]).is_ok();
    path.ancestors().find(is_root)
}

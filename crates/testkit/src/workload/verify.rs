//! Compares a worker's directory with the states that are allowed after a crash.

use super::Worker;
use super::history::{Crash, State};
use super::ongoing::{BLOCKS, LOG};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Describes the first difference between two byte strings. `None` means that the strings are
/// equal.
pub fn first_difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if let Some(at) = expected.iter().zip(found).position(|(left, right)| left != right) {
        let wrong = expected.iter().zip(found).filter(|(left, right)| left != right).count();
        return Some(format!(
            "byte {at} of {} is {}, not {}; {wrong} bytes are wrong",
            expected.len(),
            found[at],
            expected[at]
        ));
    }
    let (expected, found) = (expected.len(), found.len());
    (expected != found).then(|| format!("{found} bytes, not {expected}"))
}

/// Returns the state of a path, including the bytes of a file, and the number of its hard links.
fn look(path: &Path) -> Result<(State, u64), String> {
    let failed = |error| format!("{}: {error}", path.display());
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if found.is_dir() {
        return Ok((State::Directory, 0));
    }
    if found.is_symlink() {
        return Ok((State::Symlink(fs::read_link(path).map_err(failed)?), 0));
    }
    let content = Arc::new(fs::read(path).map_err(failed)?);
    if content.len() as u64 != found.len() {
        return Err(format!(
            "{}: only {} of {} bytes could be read",
            path.display(),
            content.len(),
            found.len()
        ));
    }
    Ok((State::File { inode: found.ino(), content, synced: true }, found.nlink()))
}

/// Describes the difference between the found state and the allowed state `possible`. `None` means
/// that the states match.
fn mismatch(found: &State, possible: &State, crash: &Crash) -> Option<String> {
    match (found, possible) {
        (State::File { .. }, State::Partial { .. }) => None,
        (
            State::File { inode, content, .. },
            State::File { inode: expected_inode, content: expected, synced },
        ) => {
            if inode != expected_inode {
                return Some(format!("inode {inode}, not {expected_inode}"));
            }
            let is_loose = crash.loses_unsynced_data && !synced;
            if is_loose { None } else { first_difference(expected, content) }
        }
        (found, possible) if found == possible => None,
        (found, possible) => Some(format!("{}, not {}", word(found), word(possible))),
    }
}

fn word(state: &State) -> String {
    match state {
        State::Absent => "absent".into(),
        State::Directory => "a directory".into(),
        State::Fixed | State::Partial { .. } => "a file".into(),
        State::Symlink(target) => format!("a link to {}", target.display()),
        State::File { inode, content, synced } => {
            format!("a file of {} bytes, inode {inode}, synced: {synced}", content.len())
        }
    }
}

impl Worker {
    /// Compares all files with the states that are allowed after `crash`, and returns a line for
    /// each problem. The check also replaces the records of the worker by the found state, so that
    /// the worker continues from this state.
    pub fn check(&mut self, crash: &Crash) -> Vec<String> {
        let mut found = BTreeMap::new();
        let mut problems = Vec::new();
        let mut inodes: BTreeMap<u64, usize> = BTreeMap::new();
        let mut links: BTreeMap<u64, u64> = BTreeMap::new();
        for name in list(&self.root, &mut problems) {
            if [LOG, BLOCKS].contains(&name.as_str()) {
                found.insert(name, State::Fixed);
                continue;
            }
            match look(&self.root.join(&name)) {
                Ok((state, link_count)) => {
                    if let Some(inode) = state.inode() {
                        *inodes.entry(inode).or_default() += 1;
                        links.insert(inode, link_count);
                    }
                    found.insert(name, state);
                }
                Err(problem) => problems.push(problem),
            }
        }
        for (inode, count) in &links {
            if inodes[inode] as u64 != *count {
                problems
                    .push(format!("inode {inode} has {count} links, but {} names", inodes[inode]));
            }
        }
        let mut names: Vec<_> = self.history.all_names().chain(found.keys()).cloned().collect();
        names.sort();
        names.dedup();
        for name in names {
            let state = found.get(&name).unwrap_or(&State::Absent);
            let possible = self.history.possible(&name, crash);
            let reasons: Vec<_> =
                possible.iter().map(|possible| mismatch(state, possible, crash)).collect();
            if reasons.iter().all(Option::is_some) {
                let reasons: Vec<_> = reasons.into_iter().flatten().collect();
                problems.push(format!("{name}: {}", reasons.join("; or ")));
            }
        }
        problems.extend(self.inodes.check(&inodes, crash));
        problems.extend(self.log.check(&self.root, crash));
        problems.extend(self.blocks.check(&self.root, crash));
        for (name, state) in &mut found {
            if let Some(inode) = state.inode()
                && !self.history.is_end_known(name, state, crash)
            {
                *state = State::Partial { inode: Some(inode) };
            }
        }
        self.history.clear();
        self.inodes.replace(&inodes);
        for (name, state) in found {
            self.history.replace(name, state);
        }
        let root = self.root.display();
        problems.into_iter().map(|problem| format!("{root}: {problem}")).collect()
    }
}

/// Returns all names below `root`, as paths relative to `root`. Adds errors to `problems`.
fn list(root: &Path, problems: &mut Vec<String>) -> Vec<String> {
    let mut names = Vec::new();
    let mut waiting = vec![String::new()];
    while let Some(directory) = waiting.pop() {
        let entries = match fs::read_dir(root.join(&directory)) {
            Ok(entries) => entries,
            Err(error) => {
                problems.push(format!("{directory}: {error}"));
                continue;
            }
        };
        for entry in entries {
            let Ok(entry) = entry else {
                problems.push(format!("{directory}: listing ended early"));
                break;
            };
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            if entry.file_type().is_ok_and(|it| it.is_dir()) {
                waiting.push(name.clone());
            }
            names.push(name);
        }
    }
    names
}

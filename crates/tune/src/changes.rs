//! Changes the settings of a host's kernel, and undoes these changes.
//!
//! [`apply`] first adds the previous contents of all files that it will change to the record
//! [`STATE`], and syncs the record. After this, [`apply`] writes the new values to the files of the
//! kernel. Last, [`apply`] writes the files that set these values at boot. After a crash at any
//! time, the record exists, so [`undo`] can restore all files.
//!
//! # Hazard: settings that the kernel changes together
//! A new scheduler of a disk resets the depth of the disk's queue. So [`undo`] restores the files
//! in the order in which [`apply`] changed them: the scheduler first, and then the depth.
//!
//! # Hazard: two commands at the same time
//! Both commands would read the record, and the later command would overwrite the previous values
//! that the earlier command has added. So each function that changes the record holds the lock of
//! [`crate::record_lock`].
//!
//! # Hazard: a second `apply`
//! A second `apply` finds the values that the first `apply` wrote, and not the original values. So
//! if the record already has a file, `apply` does not replace the recorded contents.

use crate::check::Finding;
use crate::keep::{self, Setting};
use crate::record_lock::{DIRECTORY, lock};
use crate::rules::Keep;
use crate::tree::Tree;
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// Path of the file with the record of the previous contents of all changed files.
pub const STATE: &str = "/var/lib/skep/tune/state.json";
/// The directories of the kernel that have one entry for each device.
const CLASSES: [&str; 2] = ["/sys/block/", "/sys/class/net/"];
/// Version of the format of the record.
const VERSION: u32 = 1;

/// The record of all changes that have not been undone, as JSON in the file [`STATE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    changes: Vec<Change>,
    /// The files that set values at boot, with their contents before the first change.
    files: Vec<FormerFile>,
}

impl Record {
    /// Panics if the record has lost or replaced the previous contents of a file. `known` has the
    /// changes that were in the record before.
    fn check_invariants(&self, known: &[Change]) {
        for earlier in known {
            let has_same = |it: &Change| it.file == earlier.file && it.before == earlier.before;
            let is_kept = self.changes.iter().any(has_same);
            assert!(is_kept, "the record has the first contents of {}", earlier.file);
        }
    }
}

/// A change of a file of the kernel, such as a file below `/sys`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Name of the rule that asks for the change.
    pub rule: String,
    /// Path of the changed file.
    pub file: String,
    /// Contents of the file before the first change.
    pub before: String,
    /// Text that sets the previous value when it is written to the file.
    restore: String,
    /// Text that sets the wanted value, which `apply` writes to the file.
    pub after: String,
    /// How the new value is set again after a reboot.
    pub(crate) keep: Keep,
}

/// A file that sets values at boot, with its contents before the first change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormerFile {
    path: String,
    /// The contents. `None` means that the file did not exist.
    text: Option<String>,
}

/// The result of [`apply`] or [`undo`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The changes of kernel files that were made or undone.
    pub changed: Vec<Change>,
    /// Paths of the files that set values at boot, and that were written or restored.
    pub boot_files: Vec<String>,
    /// The kernel files that could not be changed or restored.
    pub failures: Vec<Failure>,
    /// The kernel files that [`undo`] could not restore, and that it has removed from the record.
    pub forgotten: Vec<Failure>,
}

/// A failed change or restoration of a kernel file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Path of the kernel file.
    pub file: String,
    /// Text of the error.
    pub error: String,
}

/// Returns the findings whose values [`apply`] should change. These are the findings that do not
/// pass and that [`apply`] can change. If `only` names rules, only the findings of these rules are
/// returned. Otherwise, only the findings without a risk are returned.
pub fn planned<'a>(findings: &'a [Finding], only: &[String]) -> Vec<&'a Finding> {
    let is_wanted = |it: &&Finding| match only.is_empty() {
        true => it.risk.is_empty(),
        false => only.contains(&it.rule),
    };
    findings.iter().filter(|it| !it.passes && it.can_apply).filter(is_wanted).collect()
}

/// Records the previous contents of the files of `findings` durably, and then sets the wanted
/// values. Without findings, completes the files that set values at boot, because an earlier call
/// may have been interrupted after it had set all values.
///
/// # Errors
/// - An error before any change: the record or the previous contents of a file cannot be read, or
///   the record cannot be written. `Busy`: another command changes settings for a long time.
/// - An error after some changes: a file that sets values at boot, or the record, cannot be
///   written. The record then still has the previous contents, so [`undo`] can restore them.
///
/// If a kernel file cannot be written, this is not an error. The outcome lists the file as a
/// failure, and the record is as if this change had not been tried.
pub fn apply(tree: &Tree, findings: &[&Finding]) -> Result<Outcome> {
    // Without a record and without changes, this call must not create the directory of the record.
    if findings.is_empty() && !tree.real(DIRECTORY).is_dir() {
        return Ok(Outcome::default());
    }
    let _lock = lock(tree)?;
    if findings.is_empty() {
        return complete_boot_files(tree);
    }
    let mut record =
        read(tree)?.unwrap_or(Record { version: VERSION, changes: Vec::new(), files: Vec::new() });
    let known: Vec<Change> = record.changes.clone();
    let mut wanted = Vec::new();
    for finding in findings {
        let Some((after, keep)) = &finding.setting else { continue };
        let before = tree.read_if_exists(&finding.file)?.unwrap_or_default();
        let restore =
            if before.contains('[') { finding.is.clone() } else { before.trim().to_owned() };
        let change = Change {
            rule: finding.rule.clone(),
            file: finding.file.clone(),
            before,
            restore,
            after: after.clone(),
            keep: *keep,
        };
        match record.changes.iter_mut().find(|it| it.file == change.file) {
            Some(earlier) => earlier.after.clone_from(&change.after),
            None => record.changes.push(change.clone()),
        }
        wanted.push(change.file);
    }
    for path in keep::FILES {
        if record.files.iter().all(|it| it.path != path) {
            let text = tree.read_if_exists(path)?;
            record.files.push(FormerFile { path: path.to_owned(), text });
        }
    }
    if cfg!(debug_assertions) {
        record.check_invariants(&known);
    }
    write(tree, &record)?;
    let mut outcome = Outcome::default();
    for file in &wanted {
        let Some(change) = record.changes.iter().find(|it| it.file == *file).cloned() else {
            continue;
        };
        match tree.set(&change.file, &change.after) {
            Ok(()) => outcome.changed.push(change),
            Err(error) => {
                // The failed write changed nothing. So restore the entry of this file that the
                // record had before this call.
                record.changes.retain(|it| it.file != change.file);
                record.changes.extend(known.iter().find(|it| it.file == change.file).cloned());
                let error = error.context().to_owned();
                outcome.failures.push(Failure { file: change.file, error });
            }
        }
    }
    for (path, text) in boot_files(&record) {
        tree.replace(path, &text)?;
        outcome.boot_files.push(path.to_owned());
    }
    write(tree, &record)?;
    Ok(outcome)
}

/// Writes the boot files that do not set all recorded values.
fn complete_boot_files(tree: &Tree) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    // A record lists no boot files after an `undo` that could not restore all kernel files.
    let Some(record) = read(tree)?.filter(|it| !it.files.is_empty()) else { return Ok(outcome) };
    for (path, text) in boot_files(&record) {
        if tree.read_if_exists(path)?.as_ref() != Some(&text) {
            tree.replace(path, &text)?;
            outcome.boot_files.push(path.to_owned());
        }
    }
    Ok(outcome)
}

/// Returns the path and the new contents of each boot file that the recorded changes need.
fn boot_files(record: &Record) -> Vec<(&'static str, String)> {
    let changes = record.changes.iter();
    let settings: Vec<Setting> =
        changes.map(|it| Setting { file: &it.file, value: &it.after, keep: it.keep }).collect();
    let with_former = |(path, text): (&'static str, Option<String>)| {
        let former = record.files.iter().find(|it| it.path == path);
        let own = former.and_then(|it| it.text.clone()).unwrap_or_default();
        Some((path, own + &text?))
    };
    keep::texts(&settings).into_iter().filter_map(with_former).collect()
}

/// Whether there are changes that have not been undone.
///
/// # Errors
/// The record exists and cannot be read.
pub fn is_changed(tree: &Tree) -> Result<bool> {
    Ok(read(tree)?.is_some())
}

/// Restores the recorded contents of all changed files: first the files that set values at boot,
/// then the files of the kernel, in the order in which they were changed. Removes the record when
/// no file is left in it.
///
/// # Errors
/// - `NotFound`: there is no record.
/// - `Busy`: another command changes settings for a long time.
/// - Another error: the record cannot be read or written, or a file that sets values at boot cannot
///   be restored.
///
/// If a kernel file cannot be restored, this is not an error. The outcome lists the file as a
/// failure. The file stays in the record, so that the next call restores it. The outcome lists two
/// exceptions as forgotten. One exception is a file of a device that was removed from the host,
/// since the kernel no longer has its value. If `forgets` is set, the other exception is every file
/// that cannot be restored.
pub fn undo(tree: &Tree, forgets: bool) -> Result<Outcome> {
    let missing = || {
        let what = format!(
            "cannot undo changes: {STATE} does not exist, so `skep tune apply` changed nothing here"
        );
        Error::new(ErrorCode::NotFound, what)
    };
    // Without a record, this call must not create the directory of the record.
    read(tree)?.ok_or_else(missing)?;
    let _lock = lock(tree)?;
    let mut record = read(tree)?.ok_or_else(missing)?;
    let mut outcome = Outcome::default();
    for former in std::mem::take(&mut record.files) {
        match &former.text {
            Some(text) => tree.replace(&former.path, text)?,
            None => tree.remove(&former.path)?,
        }
        outcome.boot_files.push(former.path);
    }
    let changes = std::mem::take(&mut record.changes);
    for change in changes {
        let Err(error) = restore(tree, &change) else {
            outcome.changed.push(change);
            continue;
        };
        let failure = Failure { file: change.file.clone(), error: error.context().to_owned() };
        if forgets || has_lost_device(tree, &change.file) {
            outcome.forgotten.push(failure);
        } else {
            outcome.failures.push(failure);
            record.changes.push(change);
        }
    }
    match record.changes.is_empty() {
        true => tree.remove(STATE)?,
        false => write(tree, &record)?,
    }
    Ok(outcome)
}

/// Whether the device of a kernel file was removed from the host. False if the host shows no
/// devices of this class, because the kernel's file system may not be mounted.
fn has_lost_device(tree: &Tree, file: &str) -> bool {
    CLASSES.into_iter().any(|class| {
        let device = file.strip_prefix(class).and_then(|rest| rest.split('/').next());
        let exists = |path: &str| tree.real(path).exists();
        device.is_some_and(|device| exists(class) && !exists(&format!("{class}{device}")))
    })
}

fn restore(tree: &Tree, change: &Change) -> Result<()> {
    let missing = || {
        let what = format!("cannot restore {}: the file no longer exists", change.file);
        Error::new(ErrorCode::NotFound, what)
    };
    let now = tree.read_if_exists(&change.file)?.ok_or_else(missing)?;
    if now == change.before {
        return Ok(());
    }
    tree.set(&change.file, &change.restore)?;
    // If the kernel accepts a word that is written to a choice file, the file shows all words
    // again, with brackets around the accepted word. The plain files that tests use show only the
    // written word, so write the whole previous contents to them.
    if tree.read(&change.file).as_ref() != Some(&change.before) {
        tree.set(&change.file, &change.before)?;
    }
    match tree.read(&change.file).as_ref() == Some(&change.before) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::Io,
            format!("cannot restore {}: the kernel did not accept the value", change.file),
        )),
    }
}

fn read(tree: &Tree) -> Result<Option<Record>> {
    let Some(text) = tree.read_if_exists(STATE)? else { return Ok(None) };
    let invalid = |fact: String| {
        let what = format!(
            "cannot use the record {}: {fact}; restore the values in this file by hand, and then \
             move the file away",
            tree.real(STATE).display()
        );
        Error::new(ErrorCode::Corrupt, what)
    };
    let record: Record = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    match record.version {
        VERSION => Ok(Some(record)),
        version => Err(invalid(format!("version {version} is unknown to this program"))),
    }
}

fn write(tree: &Tree, record: &Record) -> Result<()> {
    let text = serde_json::to_string_pretty(record)
        .map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?;
    tree.replace(STATE, &(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the record has the first contents of /proc/sys/vm/swappiness")]
    fn undo_record_with_replaced_contents_violates_an_invariant() {
        let change = |before: &str| Change {
            rule: "swappiness".into(),
            file: "/proc/sys/vm/swappiness".into(),
            before: before.into(),
            restore: before.into(),
            after: "10".into(),
            keep: Keep::Sysctl,
        };
        let record = Record { version: VERSION, changes: vec![change("10")], files: Vec::new() };
        record.check_invariants(&[change("60")]);
    }
}

//! Changes of a host's settings, and their undo.
//!
//! [`apply`] first adds the previous state of every file to the record [`STATE`] and syncs it. Then
//! it writes the values to the files of the kernel, and last the files that set the values at boot.
//! After a crash at any time, a record exists from which [`undo`] restores all values.
//!
//! # Hazard: a second `apply`
//! A second `apply` finds the values that the first `apply` wrote. So the record preserves the
//! first recorded state of each file.

use crate::check::Finding;
use crate::keep::{self, Setting};
use crate::rules::Keep;
use crate::tree::Tree;
use serde::{Deserialize, Serialize};
use skep_types::{Error, ErrorCode, Result};

/// Path of the record of previous states.
pub const STATE: &str = "/var/lib/skep/tune/state.json";
/// Version of the record.
const VERSION: u32 = 1;

/// The record of all changes that have not been undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    changes: Vec<Change>,
    /// The previous contents of the files that set values at boot.
    files: Vec<FormerFile>,
}

/// A changed file of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Name of the rule.
    pub rule: String,
    /// The file.
    pub file: String,
    /// The text of the file before the first change.
    pub before: String,
    /// The text that restores the previous value.
    restore: String,
    /// The text that was written.
    pub after: String,
    /// How the value survives a reboot.
    pub(crate) keep: Keep,
}

/// A file of the administrator before the first change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormerFile {
    path: String,
    /// `None` means that the file did not exist.
    text: Option<String>,
}

/// The result of [`apply`] or [`undo`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The changed or restored files of the kernel.
    pub changed: Vec<Change>,
    /// The written or restored files that set values at boot.
    pub boot_files: Vec<String>,
    /// Files that could not be changed or restored, with the error.
    pub failures: Vec<Failure>,
}

/// A file that could not be changed or restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The file.
    pub file: String,
    /// The error.
    pub error: String,
}

/// Returns the findings that [`apply`] would change. By default, these are the findings that do not
/// pass and have no risk. If `only` names rules, these are the findings of these rules that do not
/// pass.
pub fn planned<'a>(findings: &'a [Finding], only: &[String]) -> Vec<&'a Finding> {
    let is_wanted = |it: &&Finding| match only.is_empty() {
        true => it.risk.is_empty(),
        false => only.contains(&it.rule),
    };
    findings.iter().filter(|it| !it.passes && it.can_apply).filter(is_wanted).collect()
}

/// Changes the files of findings, after the previous state of the files is durable.
///
/// # Errors
/// Fails before any change if the record cannot be read or written. A file that refuses its value
/// is a failure in the outcome, and is not in the record afterwards.
pub fn apply(tree: &Tree, findings: &[&Finding]) -> Result<Outcome> {
    if findings.is_empty() {
        return Ok(Outcome::default());
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
    write(tree, &record)?;
    let mut outcome = Outcome::default();
    for file in &wanted {
        let Some(change) = record.changes.iter().find(|it| it.file == *file).cloned() else {
            continue;
        };
        match tree.set(&change.file, &change.after) {
            Ok(()) => outcome.changed.push(change),
            Err(error) => {
                // The file still has the previous value, or the value of an earlier apply.
                record.changes.retain(|it| it.file != change.file);
                record.changes.extend(known.iter().find(|it| it.file == change.file).cloned());
                let error = error.context().to_owned();
                outcome.failures.push(Failure { file: change.file, error });
            }
        }
    }
    let settings: Vec<Setting> = record
        .changes
        .iter()
        .map(|it| Setting { file: &it.file, value: &it.after, keep: it.keep })
        .collect();
    for (path, text) in keep::texts(&settings) {
        let Some(text) = text else { continue };
        let former = record.files.iter().find(|it| it.path == path);
        let own = former.and_then(|it| it.text.clone()).unwrap_or_default();
        tree.replace(path, &(own + &text))?;
        outcome.boot_files.push(path.to_owned());
    }
    write(tree, &record)?;
    Ok(outcome)
}

/// Restores the previous state of all changed files.
///
/// # Errors
/// `NotFound` if there is no record. Files that cannot be restored are failures in the outcome, and
/// stay in the record, so that the next call retries them.
pub fn undo(tree: &Tree) -> Result<Outcome> {
    let Some(mut record) = read(tree)? else {
        return Err(Error::new(
            ErrorCode::NotFound,
            format!(
                "cannot undo: {STATE} does not exist, so `skep tune apply` changed nothing here"
            ),
        ));
    };
    let mut outcome = Outcome::default();
    for former in std::mem::take(&mut record.files) {
        match &former.text {
            Some(text) => tree.replace(&former.path, text)?,
            None => tree.remove(&former.path)?,
        }
        outcome.boot_files.push(former.path);
    }
    let changes = std::mem::take(&mut record.changes);
    for change in changes.into_iter().rev() {
        match restore(tree, &change) {
            Ok(()) => outcome.changed.push(change),
            Err(error) => {
                let (file, error) = (change.file.clone(), error.context().to_owned());
                outcome.failures.push(Failure { file, error });
                record.changes.push(change);
            }
        }
    }
    match record.changes.is_empty() {
        true => tree.remove(STATE)?,
        false => write(tree, &record)?,
    }
    Ok(outcome)
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
    // The kernel prints a choice with all words. A plain file has only the written word.
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
            "cannot use the record {}: {fact}; move it away after you have restored its values by hand",
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

//! The time of the last backup of management's directory, and the metrics about it.
//!
//! `skep cluster backup` works on the files of the directory without a request to management. So
//! the command leaves the file `last-backup` in the directory that it has copied. The modification
//! time of the file is the time of the backup, so that `touch` can report the backup of another
//! program. The text in the file is the absolute path of the copy. A copy of the directory does not
//! contain the file.

use skep_metrics::{Definition, Snapshot, Source, catalog};
use skep_store::atomic::replace_atomically;
use skep_store::identity::IDENTITY_FILE;
use skep_types::Result;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Name of the file in the directory of management.
const FILE: &str = "last-backup";

/// Records in the directory of management that `copy` is a backup of this directory.
///
/// # Errors
/// Errors of the file system, for example if this process may only read the directory.
pub fn record_backup(directory: &Path, copy: &Path) -> Result<()> {
    let copy = std::path::absolute(copy).unwrap_or_else(|_| copy.to_owned());
    replace_atomically(&directory.join(FILE), format!("{}\n", copy.display()).as_bytes())
}

/// Adds the time of the last backup of management's directory, and the time of the directory's
/// creation, to each snapshot of the metrics.
#[derive(Debug)]
pub(crate) struct BackupFigures {
    pub(crate) directory: PathBuf,
}

impl Source for BackupFigures {
    fn collect(&self, snapshot: &mut Snapshot) {
        let files: [(&'static Definition, &str); 2] = [
            (&catalog::MANAGEMENT_BACKUP, FILE),
            // Only the initialisation and a restoration write this file, so its modification time
            // is the time of the creation.
            (&catalog::MANAGEMENT_CREATED, IDENTITY_FILE),
        ];
        for (definition, name) in files {
            if let Some(ns) = modified_ns(&self.directory.join(name)) {
                snapshot.number(definition, Vec::new(), ns);
            }
        }
    }
}

/// Returns the modification time of a file in nanoseconds since 1970. `None` means that the file
/// does not exist or cannot be examined.
fn modified_ns(file: &Path) -> Option<i64> {
    let modified = std::fs::metadata(file).ok()?.modified().ok()?;
    i64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_metrics::Value;

    fn times(directory: &Path) -> Vec<(&'static str, i64)> {
        let mut snapshot = Snapshot::default();
        BackupFigures { directory: directory.to_owned() }.collect(&mut snapshot);
        let found = snapshot.iter().map(|series| match series.value {
            Value::Number(ns) => (series.definition.name, ns),
            Value::Histogram(_) => panic!("{series:?}"),
        });
        found.collect()
    }

    #[test]
    fn time_of_the_last_backup_is_reported() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(times(place.path()), []);
        std::fs::write(place.path().join(IDENTITY_FILE), "identity").unwrap();
        let never = times(place.path());
        let [("skep_management_created_seconds", created)] = never[..] else { panic!("{never:?}") };
        record_backup(place.path(), Path::new("/srv/backup/monday")).unwrap();
        let backed_up = times(place.path());
        let [(_, same), ("skep_management_last_backup_seconds", last)] = backed_up[..] else {
            panic!("{backed_up:?}")
        };
        assert!(same == created && last >= created, "{backed_up:?}");
        let note = std::fs::read_to_string(place.path().join("last-backup")).unwrap();
        assert_eq!(note, "/srv/backup/monday\n");
        record_backup(place.path(), Path::new("tuesday")).unwrap();
        let note = std::fs::read_to_string(place.path().join("last-backup")).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(note, format!("{}\n", here.join("tuesday").display()));
    }

    #[test]
    fn backup_that_cannot_be_recorded_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let missing = place.path().join("missing");
        let refused = record_backup(&missing, Path::new("/copy")).unwrap_err();
        assert!(refused.context().contains("last-backup"), "{refused}");
    }
}

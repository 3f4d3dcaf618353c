//! `skep cluster backup`: copies the directory of management, also while management runs.

use crate::help::{Example, examples};
use crate::output::{print, warn};
use serde::Serialize;
use skep_management::{copy_directory, record_backup};
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[(
    "copy the directory of management, on the management host",
    "skep cluster backup --directory /srv/skep/management /srv/backup/management-monday",
)];

/// Copy the directory of management, even while management runs
///
/// The copy contains the cluster's secret. `skep cluster restore` makes a directory of management
/// from the copy. The file `last-backup` in the directory records the time of the backup.
/// `skep health check` and the monitor report if the last backup is older than a week.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct BackupArgs {
    /// Directory of management
    #[arg(long)]
    directory: PathBuf,
    /// New directory for the copy
    copy: PathBuf,
}

/// The JSON output about a finished copy.
#[derive(Debug, Serialize)]
struct Backup {
    cluster: String,
    #[serde(serialize_with = "crate::output::path")]
    copy: PathBuf,
    last_command: u64,
}

pub(crate) fn run(args: &BackupArgs) -> Result<()> {
    let made = copy_directory(&args.directory, &args.copy)?;
    if let Err(error) = record_backup(&args.directory, &args.copy) {
        warn(&format!(
            "the copy is complete, but its time cannot be recorded, so `skep health check` may \
             report that management has no backup: {}",
            error.context()
        ));
    }
    let backup = Backup {
        cluster: made.cluster.to_string(),
        copy: args.copy.clone(),
        last_command: made.last_command.raw(),
    };
    print(&backup, |Backup { cluster, copy, last_command }| {
        format!(
            "{} has the state of cluster {cluster} after change {last_command}, and the secret of \
             the cluster. Do not let other users read this directory.\n",
            copy.display()
        )
    })
}

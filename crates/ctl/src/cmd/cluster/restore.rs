//! `skep cluster restore`: creates a directory of management from a copy that `skep cluster backup`
//! made.

use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_management::copy_directory;
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[(
    "make a new directory of management after its disk was lost",
    "skep cluster restore --directory /srv/skep/management /srv/backup/management-monday",
)];

/// Make a directory of management from a copy, after a check of the copy
///
/// Refuses a directory that is not empty. Afterwards start management. Services and mounts then
/// continue without a restart. Mounts that were made after the copy rejoin the cluster, and their
/// files open for writing return EIO.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RestoreArgs {
    /// New directory of management
    #[arg(long)]
    directory: PathBuf,
    /// Directory of the copy
    copy: PathBuf,
}

/// The JSON output about the restored directory.
#[derive(Debug, Serialize)]
struct Restored {
    cluster: String,
    #[serde(serialize_with = "crate::output::path")]
    directory: PathBuf,
    last_command: u64,
}

pub(crate) fn run(args: &RestoreArgs) -> Result<()> {
    let made = copy_directory(&args.copy, &args.directory)?;
    let restored = Restored {
        cluster: made.cluster.to_string(),
        directory: args.directory.clone(),
        last_command: made.last_command.raw(),
    };
    print(&restored, |Restored { cluster, directory, last_command }| {
        format!(
            "{} has the state of cluster {cluster} after change {last_command}. Start management \
             with this directory. Services and mounts then continue without a restart.\n",
            directory.display()
        )
    })
}

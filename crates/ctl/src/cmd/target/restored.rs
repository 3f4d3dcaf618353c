//! `skep target restored`: marks the directory of a metadata target that was restored from a
//! backup.

use crate::help::{Example, examples};
use crate::output::print;
use serde::Serialize;
use skep_format::identity::DirectoryKind;
use skep_store::identity::read_identity;
use skep_store::restored::{REMOVAL_OFF_MARK, RESTORED_MARK, mark, unmark};
use skep_types::{Error, ErrorCode, Result};
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    (
        "mark a directory that was restored from a backup, before its service starts",
        "skep target restored /nvme0/skep-meta",
    ),
    (
        "permit the removal of the data of files that were created after the backup was made",
        "skep target restored /nvme0/skep-meta --allow-removal",
    ),
];

/// Mark the directory of a metadata target that was restored from a backup
///
/// Run this command on the target's host before the service starts. New inodes then get numbers far
/// above all numbers that were assigned after the backup was made. Files that were created after
/// the backup have no names any more; storage keeps their bytes until --allow-removal permits their
/// removal.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct RestoredArgs {
    /// Directory of the metadata target
    directory: PathBuf,
    /// Permit the removal of chunk files that have no inode. The service of the target may run
    /// during this command
    #[arg(long)]
    allow_removal: bool,
}

/// The JSON output: the marked target.
#[derive(Debug, Serialize)]
struct MarkedTarget {
    target: u32,
    #[serde(serialize_with = "crate::output::path")]
    directory: PathBuf,
    removal_is_allowed: bool,
}

pub(crate) fn run(args: &RestoredArgs) -> Result<()> {
    let RestoredArgs { directory, allow_removal } = args;
    let identity = read_identity(directory)?;
    let Some(identity) = identity.filter(|it| it.kind == DirectoryKind::MetadataTarget) else {
        let what = format!(
            "cannot mark {}: this is not the directory of a metadata target; `skep target list` \
             shows these directories",
            directory.display()
        );
        return Err(Error::new(ErrorCode::Configuration, what));
    };
    if *allow_removal {
        unmark(directory, REMOVAL_OFF_MARK)?;
    } else {
        mark(directory, RESTORED_MARK)?;
    }
    let marked = MarkedTarget {
        target: identity.target.raw(),
        directory: directory.clone(),
        removal_is_allowed: *allow_removal,
    };
    print(&marked, |MarkedTarget { target, directory, removal_is_allowed }| {
        let directory = directory.display();
        match removal_is_allowed {
            true => format!(
                "Storage may now remove chunk files that no inode of target {target} \
                 ({directory}) owns.\n"
            ),
            false => format!(
                "From its next start on, target {target} ({directory}) assigns inode numbers above \
                 all that were assigned after the backup was made.\n"
            ),
        }
    })
}

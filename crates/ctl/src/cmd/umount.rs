//! `skep umount`: unmounts a cluster from a directory, as root or with the setuid helper of FUSE.

use crate::help::{Example, examples};
use crate::mounts::unmount_skep;
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("unmount", "skep umount /mnt/skep"),
    ("unmount even while programs use it", "skep umount --lazy /mnt/skep"),
];

/// Unmount a cluster
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UmountArgs {
    /// The mount point of the cluster
    directory: PathBuf,
    /// Detach the mount even while programs use it
    #[arg(long)]
    lazy: bool,
}

pub(super) fn run(args: &UmountArgs) -> Result<()> {
    unmount_skep(&args.directory, args.lazy)
}

//! `skep umount`: unmounts a directory, as root or with the setuid helper of FUSE.

use crate::help::{Example, examples};
use crate::mounts::unmount;
use skep_types::Result;
use std::path::PathBuf;

const EXAMPLES: &[Example] = &[
    ("unmount", "skep umount /mnt/skep"),
    ("unmount even while programs use it", "skep umount --lazy /mnt/skep"),
];

/// Unmount a directory
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(crate) struct UmountArgs {
    /// The directory to unmount
    directory: PathBuf,
    /// Detach the mount even while programs use it
    #[arg(long)]
    lazy: bool,
}

pub(super) fn run(args: &UmountArgs) -> Result<()> {
    unmount(&args.directory, args.lazy)
}

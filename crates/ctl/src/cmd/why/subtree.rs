//! The files and directories below a path in a mount, for users without the cluster's token.
//!
//! An inode has no path, so the mount looks up the directories above the inode. This module asks
//! the mount about at most [`MAX_ASKED`] inodes, and waits at most [`PATIENCE`], because a lookup
//! may need a server that does not answer.

use crate::in_time::within;
use crate::through_mount;
use skep_types::InodeId;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Maximum number of inodes for which one report asks the mount.
const MAX_ASKED: usize = 512;
/// Time limit for all lookups of one report.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns the inodes below the directory `above`. Leaves out removed inodes, and inodes whose
/// directories the mount could not look up in time.
pub(super) fn below(
    place: &Path,
    above: InodeId,
    inodes: impl IntoIterator<Item = InodeId>,
) -> HashSet<InodeId> {
    let inodes: BTreeSet<_> = inodes.into_iter().filter(|inode| inode.raw() != 0).collect();
    if inodes.is_empty() {
        return HashSet::new();
    }
    let (sender, receiver) = sync_channel(MAX_ASKED);
    let place = place.to_owned();
    let ask = move || {
        for inode in inodes.into_iter().take(MAX_ASKED) {
            let ancestors = through_mount::ancestors(&place, inode);
            if ancestors.is_ok_and(|it| it.is_some_and(|it| it.contains(&above))) {
                let _ = sender.send(inode);
            }
        }
    };
    within(PATIENCE, ask);
    receiver.try_iter().collect()
}

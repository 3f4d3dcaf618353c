//! The group of a storage target, in a file of the target's directory. The bytes of the target's
//! files belong to this group. If management is restored from a backup without the target, the
//! target registers again as a member of this group.
//!
//! Management owns the group. This module only keeps its id, in the file `storage-group`: a decimal
//! number and a line break.

use skep_store::atomic::replace_atomically;
use skep_types::GroupId;
use std::path::Path;

/// Name of the file in the directory of a storage target.
const FILE: &str = "storage-group";

/// Returns the group in the file. Zero if there is no readable file.
pub(super) fn read(target: &Path) -> GroupId {
    let text = std::fs::read_to_string(target.join(FILE)).unwrap_or_default();
    GroupId::new(text.trim_end().parse().unwrap_or_default())
}

/// Stores the group of a target. The target also serves without the file, so an error is only
/// logged.
pub(super) fn store(target: &Path, group: GroupId) {
    if read(target) == group {
        return;
    }
    let text = format!("{}\n", group.raw());
    if let Err(error) = replace_atomically(&target.join(FILE), text.as_bytes()) {
        tracing::debug!("cannot store group {group} in {}: {error:#}", target.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_a_target_is_read_back_from_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert_eq!(read(path), GroupId::default());
        for group in [7, 7, 1234].map(GroupId::new) {
            store(path, group);
            assert_eq!(read(path), group);
        }
        std::fs::write(path.join(FILE), "g5").unwrap();
        assert_eq!(read(path), GroupId::default(), "a damaged file");
        store(Path::new("/nonexistent"), GroupId::new(7));
    }
}

//! Cursors of names: the positions of entries in a directory.
//!
//! The module `keys` owns the keys that contain cursors.

use siphasher::sip::SipHasher13;
use skep_types::{ClusterId, InodeId};
use std::hash::Hasher;

/// Maximum number of names with the same hash in one directory. The ordinal distinguishes these
/// names.
pub const ORDINALS: u64 = 256;

/// Returns the lowest cursor that an entry with this name may have: a keyed hash of directory and
/// name, in the upper 55 of 63 bits. The cursor is at least 256, because lower cursors are reserved
/// for `.` and `..`. Further names with the same hash take the next cursors, which differ in the
/// ordinal.
///
/// The key of the hash is the id of the cluster. Users cannot read that id, so they cannot choose
/// names that collide.
pub fn name_cursor(cluster: ClusterId, directory: InodeId, name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(&cluster.raw());
    hasher.write(&directory.raw().to_le_bytes());
    hasher.write(name);
    ((hasher.finish() >> 9).max(1) * ORDINALS) & (i64::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_cursors_are_positive_and_leave_reserved_values_free() {
        for i in 0..10_000_u32 {
            let cursor = name_cursor(ClusterId::default(), InodeId::ROOT, &i.to_le_bytes());
            assert!((256..=i64::MAX as u64).contains(&cursor) && cursor.is_multiple_of(ORDINALS));
        }
    }

    #[test]
    fn cursors_of_similar_names_differ() {
        let cursors: std::collections::HashSet<_> = (0..200_000)
            .map(|i| {
                name_cursor(ClusterId::default(), InodeId::ROOT, format!("file.{i}").as_bytes())
            })
            .collect();
        assert_eq!(cursors.len(), 200_000);
    }
}

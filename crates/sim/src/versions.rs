//! The checker of file versions. A client uses the version (change counter) of a file to decide
//! whether its cached pages are valid, and which of two replies is newer.

use skep_types::{Attributes, FileKind, InodeId};
use std::collections::BTreeMap;

/// The part of a file's state that a client stores in its cache together with the version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CachedState {
    size: u64,
    truncate_generation: u64,
    permissions: u32,
}

/// The versions of files that clients have received.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    states: BTreeMap<(InodeId, u64), CachedState>,
}

impl Versions {
    /// Returns the newest version of a file that any client has received, or zero.
    pub(crate) fn newest(&self, inode: InodeId) -> u64 {
        let of_file = self.states.range((inode, 0)..=(inode, u64::MAX));
        of_file.map(|((_, version), _)| *version).next_back().unwrap_or(0)
    }

    /// Checks the attributes in a reply. `oldest` is the newest version of the file that any client
    /// had received when this client sent the request.
    ///
    /// # Errors
    /// Describes the wrong version: either a target has assigned this version to two states of a
    /// file, or the version is lower than an earlier version.
    pub(crate) fn check(&mut self, attributes: &Attributes, oldest: u64) -> Result<(), String> {
        let (inode, version) = (attributes.inode, attributes.change_counter);
        if version < oldest {
            return Err(format!("version {version} of {inode} follows version {oldest}"));
        }
        // Do not compare the sizes of directories, because targets update them with a delay in
        // transactions with other targets.
        if attributes.kind == FileKind::Directory {
            return Ok(());
        }
        let state = CachedState {
            size: attributes.size,
            truncate_generation: attributes.truncate_generation,
            permissions: attributes.permissions,
        };
        let known = self.states.entry((inode, version)).or_insert_with(|| state.clone());
        if *known != state {
            return Err(format!("version {version} of {inode} is {known:?} and {state:?}"));
        }
        Ok(())
    }
}

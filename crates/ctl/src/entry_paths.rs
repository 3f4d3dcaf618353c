//! Finds the paths of entries by their ids, with requests to metadata targets. These requests need
//! the cluster's token. For users without the token, [`crate::through_mount::path_of`] finds paths
//! through a mount.
//!
//! The module also parses the ids in the arguments of commands.

use crate::access::{Access, PATIENCE};
use crate::through_mount::without_name;
use skep_rpc::{CallOptions, Channel, MapCell, Router};
use skep_types::{ErrorCode, InodeId, NodeId, Result};
use skep_wire::limits::MAX_DIRECTORY_BYTES;
use skep_wire::metadata::{GetEntryInfo, ReadDirectory};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;

/// Shown in place of the path if the last name of an entry was removed.
pub(crate) const WITHOUT_NAME: &str = "(without a name)";

/// Finds the paths of entries, and caches the paths of the found directories.
pub(crate) struct EntryPaths {
    router: Rc<Router>,
    directories: BTreeMap<InodeId, PathBuf>,
}

/// Parses the id of an entry. Accepts three forms: the form that commands print (`2A-1F`), the name
/// of a chunk file, and an inode number as printed by `ls -i`.
pub(crate) fn parse_id(text: &str) -> Result<InodeId, String> {
    if let Ok(number) = text.parse::<u64>()
        && number > 0
    {
        return Ok(InodeId::new(number));
    }
    let id = text.split_once('.').map_or(text, |(id, _)| id);
    id.parse::<InodeId>().map_err(|_| {
        format!(
            "invalid entry id '{text}': expected the name of a chunk file, an inode number, or \
             SHARD-NUMBER in hex, as in 2A-1F"
        )
    })
}

impl EntryPaths {
    /// Gets the cluster map, and starts with only the root directory in the cache. The caller must
    /// run inside an event loop.
    pub(crate) async fn of(access: &Access) -> Result<Self> {
        let cell = MapCell::new(access.map().await?, NodeId::default());
        let router = Router::new(access.identity(), Channel::random(), cell);
        Ok(Self { router, directories: [(InodeId::ROOT, PathBuf::from("/"))].into() })
    }

    /// Returns the path of an entry from the root of the file system, which begins with `/`.
    ///
    /// # Errors
    /// - `NotFound` if the inode does not exist, has no name, or moved during the search.
    /// - The errors of requests to metadata.
    pub(crate) async fn path_of(&mut self, inode: InodeId) -> Result<PathBuf> {
        let mut above = Vec::new();
        let mut at = inode;
        while !self.directories.contains_key(&at) {
            let info = self.router.call_inode(at, &GetEntryInfo { inode: at }, options()).await;
            let info = info.map_err(|error| match error.code() {
                ErrorCode::NotFound | ErrorCode::Stale => without_name(inode),
                _ => error,
            })?;
            if info.attributes.links == 0 {
                return Err(without_name(inode));
            }
            above.push((at, info.parent));
            at = info.parent;
        }
        let mut path = self.directories.get(&at).cloned().unwrap_or_default();
        for (number, (child, parent)) in above.iter().enumerate().rev() {
            path.push(self.name_in(*parent, *child).await?);
            // Only the first inode in `above` can be a file. All other inodes are directories above
            // the first inode, and the paths of directories are worth caching.
            if number > 0 {
                self.directories.insert(*child, path.clone());
            }
        }
        Ok(path)
    }

    /// Returns the text that a table shows as the path of an entry. If the path cannot be found,
    /// the text is "unknown" with the reason.
    pub(crate) async fn text_of(&mut self, inode: InodeId) -> String {
        match self.path_of(inode).await {
            Ok(path) => path.display().to_string(),
            Err(error) if error.code() == ErrorCode::NotFound => WITHOUT_NAME.to_owned(),
            Err(error) => format!("unknown: {}", error.context()),
        }
    }

    async fn name_in(&self, directory: InodeId, inode: InodeId) -> Result<OsString> {
        let mut cursor = 0;
        loop {
            let max_bytes = MAX_DIRECTORY_BYTES;
            let request = ReadDirectory { directory, cursor, max_bytes, with_attributes: false };
            let page = self.router.call_inode(directory, &request, options()).await?;
            for listed in page.entries {
                if listed.entry.inode == inode {
                    return Ok(OsString::from_vec(listed.name.0));
                }
                cursor = listed.cursor;
            }
            if page.end {
                return Err(without_name(inode));
            }
        }
    }
}

fn options() -> CallOptions {
    CallOptions { time_left: Some(PATIENCE), ..CallOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_ids_are_parsed_in_every_printed_form() {
        let id = InodeId::new(0xDAA5_0000_0002_0003);
        for text in ["DAA5-20003", "DAA5-20003.1.0.0", &id.raw().to_string()] {
            assert_eq!(parse_id(text), Ok(id), "{text}");
        }
        for text in ["", "0", "DAA5", "x-1", "/mnt/file"] {
            assert!(parse_id(text).unwrap_err().contains("2A-1F"), "{text}");
        }
    }
}

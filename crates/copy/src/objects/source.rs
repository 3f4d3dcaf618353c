//! Directories of a source that is copied to an object store.

use super::Pair;
use crate::context::Context;
use crate::failure::Failure;
use crate::plan::Version;
use crate::shares::Key;
use crate::version::present_version;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// The state that all entries of one source share.
#[derive(Debug)]
pub(super) struct Top<'a> {
    pub(super) pair: Pair<'a>,
    /// The prefix of the keys of the notes about uploads.
    pub(super) notes: String,
    /// The common beginning of the keys of the notes that earlier runs of this copy may have left.
    /// For a tree, these are all notes of the tree. For a single file, this is its own note,
    /// because other notes beside it may belong to uploads that are in progress.
    pub(super) leftovers: String,
    /// The identity of this copy in its notes. Another copy to the same place may be in progress,
    /// so only notes with this identity are notes of earlier runs.
    pub(super) copy: String,
    /// The requested length of the parts of a large file.
    pub(super) part: u64,
    /// Device number of the file system that contains the source.
    pub(super) device: u64,
}

/// A directory of the source.
#[derive(Debug)]
pub(super) struct Folder<'a> {
    pub(super) top: Arc<Top<'a>>,
    pub(super) context: Arc<Context>,
    pub(super) file: File,
    /// The prefix of the keys of the directory's entries.
    pub(super) prefix: String,
    /// The path of the directory, for messages.
    pub(super) shown: PathBuf,
    pub(super) share: Key,
    /// The version of the directory before it was listed. `None` means that this is the directory
    /// that contains a source, and is not copied itself.
    pub(super) before: Option<Version>,
}

impl Drop for Folder<'_> {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        if self.context.options.is_dry_run || self.context.is_stopped() {
            return;
        }
        let failure = match present_version(&self.file) {
            Ok(now) if now.modified == before.modified => return,
            Ok(_) => Failure::because(
                "copy the directory",
                "a program added or removed entries during the copy; copy the directory again with \
                 --resume",
            ),
            Err(failure) => failure,
        };
        self.context.problem(&self.shown, &failure);
    }
}

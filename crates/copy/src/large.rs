//! Copies a large file in pieces. Several pieces are copied at the same time.
//!
//! The pieces are written to an incomplete copy in the directory of the final name. After the sync
//! of a piece, a list in another file records it as finished. A run that continues the copy copies
//! only pieces that are not listed as finished. The list must belong to the same version of the
//! source and to this incomplete copy. The thread that finishes the last piece sets the attributes,
//! and renames the copy to its final name.
//!
//! # Hazard: a failed write that another thread sees
//! The kernel reports a failed write of pages once to each descriptor. If two pieces shared a
//! descriptor, the sync of one piece could get the write error of the other piece. The other piece
//! would then be listed as finished although its bytes are lost. For this reason, each piece has
//! its own descriptor, which is opened before the piece is written.
//!
//! In a copy by several hosts, one process begins the incomplete copy. The process of each share
//! copies its pieces. The last process completes the file when all shares have ended.

use crate::attributes;
use crate::data::{self, Files, is_sparse};
use crate::failure::Failure;
use crate::outcome::Counters;
use crate::partial::Partial;
use crate::plan::{Version, piece, piece_count};
use crate::publish::put_in_place;
use crate::shares::{Key, Part};
use crate::tree::{Directory, Entry};
use crate::verification;
use crate::version::{Identity, expect_complete, expect_unchanged, version_of};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A large file whose pieces are being copied.
#[derive(Debug)]
pub(crate) struct Large {
    pub(crate) directory: Arc<Directory>,
    pub(crate) name: OsString,
    pub(crate) copy_name: OsString,
    source: File,
    pub(crate) metadata: Metadata,
    pub(crate) version: Version,
    is_sparse: bool,
    key: Key,
    /// Whether the destination already has an entry with the name of the copy.
    replaces: bool,
    partial: Partial,
    /// The index of the next piece that no thread has taken.
    next: AtomicU64,
    /// Number of pieces that this process still has to copy or compare.
    left: AtomicU64,
    /// Whether a piece has failed. If so, threads skip the remaining pieces, and a later run copies
    /// them.
    has_failed: AtomicBool,
}

/// The state of the copy of a regular file after the thread that found the file in its directory
/// has processed it.
#[derive(Debug)]
pub(crate) enum Copied {
    /// The copy is complete and has its final name.
    Complete(Identity),
    /// The file is large, and threads have to copy its pieces.
    Begun(Arc<Large>),
    /// This process has nothing to do for the file: another process of the copy completes it, or
    /// the file has changed since the first process began.
    Left,
}

/// The state of a large file after one step of a thread.
#[derive(Debug)]
pub(crate) enum Step {
    /// The file may have more pieces to copy.
    More,
    /// No piece is left for this thread, because other threads copy the last pieces, or a piece has
    /// failed.
    End,
    /// The copy is complete and has its final name.
    Complete(Identity),
}

impl Large {
    /// Opens the incomplete copy of a large file, and determines which pieces it still lacks.
    pub(crate) fn begin(
        directory: &Arc<Directory>,
        entry: &Entry,
        source: File,
        metadata: &Metadata,
        replaces: bool,
    ) -> Result<Copied, Failure> {
        let options = &directory.context.options;
        let version = version_of(metadata);
        let destination = directory.destination.as_ref().expect("not in a dry run");
        let parent = &destination.file;
        let partial = match options.part {
            Part::Whole | Part::Prepare => {
                Some(Partial::open(parent, entry.copy(), version, options.resume)?)
            }
            // `None` if the source has changed since the first part of the copy. In this case, the
            // last part of the copy copies the file.
            Part::Share(_) => Partial::join(parent, entry.copy(), version)?,
            Part::Finish => Some(Partial::open(parent, entry.copy(), version, true)?),
        };
        let Some(partial) = partial.filter(|_| options.part != Part::Prepare) else {
            return Ok(Copied::Left);
        };
        let mut large = Self {
            directory: directory.clone(),
            name: entry.name.clone(),
            copy_name: entry.copy().to_owned(),
            is_sparse: is_sparse(&source)?,
            source,
            key: directory.key.entry(&entry.name),
            metadata: metadata.clone(),
            version,
            replaces,
            partial,
            next: AtomicU64::new(0),
            left: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        };
        let count = piece_count(version.len);
        let left = (0..count).filter(|it| large.has_work(*it)).count() as u64;
        let missing =
            (0..count).filter(|it| large.has_work(*it) && !large.partial.is_finished(*it));
        let bytes = missing.map(|it| piece(it, version.len)).map(|it| it.end - it.start).sum();
        Counters::add(&directory.context.counters.pending_bytes, bytes);
        *large.left.get_mut() = left;
        match (left, options.part) {
            (0, Part::Share(_)) => Ok(Copied::Left),
            (0, _) => large.complete().map(Copied::Complete),
            _ => Ok(Copied::Begun(Arc::new(large))),
        }
    }

    /// Whether this process has to copy or compare the piece `index`.
    fn has_work(&self, index: u64) -> bool {
        let options = &self.directory.context.options;
        let is_finished = self.partial.is_finished(index);
        match options.part {
            Part::Share(share) => {
                share.has_piece(self.key, index) && (options.verify || !is_finished)
            }
            // The processes of the shares have compared the pieces that they have finished, so only
            // the other pieces are left.
            Part::Finish => !is_finished,
            Part::Whole | Part::Prepare => options.verify || !is_finished,
        }
    }

    /// Returns the path of the source, for messages.
    pub(crate) fn shown(&self) -> PathBuf {
        self.directory.shown().join(&self.name)
    }

    /// Copies the next piece. The thread that finishes the last piece also completes the file. If
    /// several pieces fail, only the first error is returned.
    pub(crate) fn step(&self) -> Result<Step, Failure> {
        let Some(index) = self.take() else { return Ok(Step::End) };
        let is_share = matches!(self.directory.context.options.part, Part::Share(_));
        let result =
            self.copy_piece(index).and_then(|()| match self.left.fetch_sub(1, Ordering::AcqRel) {
                1 if is_share => Ok(Step::End),
                1 => self.complete().map(Step::Complete),
                _ => Ok(Step::More),
            });
        match result {
            Err(failure) if !self.has_failed.swap(true, Ordering::AcqRel) => Err(failure),
            Err(_) => Ok(Step::End),
            Ok(step) => Ok(step),
        }
    }

    fn take(&self) -> Option<u64> {
        loop {
            if self.has_failed.load(Ordering::Acquire) {
                return None;
            }
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= piece_count(self.version.len) {
                return None;
            }
            if self.has_work(index) {
                return Some(index);
            }
        }
    }

    fn parent(&self) -> &File {
        &self.directory.destination.as_ref().expect("not in a dry run").file
    }

    fn copy_piece(&self, index: u64) -> Result<(), Failure> {
        let context = &self.directory.context;
        let range = piece(index, self.version.len);
        if !self.partial.is_finished(index) {
            let copy = self.partial.reopen(self.parent())?;
            let files = Files { source: &self.source, destination: &copy };
            let (seen, len) = (Cell::new(0), range.end - range.start);
            let pending = &context.counters.pending_bytes;
            let copied = |bytes| {
                seen.set(seen.get() + bytes);
                Counters::add(&context.counters.bytes, bytes);
                pending.fetch_sub(bytes, Ordering::Relaxed);
            };
            let result = data::copy(files, range.clone(), self.is_sparse, &context.pace, copied);
            // `copied` has subtracted only the copied bytes from `pending_bytes`. So subtract the
            // holes of the piece, and after a failure the bytes that were not copied.
            pending.fetch_sub(len - seen.into_inner().min(len), Ordering::Relaxed);
            result?;
            if let Err(error) = copy.sync_data() {
                self.partial.discard(self.parent());
                return Err(Failure::of("sync")(error));
            }
            self.expect_unchanged()?;
            self.partial.note(index)?;
        }
        if context.options.verify {
            let compared = |bytes| Counters::add(&context.counters.verified, bytes);
            let name = &self.partial.name;
            let stored = verification::open(self.parent(), name, &self.partial.copy)?;
            let result = verification::compare(&self.source, &stored, range, compared);
            if result.is_err() {
                self.partial.discard(self.parent());
            }
            result?;
        }
        Ok(())
    }

    /// If the source has another version now, removes the pieces, because no later run can use
    /// them, and fails.
    fn expect_unchanged(&self) -> Result<(), Failure> {
        let result = expect_unchanged(&self.source, self.version);
        if result.is_err() {
            self.partial.discard(self.parent());
        }
        result
    }

    fn complete(&self) -> Result<Identity, Failure> {
        let directory = &self.directory;
        let destination = directory.destination.as_ref().expect("not in a dry run");
        let options = &directory.context.options;
        let copy = &self.partial.copy;
        // The pieces are synced already. `copy` was open before they were written, so its sync
        // reports every failed write of this run.
        let is_clean = !destination.gives_lists;
        attributes::copy(options, &self.source, copy, &self.metadata, is_clean)?;
        if let Err(error) = copy.sync_all() {
            self.partial.discard(&destination.file);
            return Err(Failure::of("sync")(error));
        }
        self.expect_unchanged()?;
        let identity = expect_complete(&self.source, copy, self.version)?;
        let name = &self.partial.name;
        put_in_place(destination, name, identity, &self.copy_name, self.replaces)?;
        self.partial.remove_list(&destination.file)?;
        Counters::add(&directory.context.counters.files, 1);
        Ok(identity)
    }
}

//! Copies a large file in pieces, several at a time.
//!
//! The pieces are written to an incomplete copy next to the final name. After the sync of a piece,
//! its number is added to a list in another file. A run that continues copies only the other
//! pieces, if the list belongs to the same version of the source. The last piece sets the
//! attributes, and gives the copy its name.

use crate::attributes;
use crate::completion::{check_after, put_in_place};
use crate::context::Context;
use crate::data::{self, Failure, Files};
use crate::outcome::Counters;
use crate::plan::{finished_pieces, list_head, partial_names, piece, piece_count};
use crate::tree::{self, Directory, Entry, version};
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A large file whose pieces are being copied.
#[derive(Debug)]
pub(crate) struct Large {
    directory: Arc<Directory>,
    copy_name: OsString,
    /// Path of the source, for messages.
    pub(crate) shown: PathBuf,
    source: File,
    metadata: Metadata,
    destination: File,
    /// The list of finished pieces.
    list: File,
    /// Pieces that are not copied yet.
    remaining: AtomicU64,
    /// Whether a piece has failed. Then the others are left out, and a later run copies them.
    has_failed: AtomicBool,
}

impl Large {
    /// Opens the incomplete copy, and returns the work of its missing pieces.
    pub(crate) fn begin(
        context: &Context<'_>,
        directory: &Arc<Directory>,
        entry: &Entry,
        source: File,
        metadata: Metadata,
    ) -> Result<Vec<(Arc<Self>, u64)>, Failure> {
        let parent = directory.destination.as_ref().expect("a dry run begins no large file");
        let (partial, list_name) = partial_names(&entry.copy);
        let head = list_head(&entry.copy, version(&metadata));
        let continued = match context.options.resume {
            true => continued(parent, &partial, &list_name, &head, metadata.len()),
            false => None,
        };
        let (destination, list, finished) = match continued {
            Some(found) => found,
            None => new(parent, &partial, &list_name, &head, metadata.len())?,
        };
        let count = piece_count(metadata.len());
        let missing: Vec<u64> = (0..count).filter(|it| !finished.contains(it)).collect();
        let bytes = missing.iter().map(|index| piece(*index, metadata.len()));
        let bytes = bytes.map(|range| range.end - range.start).sum();
        Counters::add(&context.counters.pending_bytes, bytes);
        let large = Arc::new(Self {
            directory: directory.clone(),
            copy_name: entry.copy.clone(),
            shown: directory.shown.join(&entry.name),
            source,
            metadata,
            destination,
            list,
            remaining: AtomicU64::new(missing.len() as u64),
            has_failed: AtomicBool::new(false),
        });
        if missing.is_empty() {
            large.complete(context)?;
        }
        // Threads take the last work first.
        Ok(missing.into_iter().rev().map(|index| (large.clone(), index)).collect())
    }

    /// Copies a piece. The last piece completes the file.
    pub(crate) fn copy_piece(&self, context: &Context<'_>, index: u64) -> Result<(), Failure> {
        let range = piece(index, self.metadata.len());
        let len = range.end - range.start;
        let pending = &context.counters.pending_bytes;
        if self.has_failed.load(Ordering::Relaxed) {
            pending.fetch_sub(len, Ordering::Relaxed);
            return Ok(());
        }
        let files = self.files();
        let seen = Cell::new(0);
        let copied = |bytes| {
            seen.set(seen.get() + bytes);
            Counters::add(&context.counters.bytes, bytes);
            pending.fetch_sub(bytes, Ordering::Relaxed);
        };
        let result =
            data::copy(files, range, &context.pace, copied).and_then(|()| self.note(index));
        // Holes were not copied.
        pending.fetch_sub(len.saturating_sub(seen.into_inner()), Ordering::Relaxed);
        if let Err(failure) = result {
            // One error is enough for a file.
            return match self.has_failed.swap(true, Ordering::Relaxed) {
                true => Ok(()),
                false => Err(failure),
            };
        }
        match self.remaining.fetch_sub(1, Ordering::AcqRel) {
            1 => self.complete(context),
            _ => Ok(()),
        }
    }

    /// Records a finished piece, after its data is durable.
    fn note(&self, index: u64) -> Result<(), Failure> {
        self.destination.sync_data().map_err(Failure::of("sync"))?;
        // The file is open for appending, and one write has the whole line.
        let line = format!("{index}\n");
        let written = (&self.list).write_all(line.as_bytes());
        written.map_err(Failure::of("write the list of finished pieces"))
    }

    fn complete(&self, context: &Context<'_>) -> Result<(), Failure> {
        let files = self.files();
        let parent = self.directory.destination.as_ref().expect("a copy has a directory");
        let (partial, list) = partial_names(&self.copy_name);
        attributes::copy(files.source, files.destination, &self.metadata)?;
        if context.options.sync {
            files.destination.sync_all().map_err(Failure::of("sync"))?;
        }
        put_in_place(parent, &partial, &self.copy_name)?;
        let removed = unlinkat(parent, &list, AtFlags::empty());
        removed.map_err(Failure::of("remove the list of finished pieces"))?;
        Counters::add(&context.counters.files, 1);
        check_after(context, files, &self.metadata)
    }

    fn files(&self) -> Files<'_> {
        Files { source: &self.source, destination: &self.destination }
    }
}

type Opened = (File, File, BTreeSet<u64>);

/// Opens the copy of an interrupted run. `None` means that no incomplete copy of
/// this version exists.
fn continued(
    parent: &File,
    partial: &OsString,
    list: &OsString,
    head: &[u8],
    len: u64,
) -> Option<Opened> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = File::from(openat(parent, partial, flags, Mode::empty()).ok()?);
    let list = File::from(openat(parent, list, flags | OFlags::APPEND, Mode::empty()).ok()?);
    let mut text = Vec::new();
    (&list).read_to_end(&mut text).ok()?;
    let finished = finished_pieces(&text, head, len)?;
    if copy.metadata().ok()?.len() != len {
        return None;
    }
    if !text.ends_with(b"\n") {
        (&list).write_all(b"\n").ok()?;
    }
    Some((copy, list, finished))
}

fn new(
    parent: &File,
    partial: &OsString,
    list: &OsString,
    head: &[u8],
    len: u64,
) -> Result<Opened, Failure> {
    // The list is removed first: it must not describe another copy.
    tree::make_way(parent, list)?;
    tree::make_way(parent, partial)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let copy = openat(parent, partial, flags, mode).map_err(Failure::of("create"))?;
    let copy = File::from(copy);
    copy.set_len(len).map_err(Failure::of("set the length"))?;
    let list = openat(parent, list, flags | OFlags::APPEND, mode);
    let list = File::from(list.map_err(Failure::of("create the list of finished pieces"))?);
    let written = (&list).write_all(head);
    written.map_err(Failure::of("write the list of finished pieces"))?;
    Ok((copy, list, BTreeSet::new()))
}

//! The files in the memory of a simulated client. For each file, the client keeps the state that a
//! mount keeps ([`skep_client::InodeState`]), and calls the functions of this state as the mount
//! does: for opens, closes, attributes in replies, writes, truncations and reports. So a simulated
//! client and a mount have the same size of a file after the same events. `known_sizes` checks
//! these sizes.
//!
//! # Differences from a mount
//! - Where the mount lets a write or a truncation wait for another operation of the same mount, the
//!   simulated client does not begin the write or the truncation.
//! - The client does not report its writes before it acknowledges a notification or truncates a
//!   file.
//! - The mount repeats a write to a shared file if another client has truncated the file during the
//!   write. The simulated client abandons the write.
//! - A client that has lost its session drops its handles and forgets its files. A mount reopens
//!   the files.
//! - The client never syncs a file. So a closed file with writes stays in its memory.

use crate::client::Handle;
use crate::knobs::PlantedBug;
use crate::operation::Op;
use crate::world::World;
use skep_client::{InodeState, SizeReport, TruncationClaim, WriteGuard};
use skep_types::codec::Codec;
use skep_types::{Attributes, ChunkFileKey, GroupId, HostIncarnation, InodeId, StripePattern};
use skep_wire::file_locks::SetLockReply;
use skep_wire::metadata as md;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A write that a client has acknowledged to a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcknowledgedWrite {
    /// Truncate generation of the file in the reference model at the acknowledgement.
    pub(crate) truncate_generation: u64,
    /// Offset in the file at which the write ends.
    pub(crate) end: u64,
}

/// A file in the memory of a client.
#[derive(Debug)]
pub(crate) struct KnownFile {
    pub(crate) state: Arc<InodeState>,
    /// Whether the client has a handle of the file, or a close of a handle is in progress.
    is_open: bool,
    /// Number of losses of log records (`Witness::losses`) when the client created its state of the
    /// file.
    pub(crate) losses: u64,
    /// The write with the highest end in the newest truncate generation, of the writes that the
    /// client acknowledged while the file was not shared. Only the checker uses this field.
    pub(crate) written: Option<AcknowledgedWrite>,
    /// Whether the client truncated the file by a request that it had sent before it had this state
    /// of the file. The order of this truncation and the client's writes is then not known.
    pub(crate) has_unclaimed_truncation: bool,
}

/// The open files of a client, and its closed files with unsynced writes.
#[derive(Debug, Default)]
pub(crate) struct Files {
    known: BTreeMap<InodeId, KnownFile>,
    /// Files that the client has truncated by a request, or has changed before it forgot their
    /// state, oldest change first. The mount has the same list (`Inodes::changed` of the client).
    changed: Vec<InodeId>,
}

impl Files {
    pub(crate) fn get(&self, inode: InodeId) -> Option<&KnownFile> {
        self.known.get(&inode)
    }

    /// Returns the number of changes in the list of changed files.
    pub(crate) fn changes(&self) -> usize {
        self.changed.len()
    }

    /// Whether the list of changed files contains this file after the first `before` entries.
    pub(crate) fn has_changed_since(&self, before: usize, inode: InodeId) -> bool {
        self.changed.get(before..).is_some_and(|changed| changed.contains(&inode))
    }

    /// Adds a truncated file to the list of changed files. The caller must first have applied the
    /// reply to the truncation.
    pub(crate) fn note_truncation(&mut self, inode: InodeId) {
        self.changed.push(inode);
    }

    fn state(&self, inode: InodeId) -> Option<Arc<InodeState>> {
        self.get(inode).map(|it| Arc::clone(&it.state))
    }

    /// Returns the file with this state. `None` means that the client has forgotten the state.
    fn with_state(&mut self, inode: InodeId, state: &Arc<InodeState>) -> Option<&mut KnownFile> {
        self.known.get_mut(&inode).filter(|it| Arc::ptr_eq(&it.state, state))
    }

    /// Counts a new handle of a file, and returns the state of the file. `losses` is the number of
    /// losses of log records so far. After a loss, the client begins with a new state, because the
    /// client does not compare its reports with metadata. A sync of a mount makes this comparison.
    pub(crate) fn open(&mut self, inode: InodeId, losses: u64) -> Arc<InodeState> {
        self.known.retain(|id, it| *id != inode || it.is_open || it.losses == losses);
        let file = self.known.entry(inode).or_insert_with(|| KnownFile {
            state: InodeState::new(inode),
            is_open: true,
            losses,
            written: None,
            has_unclaimed_truncation: false,
        });
        file.is_open = true;
        file.state.opened();
        Arc::clone(&file.state)
    }

    /// Records that the close of a handle has ended.
    fn closed(&mut self, inode: InodeId, state: &Arc<InodeState>) {
        if !state.closed() {
            return;
        }
        let Some(file) = self.with_state(inode, state) else { return };
        file.is_open = false;
        if file.has_unclaimed_truncation || state.is_idle() {
            self.known.remove(&inode);
            if state.data_changes() > 0 {
                self.changed.push(inode);
            }
        }
    }

    /// Marks a file as shared with other clients, if the client has the file open.
    pub(crate) fn share(&self, inode: InodeId) {
        if let Some(file) = self.get(inode).filter(|it| it.is_open) {
            file.state.set_shared();
        }
    }

    /// Records the reply to a truncation by this client that did not claim the present state of the
    /// file. The client had no state of the file, or another state, when it sent the request.
    fn truncated_unclaimed(&mut self, attributes: &Attributes, now: Duration) {
        if let Some(file) = self.known.get_mut(&attributes.inode) {
            file.has_unclaimed_truncation = true;
            file.state.observe(attributes, now);
        }
    }

    /// Forgets a file whose handles the client has lost together with its session.
    pub(crate) fn forget(&mut self, inode: InodeId) {
        self.known.remove(&inode);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A write of chunk files in progress.
#[derive(Debug)]
pub(crate) struct ChunkWrite {
    inode: InodeId,
    state: Arc<InodeState>,
    writing: WriteGuard,
    range: Range<u64>,
    pattern: StripePattern,
    /// Truncate generation of the file in the memory of the client when the write began.
    pub(crate) generation: u64,
    pieces: Vec<(ChunkFileKey, GroupId)>,
}

impl ChunkWrite {
    /// Begins a write of `range` through a handle. `pattern` is the pattern of the handle, and
    /// `pieces` are the chunk files that the client writes.
    pub(crate) fn new(
        handle: &Handle,
        writing: WriteGuard,
        range: Range<u64>,
        pattern: &StripePattern,
        pieces: Vec<(ChunkFileKey, GroupId)>,
    ) -> Self {
        let (inode, state) = (handle.inode, Arc::clone(&handle.state));
        let generation = state.end().truncate_generation;
        Self { inode, state, writing, range, pattern: pattern.clone(), generation, pieces }
    }

    /// Records that storage has refused a piece of the write.
    pub(crate) fn fail(self) {
        self.writing.note_reach(self.range.end);
    }
}

/// The change of a file's state by an operation in progress.
#[derive(Debug, Default)]
pub(crate) enum FileChange {
    /// Only the attributes in the reply to the operation may change the state.
    #[default]
    Nothing,
    /// A write of inline bytes.
    InlineWrite(WriteGuard),
    /// A truncation of a file whose state the client has.
    Truncation { state: Arc<InodeState>, claim: TruncationClaim },
    /// A report of writes.
    Report { state: Arc<InodeState>, report: SizeReport },
    /// Closes of handles. If the request contains a report, `report`, the handles are of one file.
    Close { files: Vec<(InodeId, Arc<InodeState>)>, report: Option<SizeReport> },
    /// The last step of a write to a shared file. Metadata confirms that no truncation has removed
    /// bytes of the write, or receives a report of the write.
    SharedWrite { write: Box<ChunkWrite>, report: Option<SizeReport> },
}

impl FileChange {
    /// Begins the close of handles.
    pub(crate) fn close(handles: Vec<Handle>, report: Option<SizeReport>) -> Self {
        let close = |handle: Handle| {
            handle.state.closing(handle.mode == md::OpenMode::Write, false);
            (handle.inode, handle.state)
        };
        Self::Close { files: handles.into_iter().map(close).collect(), report }
    }
}

/// Records attributes in a reply of metadata. With the planted bug, a truncation by another client
/// does not lower the size in the state of the client.
pub(crate) fn observe(
    plant: Option<PlantedBug>,
    state: &InodeState,
    attributes: &Attributes,
    now: Duration,
) {
    let known = state.end();
    if plant == Some(PlantedBug::IgnoreTruncations) && attributes.size < known.size {
        let truncate_generation = known.truncate_generation;
        return state.observe(&Attributes { truncate_generation, ..attributes.clone() }, now);
    }
    state.observe(attributes, now);
}

/// Returns the attributes in a reply that a client records in the state of the file. `None` means
/// that the reply has no such attributes.
fn attributes_of(op: &Op, reply: &[u8]) -> Option<Attributes> {
    match op {
        Op::SetLock(_) => SetLockReply::from_bytes(reply).ok().map(|it| it.attributes),
        Op::Open(_)
        | Op::SetAttributes(_)
        | Op::GetAttributes(_)
        | Op::AwaitTruncation(_)
        | Op::Close(_)
        | Op::ReportWritten(_)
        | Op::WriteInline(_) => op.attributes(reply),
        _ => None,
    }
}

impl World {
    /// Returns the change of a file's state by an operation that begins now. `None` means that the
    /// operation must wait for another operation of this client on the file.
    pub(crate) fn claim(&self, client: usize, op: &Op) -> Option<FileChange> {
        let files = &self.clients[client].files;
        if let Some((inode, _)) = op.truncations() {
            let Some(state) = files.state(inode) else { return Some(FileChange::Nothing) };
            let claim = state.try_truncate().filter(TruncationClaim::is_alone)?;
            return Some(FileChange::Truncation { state, claim });
        }
        if let Op::WriteInline(it) = op
            && let Some(state) = files.state(it.inode)
        {
            return state.try_write().map(FileChange::InlineWrite);
        }
        Some(FileChange::Nothing)
    }

    /// Returns the report of all unreported writes of a client to an open file.
    pub(crate) fn unreported(&self, handle: &Handle) -> Option<SizeReport> {
        let report = handle.state.unreported()?;
        Some(self.measured(report, handle.inode, handle.pattern.as_ref()))
    }

    /// Returns `report`. If the report must contain a measured size, its end becomes the end of the
    /// chunk files. A mount requests the sizes of chunk files from storage.
    fn measured(
        &self,
        mut report: SizeReport,
        inode: InodeId,
        pattern: Option<&StripePattern>,
    ) -> SizeReport {
        if let Some(pattern) = pattern.filter(|_| report.must_measure) {
            let targets = self.targets.len();
            let size = Self::size_of_chunks(&self.storages, targets, inode, pattern);
            report.extent.end = report.extent.end.max(size);
            report.extent.may_leave_holes = true;
        }
        report
    }

    /// Completes a write after storage has acknowledged all its pieces, like the module
    /// `data::complete` of the client. Returns the request that metadata must execute before the
    /// client acknowledges the write to its program. `None` means that the write has ended.
    pub(crate) fn complete_write(
        &mut self,
        client: usize,
        write: ChunkWrite,
    ) -> Option<(Op, FileChange)> {
        for (key, group) in &write.pieces {
            // Simulated storage targets return this incarnation in each reply to a write.
            write.writing.piece_written(*key, *group, HostIncarnation::default());
        }
        if write.writing.note_write_unless_shared(&write.range, write.generation) {
            self.note_write_alone(client, &write);
            return None;
        }
        let end = write.state.end();
        if end.truncate_generation != write.generation {
            return None;
        }
        if write.range.end > end.size {
            return self.report_shared(write);
        }
        let op = Op::AwaitTruncation(md::AwaitTruncation { inode: write.inode });
        Some((op, FileChange::SharedWrite { write: Box::new(write), report: None }))
    }

    /// Records for the checker that a client has acknowledged a write to a program.
    fn note_write_alone(&mut self, client: usize, write: &ChunkWrite) {
        let Some(known) = self.witness.model.inodes.get(&write.inode) else { return };
        let truncate_generation = known.truncate_generation;
        let files = &mut self.clients[client].files;
        if let Some(file) = files.with_state(write.inode, &write.state) {
            let is_current = |it: &AcknowledgedWrite| it.truncate_generation == truncate_generation;
            let earlier = file.written.filter(is_current).map_or(0, |it| it.end);
            let end = write.range.end.max(earlier);
            file.written = Some(AcknowledgedWrite { truncate_generation, end });
        }
    }

    /// Returns the report of a write to a shared file. `None` means that another client has
    /// truncated the file during the write.
    fn report_shared(&self, write: ChunkWrite) -> Option<(Op, FileChange)> {
        let report = write.writing.report_with(&write.range);
        if report.extent.truncate_generation != write.generation {
            return None;
        }
        let report = self.measured(report, write.inode, Some(&write.pattern));
        let written = Some(report.extent);
        let op = Op::ReportWritten(md::ReportWritten { inode: write.inode, written, synced: None });
        Some((op, FileChange::SharedWrite { write: Box::new(write), report: Some(report) }))
    }

    /// Applies the end of an operation to the state of its file. `reply` is `None` if the operation
    /// failed. Returns the next request of a write.
    pub(crate) fn apply_to_file(
        &mut self,
        client: usize,
        op: &Op,
        change: FileChange,
        reply: Option<&[u8]>,
    ) -> Option<(Op, FileChange)> {
        let attributes = reply.and_then(|reply| attributes_of(op, reply));
        let (now, plant) = (self.now, self.knobs.plant);
        let files = &mut self.clients[client].files;
        match (change, attributes) {
            (FileChange::Close { files: closed, report }, attributes) => {
                for (inode, state) in closed {
                    if let (Some(report), Some(attributes)) = (&report, &attributes) {
                        state.reported(report, attributes, false, now);
                    }
                    files.closed(inode, &state);
                }
            }
            (FileChange::SharedWrite { write, .. }, None) => {
                self.unsure.insert(write.inode);
            }
            (_, None) => {}
            (FileChange::SharedWrite { write, report: Some(report) }, Some(attributes)) => {
                write.state.reported(&report, &attributes, false, now);
            }
            (FileChange::SharedWrite { write, report: None }, Some(attributes)) => {
                observe(plant, &write.state, &attributes, now);
                if attributes.truncate_generation > write.generation {
                    return None;
                }
                if write.range.end > attributes.size {
                    return self.report_shared(*write);
                }
                write.writing.note_confirmed_write(write.range.end);
            }
            (FileChange::InlineWrite(writing), Some(attributes)) => {
                if let Op::WriteInline(it) = op
                    && it.extends
                {
                    let end = it.offset + it.bytes.len() as u64;
                    writing.note_inline_write(end, &attributes, now);
                }
            }
            (FileChange::Truncation { state, claim }, Some(attributes)) => {
                claim.done(&attributes, now);
                if files.with_state(attributes.inode, &state).is_none() {
                    files.truncated_unclaimed(&attributes, now);
                }
            }
            (FileChange::Report { state, report }, Some(attributes)) => {
                state.reported(&report, &attributes, false, now);
                if let Some(state) = files.state(attributes.inode) {
                    // The client may have opened the file in a new session since it sent the
                    // report.
                    observe(plant, &state, &attributes, now);
                }
            }
            (FileChange::Nothing, Some(attributes)) if op.truncations().is_some() => {
                files.truncated_unclaimed(&attributes, now);
            }
            (FileChange::Nothing, Some(attributes)) => {
                if let Some(state) = files.state(attributes.inode) {
                    observe(plant, &state, &attributes, now);
                }
            }
        }
        None
    }
}

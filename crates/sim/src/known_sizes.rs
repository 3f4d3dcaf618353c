//! The checker of the file sizes in the memory of clients. A mount answers some questions about the
//! size of an open file from its memory (`data::size` and `attributes::stat` of the client). The
//! simulated clients keep the same state (`files`), and this checker compares the size in this
//! state with the reference model:
//! - If a client alone has the file open for writing, the mount answers reads, appends and the
//!   kernel's checks of its pages without a request. So at every moment, the size must be the
//!   higher of two values: the size of the file in the reference model, and the highest end of this
//!   client's writes. The checker compares these sizes before each operation of the client.
//! - If the file is shared, the mount requests the attributes before each use of the size. After
//!   each reply with attributes, the size in the memory must be the size that the rule above
//!   requires at some moment between the request and the reply.
//!
//! A write counts from its acknowledgement to the program until the next truncation of the file.
//! So the checker verifies, for sizes, the statements 2.1 and 2.4 of `docs/semantics.md` (the size
//! on the writing mount includes every completed write) and 2.7 (a completed truncation removes all
//! earlier bytes on every mount).
//!
//! # Not checked
//! - Files that a client has open only for reading, unless they are shared. A target does not
//!   notify such a client of a truncation by name. The mount detects a lower size when storage
//!   lacks bytes (`data::holes`), and a higher size after a second (1.2).
//! - Moments at which an operation of the client itself changes the size, since both the old and
//!   the new size are right then.
//! - Files that the client had in its memory when a target lost log records, until the client has
//!   closed them.
//! - Files that a dead client had open for writing, since a target may extend such a file.
//! - Opens that have ended at the target together with the session, while the client has not yet
//!   learned of the end.
//! - Files that the client has truncated by a request that it sent before it had a state of the
//!   file.
//! - That the size of a shared file includes the writes of other clients from before the file was
//!   shared (2.4): the simulated client does not report these writes before it acknowledges the
//!   notification.
//! - Times, and the pages in the kernel's cache.

use crate::files::AcknowledgedWrite;
use crate::model::Inode;
use crate::operation::Op;
use crate::world::World;
use skep_types::{FileKind, InodeId, SessionId};
use skep_wire::metadata::OpenMode;
use std::collections::BTreeSet;

/// The size of a file in the reference model at one moment, and its truncate generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelSize {
    pub(crate) truncate_generation: u64,
    pub(crate) size: u64,
}

impl ModelSize {
    /// Returns the size that a client must have if the file has this size in the reference model.
    /// `written` is the furthest write of the client (`KnownFile::written`).
    fn with_own_write(self, written: Option<AcknowledgedWrite>) -> u64 {
        let written = written.filter(|it| it.truncate_generation == self.truncate_generation);
        self.size.max(written.map_or(0, |it| it.end))
    }
}

/// Whether an operation changes the size of its inode, or reports a new size.
fn may_change_size(op: &Op) -> bool {
    op.truncations().is_some()
        || matches!(op, Op::WriteInline(_) | Op::ReportWritten(_) | Op::Close(_))
}

/// Whether the client records the attributes in each successful reply to the operation. The client
/// records the attributes in the reply to a close or to an inline write only in some cases.
fn shows_size(op: &Op) -> bool {
    matches!(
        op,
        Op::Open(_)
            | Op::SetAttributes(_)
            | Op::GetAttributes(_)
            | Op::AwaitTruncation(_)
            | Op::ReportWritten(_)
            | Op::SetLock(_)
    )
}

impl World {
    /// Checks the sizes of all files that a client alone has open for writing.
    pub(crate) fn check_sizes_alone(&mut self, client: usize) {
        let handles = self.clients[client].handles.iter();
        let written: BTreeSet<_> =
            handles.filter(|it| it.mode == OpenMode::Write).map(|it| it.inode).collect();
        for inode in written {
            let Some(file) = self.clients[client].files.get(inode) else { continue };
            if file.state.is_shared() {
                continue;
            }
            let (known, own) = (file.state.end().size, file.written);
            let size = self.size_alone(client, inode);
            self.known_sizes.count(size.is_some());
            let Some(expected) = size.map(|it| it.with_own_write(own)) else { continue };
            if known != expected {
                return self.fail(format!(
                    "client {client} knows the size {known} of {inode}, which it alone has open \
                     for writing; expected {expected}"
                ));
            }
        }
    }

    /// Returns the size in the reference model of a file that a client alone has open for writing.
    /// `None` means that the memory of the client may have another size.
    fn size_alone(&self, client: usize, inode: InodeId) -> Option<ModelSize> {
        let process = &self.clients[client];
        let mut changes = process.tasks.iter().filter_map(|it| it.current.as_ref());
        if changes.any(|it| it.op.home() == inode && may_change_size(&it.op)) {
            return None;
        }
        let file = self.witness.model.inodes.get(&inode).filter(|it| !it.was_left_open)?;
        let mut handles = process.handles.iter().filter(|it| it.inode == inode);
        // A target logs the end of a session before it removes the opens of the session. Other
        // clients may change the file from then on.
        let is_counted = |session: SessionId| {
            let is_open = file.opens.get(&session).is_some_and(|opens| opens.1 > 0);
            is_open && !self.witness.has_ended(session)
        };
        if !handles.any(|it| it.mode == OpenMode::Write && is_counted(it.session)) {
            return None;
        }
        self.is_judged(client, inode)
            .then_some(ModelSize { truncate_generation: file.truncate_generation, size: file.size })
    }

    /// Whether the checker can judge the size in the memory of a client.
    fn is_judged(&self, client: usize, inode: InodeId) -> bool {
        let file = self.clients[client].files.get(inode);
        !self.witness.is_blind
            && file
                .is_some_and(|it| it.losses == self.witness.losses && !it.has_unclaimed_truncation)
    }

    /// Checks the size of a shared file after a reply with attributes. `sizes` are the sizes of the
    /// file at all moments between the request and the reply.
    pub(crate) fn check_size_shared(
        &mut self,
        client: usize,
        op: &Op,
        sizes: Option<&BTreeSet<ModelSize>>,
    ) {
        let inode = op.home();
        let Some(file) = self.clients[client].files.get(inode).filter(|_| shows_size(op)) else {
            return;
        };
        if !file.state.is_shared() {
            return;
        }
        let (known, own) = (file.state.end().size, file.written);
        let sizes = sizes.filter(|it| !it.is_empty() && self.is_judged(client, inode));
        self.known_sizes.count(sizes.is_some());
        let Some(sizes) = sizes else { return };
        let expected: BTreeSet<_> = sizes.iter().map(|it| it.with_own_write(own)).collect();
        if !expected.contains(&known) {
            self.fail(format!(
                "client {client} knows the size {known} of the shared file {inode} after \
                 {op:?}; expected one of {expected:?}"
            ));
        }
    }
}

/// Adds the current size of a file to the sizes of a window. Ignores inodes that are not regular
/// files.
pub(crate) fn note_size(sizes: &mut BTreeSet<ModelSize>, inode: Option<&Inode>) {
    if let Some(file) = inode.filter(|it| it.kind == FileKind::Regular) {
        let (truncate_generation, size) = (file.truncate_generation, file.size);
        sizes.insert(ModelSize { truncate_generation, size });
    }
}

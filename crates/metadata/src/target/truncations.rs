//! Continues truncations after storage has truncated the chunk files.

use crate::engine::Engine;
use crate::namespace::truncation_table::Progress;
use crate::target::MetadataTarget;
use crate::tx::locks::Owner;
use crate::tx::operation::Operation;
use crate::tx::work::InternalWork;
use skep_types::{InodeId, Result};

impl<E: Engine> MetadataTarget<E> {
    /// Handles the reply of a storage group that has truncated a chunk file, or refused to.
    pub(super) fn on_truncated(&mut self, inode: InodeId, result: Result<Vec<u8>>) {
        match self.shared.truncations.on_reply(inode, result) {
            Progress::Complete { operation: Some(operation) } => self.operations.wake([operation]),
            Progress::Complete { operation: None } => {
                self.start_internal(InternalWork::FinishTruncation(inode));
            }
            Progress::Pending => {}
        }
    }

    /// Detaches the truncation of an operation that fails. The target finishes the truncation by
    /// itself.
    pub(super) fn leave_truncation(&mut self, op: &Operation) {
        // Most operations truncate nothing.
        let Some(inode) = op.truncation else { return };
        let Some(left) = self.shared.truncations.leave(inode, op.id) else { return };
        if left.is_complete && left.has_failed {
            self.end_truncation(inode);
        } else if left.is_complete {
            self.start_internal(InternalWork::FinishTruncation(inode));
        }
    }

    /// Ends a truncation that was logged, or that storage has refused.
    pub(super) fn end_truncation(&mut self, inode: InodeId) {
        self.shared.truncations.remove(inode);
        self.release(Owner::Truncation(inode));
        // A size recovery of the file may have waited for the end of the truncation.
        self.background.look_again();
    }
}

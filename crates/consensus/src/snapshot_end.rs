//! The end of the durable snapshot, which is the index of the last entry whose effect the snapshot
//! contains. The state machine reports this end to the log, and the log removes no entry after this
//! end.
//!
//! # Hazard: entries that are only in memory
//! The Raft library installs a snapshot in one task and removes the entries that the snapshot
//! replaces in another task. If the log removed the entries first, a crash between both steps would
//! lose acknowledged entries. The member would then have neither the entries nor the snapshot. So
//! the log waits in [`SnapshotEnd::reached`] before it removes entries.

use skep_env::local::Notify;
use skep_types::{Error, ErrorCode, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A handle to the end of the durable snapshot of one member.
#[derive(Debug, Clone, Default)]
pub(crate) struct SnapshotEnd(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Index of the last entry whose effect the snapshot file contains.
    index: Cell<Option<u64>>,
    /// The reason why no later snapshot will become durable. `None` means that no snapshot has
    /// failed.
    failure: RefCell<Option<String>>,
    changed: Notify,
}

impl SnapshotEnd {
    /// Remembers that the snapshot file contains the effects of all entries up to `index`.
    pub(crate) fn advance(&self, index: u64) {
        self.0.index.set(self.0.index.get().max(Some(index)));
        self.0.changed.notify();
    }

    /// Remembers that the member could not store a snapshot. The member must then end.
    pub(crate) fn fail(&self, error: &Error) {
        *self.0.failure.borrow_mut() = Some(error.to_string());
        self.0.changed.notify();
    }

    /// Waits until the snapshot file contains the effects of all entries up to `index`.
    ///
    /// # Errors
    /// `DeviceFailed` if the member could not store a snapshot.
    pub(crate) async fn reached(&self, index: u64) -> Result<()> {
        loop {
            let changed = self.0.changed.wait();
            if self.0.index.get() >= Some(index) {
                return Ok(());
            }
            if let Some(failure) = &*self.0.failure.borrow() {
                let what = format!(
                    "cannot remove the entries up to {index} from the log, since no snapshot \
                     contains them: {failure}"
                );
                return Err(Error::new(ErrorCode::DeviceFailed, what));
            }
            changed.await;
        }
    }
}

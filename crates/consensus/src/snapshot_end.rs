//! The end of the durable snapshot. The state machine reports it to the log, which removes no entry
//! beyond it.
//!
//! # Hazard: entries that only memory has
//! The Raft library installs a snapshot in one task and removes the entries that the snapshot
//! replaces in another task. If the entries left the disk first, a crash between both steps would
//! leave a member that has acknowledged these entries and has neither them nor the snapshot. So the
//! removal waits here ([`SnapshotEnd::reached`]).

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
    /// The reason why no later snapshot becomes durable.
    failure: RefCell<Option<String>>,
    changed: Notify,
}

impl SnapshotEnd {
    /// Records that the snapshot file contains the effects of all entries up to `index`.
    pub(crate) fn advance(&self, index: u64) {
        self.0.index.set(self.0.index.get().max(Some(index)));
        self.0.changed.notify();
    }

    /// Records that a snapshot could not be stored. The member must end then.
    pub(crate) fn fail(&self, error: &Error) {
        *self.0.failure.borrow_mut() = Some(error.to_string());
        self.0.changed.notify();
    }

    /// Waits until the snapshot file contains the effects of all entries up to `index`.
    ///
    /// # Errors
    /// `DeviceFailed` if a snapshot could not be stored.
    pub(crate) async fn reached(&self, index: u64) -> Result<()> {
        loop {
            let changed = self.0.changed.wait();
            if self.0.index.get() >= Some(index) {
                return Ok(());
            }
            if let Some(failure) = &*self.0.failure.borrow() {
                let what =
                    format!("entries up to {index} stay, since no snapshot has them: {failure}");
                return Err(Error::new(ErrorCode::DeviceFailed, what));
            }
            changed.await;
        }
    }
}

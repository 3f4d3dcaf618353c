//! The number of handles of one file on this mount, and properties of the file that are valid while
//! it is open.

use skep_types::StripePattern;
use std::sync::Arc;

/// The number of handles of a file, and properties of the open file.
///
/// # Invariants
/// - `closing <= opens`.
/// - `writers <= opens - closing`.
/// - `holds <= opens - closing`.
/// - `pattern` is `None` if `opens` is zero.
#[derive(Debug, Default)]
pub(super) struct OpenHandles {
    opens: u32,
    /// Number of handles whose close has begun.
    closing: u32,
    /// Number of handles for writing whose close has not begun.
    writers: u32,
    /// Number of handles of the mount itself (`Opens::hold`) whose close has not begun.
    holds: u32,
    /// Number of open periods of the file so far. A period begins with an open while the file has
    /// no handle.
    lives: u64,
    /// The stripe pattern in the reply to the newest open.
    pattern: Option<Arc<StripePattern>>,
    /// Whether other clients also have the file open, and at least one client may write.
    is_shared: bool,
    /// Whether a program has locked the file or a range of it.
    is_locked: bool,
    /// Whether the kernel, or another program that uses this library, may have cached bytes of the
    /// file since the mount opened it.
    is_cached: bool,
}

impl OpenHandles {
    /// Panics in debug builds if an invariant of the type is violated.
    fn check_invariants(&self) {
        debug_assert!(self.closing <= self.opens, "{self:?}");
        debug_assert!(self.writers <= self.opens - self.closing, "{self:?}");
        debug_assert!(self.holds <= self.opens - self.closing, "{self:?}");
        debug_assert!(self.pattern.is_none() || self.opens > 0, "{self:?}");
    }

    /// Records the stripe pattern in the reply to the open of one of the counted handles.
    pub(super) fn set_pattern(&mut self, pattern: Arc<StripePattern>) {
        self.pattern = Some(pattern);
    }

    /// Returns the stripe pattern in the reply to the newest open. `None` means that the file has
    /// no handle.
    pub(super) fn pattern(&self) -> Option<Arc<StripePattern>> {
        self.pattern.clone()
    }

    pub(super) fn opened(&mut self) {
        if self.opens == 0 {
            // The file was closed, and its last close has released all its locks. So the facts that
            // were recorded while the file was open are not valid any more.
            self.is_shared = false;
            self.is_locked = false;
            self.is_cached = false;
            self.lives += 1;
        }
        self.opens += 1;
    }

    /// Records that one of the counted handles is open for writing.
    pub(super) fn opened_for_writing(&mut self) {
        self.writers += 1;
        self.check_invariants();
    }

    /// Records that one of the counted handles is a hold: the mount itself uses it, and no program
    /// (`Opens::hold`).
    pub(super) fn held(&mut self) {
        self.holds += 1;
        self.check_invariants();
    }

    /// Returns whether a handle is open for writing.
    pub(super) fn has_writers(&self) -> bool {
        self.writers > 0
    }

    pub(super) fn closing(&mut self, is_writer: bool, is_hold: bool) {
        self.closing += 1;
        self.writers -= u32::from(is_writer);
        self.holds -= u32::from(is_hold);
        self.check_invariants();
    }

    /// Records that a close has ended. Returns whether the file has no other handle.
    pub(super) fn closed(&mut self) -> bool {
        debug_assert!(
            self.opens > 0 && self.closing > 0,
            "only a close that has begun can end: {self:?}"
        );
        // In release builds, a close without an open handle must not make the count wrap around to
        // 4 billion handles.
        self.opens = self.opens.saturating_sub(1);
        self.closing = self.closing.saturating_sub(1);
        if self.opens == 0 {
            self.pattern = None;
        }
        self.check_invariants();
        self.opens == 0
    }

    /// Returns whether the file has more than one handle.
    pub(super) fn has_several(&self) -> bool {
        self.opens > 1
    }

    pub(super) fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// Returns the id of the current open period of the file. A period begins when this mount
    /// opens the file while it has no handle of it. `None` means that the file is not open now.
    pub(super) fn life(&self) -> Option<u64> {
        self.is_open().then_some(self.lives)
    }

    pub(super) fn has_live_handles(&self) -> bool {
        self.opens > self.closing + self.holds
    }

    pub(super) fn is_being_closed(&self) -> bool {
        self.opens > 0 && self.opens == self.closing
    }

    pub(super) fn set_shared(&mut self) {
        self.is_shared = true;
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(super) fn set_locked(&mut self) {
        self.is_locked = true;
    }

    pub(super) fn is_locked(&self) -> bool {
        self.is_locked
    }

    pub(super) fn set_cached(&mut self) {
        self.is_cached = true;
    }

    pub(super) fn is_cached(&self) -> bool {
        self.is_cached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_and_sharing_state_of_a_file_ends_with_its_last_close() {
        let mut handles = OpenHandles::default();
        assert_eq!(handles.life(), None);
        handles.opened();
        handles.opened();
        handles.set_shared();
        handles.set_locked();
        assert_eq!(handles.life(), Some(1));
        handles.closing(false, false);
        assert!(handles.has_live_handles() && !handles.is_being_closed());
        assert!(!handles.closed());
        handles.closing(false, false);
        assert!(handles.is_being_closed() && !handles.has_live_handles());
        assert!(handles.closed());
        handles.opened();
        assert_eq!((handles.life(), handles.is_shared()), (Some(2), false));
        assert!(!handles.is_locked(), "reads need not confirm the lease of released locks");
    }

    #[test]
    fn file_opened_only_by_the_mount_itself_is_not_in_use() {
        let mut handles = OpenHandles::default();
        handles.opened();
        handles.held();
        assert!(handles.is_open() && !handles.has_live_handles() && !handles.is_being_closed());
        handles.opened();
        assert!(handles.has_live_handles());
        handles.closing(false, true);
        assert!(handles.has_live_handles());
        assert!(!handles.closed());
        handles.closing(false, false);
        assert!(!handles.has_live_handles());
    }
}

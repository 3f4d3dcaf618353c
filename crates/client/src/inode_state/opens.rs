//! The handles of one file on this mount: how many there are, and notes that hold while it is open.

/// Handles of a file, and notes about it.
///
/// # Invariants
/// `closing <= opens`.
#[derive(Debug, Default)]
pub(super) struct OpenHandles {
    opens: u32,
    /// Handles among them whose close has begun.
    closing: u32,
    /// How often the file was opened when it wasn't open.
    lives: u64,
    /// Other clients have it open too, and at least one client may write.
    is_shared: bool,
    /// A program has locked something of it since it was opened.
    is_locked: bool,
    /// Bytes of it were read for a cache of the caller's since it was opened.
    is_cached: bool,
}

impl OpenHandles {
    fn debug_check(&self) {
        debug_assert!(self.closing <= self.opens, "{self:?}");
    }

    pub(super) fn opened(&mut self) {
        if self.opens == 0 {
            self.is_shared = false;
            self.is_cached = false;
            self.lives += 1;
        }
        self.opens += 1;
    }

    pub(super) fn closing(&mut self) {
        self.closing += 1;
        self.debug_check();
    }

    /// Notes the end of a close that had begun; whether it was the last handle.
    pub(super) fn closed(&mut self) -> bool {
        debug_assert!(self.opens > 0 && self.closing > 0, "closed without a close: {self:?}");
        // In release builds a surplus close must not turn into 4 billion open handles.
        self.opens = self.opens.saturating_sub(1);
        self.closing = self.closing.saturating_sub(1);
        self.debug_check();
        self.opens == 0
    }

    pub(super) fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// How often the file was opened when it wasn't open; `None` if it isn't open.
    pub(super) fn life(&self) -> Option<u64> {
        self.is_open().then_some(self.lives)
    }

    pub(super) fn has_live_handles(&self) -> bool {
        self.opens > self.closing
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
    fn a_new_life_begins_when_a_closed_file_is_opened() {
        let mut handles = OpenHandles::default();
        assert_eq!(handles.life(), None);
        handles.opened();
        handles.opened();
        handles.set_shared();
        assert_eq!(handles.life(), Some(1));
        handles.closing();
        assert!(handles.has_live_handles() && !handles.is_being_closed());
        assert!(!handles.closed());
        handles.closing();
        assert!(handles.is_being_closed() && !handles.has_live_handles());
        assert!(handles.closed());
        handles.opened();
        assert_eq!((handles.life(), handles.is_shared()), (Some(2), false));
    }
}

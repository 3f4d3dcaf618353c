//! The kernel's view of one file: the attributes that this mount last sent to the kernel, and
//! whether the kernel's cached pages of the file are certainly valid. Pure.
//!
//! Before the kernel reads from its pages, it requests the attributes of the file, and drops all
//! pages if the modification time has changed. After a write of this mount the time has changed,
//! although the pages are valid. So the mount replies with the attributes that it sent before.
//!
//! Does not own the condition that no other client uses the file (`opens`), or the check that the
//! lease has not run out (`attributes::stat`).

use skep_types::Attributes;

/// The kernel's view of a file since this mount opened the file.
#[derive(Debug, Default)]
pub(super) struct KernelView {
    /// The attributes that the mount last sent to the kernel.
    shown: Option<Attributes>,
    /// This mount has written to the file.
    has_own_writes: bool,
    /// The kernel must compare modification times again: a write has bypassed its pages, or other
    /// clients may have changed the file without a notification.
    must_compare: bool,
}

impl KernelView {
    /// Records that the mount sends these attributes to the kernel.
    pub(super) fn note_shown(&mut self, attributes: &Attributes) {
        self.shown = Some(attributes.clone());
    }

    /// Records that this mount writes to the file.
    pub(super) fn note_write(&mut self) {
        self.has_own_writes = true;
    }

    /// Records that the kernel's pages may be out of date.
    pub(super) fn must_compare(&mut self) {
        self.must_compare = true;
    }

    /// Returns the attributes that the kernel has seen last. `None` means that the kernel must get
    /// the present attributes.
    pub(super) fn shown(&self) -> Option<&Attributes> {
        let is_usable = self.has_own_writes && !self.must_compare;
        self.shown.as_ref().filter(|_| is_usable)
    }
}

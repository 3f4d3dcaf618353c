//! Records two facts about the kernel's caches of one file: the attributes that this mount last
//! sent to the kernel, and whether the kernel's cached pages of the file are certainly valid. Pure.
//!
//! Before the kernel reads from its pages, it requests the attributes of the file, and drops all
//! pages if the modification time has changed. After a write of this mount, the modification time
//! has changed, although the pages are valid. So the mount replies with the attributes that it sent
//! before.
//!
//! # Hazard: pages that are dropped during a write
//! If the kernel drops a page while it writes this page to the mount, a read may put the bytes from
//! before the write into the cache. The kernel must drop such pages again. So the mount sends its
//! current attributes to the kernel until the kernel has once dropped its pages while no write was
//! in progress.
//!
//! `opens` records whether other clients use the file. `attributes::stat` checks that the lease has
//! not run out.

use skep_types::Attributes;

/// The attributes and pages of a file that the kernel may have cached since this mount opened it.
#[derive(Debug, Default)]
pub(super) struct KernelView {
    /// The attributes that the mount last sent to the kernel.
    shown: Option<Attributes>,
    /// Number of writes that this mount has begun.
    writes: u64,
    /// Set when the mount sends attributes that make the kernel drop its pages. `None` means that
    /// the kernel has dropped all pages that it must drop.
    drop: Option<PageDrop>,
    /// Whether the kernel must compare modification times before it reads from its pages. For this,
    /// the mount must send the current attributes. The comparison is necessary if a write has
    /// bypassed these pages, or if other clients may have changed the file without a notification.
    must_compare: bool,
}

/// This mount's writes to the file at the moment when the mount sent attributes that make the
/// kernel drop its pages.
#[derive(Debug, Clone, Copy)]
struct PageDrop {
    /// Number of writes that the mount had begun when the mount sent the attributes.
    writes: u64,
    /// Whether a write of the mount was in progress when the mount sent the attributes.
    is_writing: bool,
}

impl KernelView {
    /// Records that the mount sends these attributes to the kernel. `is_writing` means that a write
    /// of this mount is in progress.
    pub(super) fn note_shown(&mut self, attributes: &Attributes, is_writing: bool) {
        let is_same = |shown: &Attributes| {
            shown.modified == attributes.modified && shown.size == attributes.size
        };
        if !self.shown.as_ref().is_some_and(is_same) {
            self.drop = Some(PageDrop { writes: self.writes, is_writing });
        }
        self.shown = Some(attributes.clone());
    }

    /// Records that this mount writes to the file.
    pub(super) fn note_write(&mut self) {
        self.writes += 1;
    }

    /// Records that the kernel's pages may be out of date.
    pub(super) fn must_compare(&mut self) {
        self.must_compare = true;
    }

    /// Returns the attributes that the mount last sent to the kernel. `None` means that the kernel
    /// must get the current attributes.
    pub(super) fn shown(&mut self) -> Option<&Attributes> {
        if let Some(drop) = self.drop {
            if drop.is_writing || drop.writes != self.writes {
                return None;
            }
            self.drop = None;
        }
        let is_usable = self.writes > 0 && !self.must_compare;
        self.shown.as_ref().filter(|_| is_usable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{FileKind, InodeId, Timestamp};

    fn attributes(seconds: i64) -> Attributes {
        let time = Timestamp { seconds, nanoseconds: 0 };
        Attributes::new(InodeId::new(1), FileKind::Regular, 0o644, time)
    }

    #[test]
    fn kernel_drops_pages_again_if_a_write_ran_during_the_drop() {
        let mut view = KernelView::default();
        view.note_shown(&attributes(1), false);
        assert_eq!(view.shown(), None, "this mount has not written");
        view.note_write();
        view.note_shown(&attributes(2), true);
        assert_eq!(view.shown(), None, "a write was in progress");
        view.note_shown(&attributes(3), false);
        assert_eq!(view.shown(), Some(&attributes(3)));
        view.note_write();
        assert_eq!(view.shown(), Some(&attributes(3)), "the pages contain the write");
        view.note_shown(&attributes(4), false);
        view.note_write();
        assert_eq!(view.shown(), None, "the kernel may have dropped the pages during the write");
        view.note_shown(&attributes(5), false);
        assert_eq!(view.shown(), Some(&attributes(5)));
    }
}

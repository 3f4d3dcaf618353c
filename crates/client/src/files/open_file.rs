//! The open file of one handle, and the reasons why operations through the handle may fail.

use crate::files::opened_bytes::{FileState, OpenedBytes};
use crate::inode_state::InodeState;
use skep_cluster::striping;
use skep_types::{Error, ErrorCode, Result, StripePattern};
use skep_wire::metadata::OpenMode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<InodeState>,
    pub(crate) mode: OpenMode,
    /// The pattern in the reply to the open.
    pattern: Arc<StripePattern>,
    /// The pattern after the move of the inline bytes to storage. Empty before the move.
    moved: OnceLock<StripePattern>,
    /// Whether the file was larger than its inline bytes when the handle was opened.
    pub(crate) was_grown: bool,
    /// Whether the mount itself has opened the file (`Opens::hold`). No program uses such a handle.
    is_hold: bool,
    /// Whether metadata has lost this open, and this mount could not restore it: the file could not
    /// be opened again, or had another stripe pattern. Every operation through a stale handle
    /// except the close fails.
    is_stale: AtomicBool,
    /// Whether locks of this handle were lost. After such a loss, every operation through the
    /// handle except the close fails.
    has_lost_locks: AtomicBool,
    /// Whether the handle was open for writing when this client was evicted. Every operation
    /// through a fenced handle except the close fails.
    is_fenced: AtomicBool,
    is_closing: AtomicBool,
    /// Whether the program opened the handle with `O_SYNC` or `O_DSYNC`. Each write must then be
    /// durable when it returns.
    is_synced: AtomicBool,
    /// The inode's number of losses (`InodeState::losses`) when this handle last reported a loss to
    /// the program, or when the handle was opened.
    seen_losses: AtomicU64,
    /// The mutex protects only this value.
    first_read: Mutex<FirstRead>,
    /// Whether `first_read` is not [`FirstRead::Done`]. Each read checks this without a lock.
    awaits_first_read: AtomicBool,
    /// The version of the file in the reply to the open, while the kernel may not have dropped its
    /// outdated pages yet. Zero after a request through the handle has shown that the kernel has
    /// handled the reply.
    dropping_for: AtomicU64,
}

/// The first read of a file through a handle.
#[derive(Debug, Default)]
pub(crate) enum FirstRead {
    /// The first read through the handle has ended, or needs no special treatment.
    #[default]
    Done,
    /// The open has not requested the bytes, since the kernel probably has them. A read then shows
    /// that the kernel has dropped its pages.
    Unlikely,
    /// The open has returned the bytes, and no read has used them yet.
    Prepared(OpenedBytes),
}

impl OpenFile {
    pub(crate) fn new(inode: Arc<InodeState>, mode: OpenMode, pattern: StripePattern) -> Self {
        let seen_losses = AtomicU64::new(inode.losses());
        let was_grown = inode.size() > pattern.inline_bytes();
        let pattern = Arc::new(pattern);
        inode.set_pattern(Arc::clone(&pattern));
        if mode == OpenMode::Write {
            inode.opened_for_writing();
        }
        Self {
            inode,
            mode,
            pattern,
            moved: OnceLock::new(),
            was_grown,
            is_hold: false,
            is_stale: AtomicBool::new(false),
            has_lost_locks: AtomicBool::new(false),
            is_fenced: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_synced: AtomicBool::new(false),
            seen_losses,
            first_read: Mutex::default(),
            awaits_first_read: AtomicBool::new(false),
            dropping_for: AtomicU64::new(0),
        }
    }

    /// Creates the state of a handle that the mount itself uses (`Opens::hold`).
    pub(crate) fn new_hold(inode: Arc<InodeState>, mode: OpenMode, pattern: StripePattern) -> Self {
        inode.held();
        Self { is_hold: true, ..Self::new(inode, mode, pattern) }
    }

    /// Returns the stripe pattern of the file. The pattern changes when the inline bytes of the
    /// file move to storage, so an operation must use the same reference from its start to its end.
    pub(crate) fn pattern(&self) -> &StripePattern {
        let pattern: &StripePattern = &self.pattern;
        if pattern.inline_bytes() == 0 || !self.inode.has_moved_inline(pattern.generation) {
            return pattern;
        }
        // If no component on storage can store the inline bytes, they never move.
        self.moved
            .get_or_init(|| striping::without_inline(pattern).unwrap_or_else(|| pattern.clone()))
    }

    /// Returns whether the pattern `used` has no inline bytes, although the present pattern has
    /// some again: the move of the inline bytes to storage was reverted since. The client must then
    /// repeat a write with `used`, because no reader would find its bytes.
    pub(crate) fn is_move_reverted(&self, used: &StripePattern) -> bool {
        used.inline_bytes() == 0 && self.pattern().inline_bytes() > 0
    }

    fn first_read(&self) -> MutexGuard<'_, FirstRead> {
        self.first_read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_first_read(&self, first_read: FirstRead) {
        *self.first_read() = first_read;
        self.awaits_first_read.store(true, Ordering::Release);
    }

    /// Sets the first read to [`FirstRead::Done`], and returns its previous state.
    pub(crate) fn take_first_read(&self) -> FirstRead {
        self.awaits_first_read.store(false, Ordering::Release);
        std::mem::take(&mut self.first_read())
    }

    /// Returns whether the first read is [`FirstRead::Done`]. Takes no lock.
    pub(crate) fn is_first_read_done(&self) -> bool {
        !self.awaits_first_read.load(Ordering::Acquire)
    }

    /// Records that the kernel drops its outdated pages when it handles the reply to the open. This
    /// reply has the version `version` of the file.
    pub(crate) fn await_page_drop(&self, version: u64) {
        self.dropping_for.store(version, Ordering::Release);
    }

    /// Returns the version that [`Self::await_page_drop`] has recorded, and forgets this version.
    /// Takes no lock.
    pub(crate) fn take_page_drop(&self) -> Option<u64> {
        // Each read and write calls this function, and the value is nearly always zero. A load is
        // faster than the exchange below.
        if self.dropping_for.load(Ordering::Acquire) == 0 {
            return None;
        }
        Some(self.dropping_for.swap(0, Ordering::AcqRel)).filter(|version| *version > 0)
    }

    /// Calls `copy` with the bytes from the reply to the open, if these bytes are current. Returns
    /// whether they are.
    pub(crate) fn with_opened_bytes(&self, file: &FileState, copy: impl FnOnce(&[u8])) -> bool {
        let first_read = self.first_read();
        let FirstRead::Prepared(opened) = &*first_read else { return false };
        opened.of(file).map(copy).is_some()
    }

    pub(crate) fn set_stale(&self) {
        self.inode.must_compare();
        self.is_stale.store(true, Ordering::Release);
    }

    /// Marks the handle as fenced, because another client may have changed the file since the
    /// eviction.
    pub(crate) fn set_fenced(&self) {
        self.inode.must_compare();
        self.is_fenced.store(true, Ordering::Release);
    }

    pub(crate) fn set_locks_lost(&self) {
        self.has_lost_locks.store(true, Ordering::Release);
    }

    /// Returns whether the handle is stale or fenced. Of such a handle, only the close succeeds.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Acquire) || self.is_fenced.load(Ordering::Acquire)
    }

    /// Checks that operations through the handle may succeed. The check fails if the mount could
    /// not open the file again after its session was lost. It also fails if another client may have
    /// changed the file since an eviction, or if locks of this handle were lost.
    pub(crate) fn check_live(&self) -> Result<()> {
        if self.has_lost_locks.load(Ordering::Acquire) {
            let text = format!(
                "cannot use file {}: its locks were lost, since this client was disconnected for \
                 longer than its lease, or since a metadata host lost power and another client got \
                 the locks; close the file",
                self.inode.id
            );
            return Err(Error::new(ErrorCode::Io, text));
        }
        if !self.is_stale() {
            return Ok(());
        }
        if self.is_fenced.load(Ordering::Acquire) {
            let text = format!(
                "cannot use file {}: this client was disconnected for longer than its lease, and \
                 other clients may have written to the file; open the file again",
                self.inode.id
            );
            return Err(Error::new(ErrorCode::Evicted, text));
        }
        let text = format!(
            "cannot use file {}: after a power loss or a long disconnection, metadata did not have \
             the record of this open, and the file was removed or got another stripe pattern; open \
             the file again, and repeat the writes",
            self.inode.id
        );
        Err(Error::new(ErrorCode::Stale, text))
    }

    /// Records that the handle was opened with `O_SYNC` or `O_DSYNC`.
    pub(crate) fn set_synced(&self) {
        self.is_synced.store(true, Ordering::Release);
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Acquire)
    }

    /// Returns whether the close of the handle has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Begins the close of the handle. Returns `false` if its close has already begun.
    pub(crate) fn begin_close(&self) -> bool {
        let is_first = !self.is_closing.swap(true, Ordering::AcqRel);
        if is_first {
            self.inode.closing(self.mode == OpenMode::Write, self.is_hold);
        }
        is_first
    }

    /// Returns whether acknowledged writes were lost since the last call of this function on this
    /// handle.
    pub(crate) fn take_loss(&self) -> bool {
        let losses = self.inode.losses();
        self.seen_losses.swap(losses, Ordering::AcqRel) != losses
    }
}

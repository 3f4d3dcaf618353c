//! Open handles and the inodes behind them, shared by all threads of a mount.

use crate::inode_state::InodeState;
use crate::limits::{MAX_CLOSED_UNSYNCED, MAX_HANDLES, TABLE_PARTS};
use skep_types::{Error, ErrorCode, InodeId, Result, StripePattern};
use skep_wire::metadata::OpenMode;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Names an open file on all threads of a mount. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(u64);

impl HandleId {
    /// Wraps the number, as the kernel gives it back.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The number.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// Which part of a table holds a number: neighbours go to different parts.
pub(crate) fn part_of(number: u64) -> usize {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % TABLE_PARTS
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<InodeState>,
    pub(crate) mode: OpenMode,
    pub(crate) pattern: StripePattern,
    /// The session was lost and the file is gone: nothing but close works.
    is_stale: AtomicBool,
    /// What was locked through it was lost with the session: nothing but close works.
    has_lost_locks: AtomicBool,
    /// It was open for writing when this client was evicted: nothing but close works.
    is_fenced: AtomicBool,
    is_closing: AtomicBool,
    /// What is changed through it is to be on the devices when the call returns.
    is_synced: AtomicBool,
    /// Losses that the user of the handle was told of.
    seen_losses: AtomicU64,
}

impl OpenFile {
    pub(crate) fn new(inode: Arc<InodeState>, mode: OpenMode, pattern: StripePattern) -> Self {
        let seen_losses = AtomicU64::new(inode.losses());
        Self {
            inode,
            mode,
            pattern,
            is_stale: AtomicBool::new(false),
            has_lost_locks: AtomicBool::new(false),
            is_fenced: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_synced: AtomicBool::new(false),
            seen_losses,
        }
    }

    pub(crate) fn set_stale(&self) {
        self.is_stale.store(true, Ordering::Release);
    }

    /// Others may have had the file since.
    pub(crate) fn set_fenced(&self) {
        self.is_fenced.store(true, Ordering::Release);
    }

    pub(crate) fn set_locks_lost(&self) {
        self.has_lost_locks.store(true, Ordering::Release);
    }

    /// Whether nothing but close works.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Acquire) || self.is_fenced.load(Ordering::Acquire)
    }

    /// Checks that it wasn't found removed when its session was lost, that others can't have had it
    /// meanwhile, and that what was locked of it is.
    pub(crate) fn check_live(&self) -> Result<()> {
        if self.has_lost_locks.load(Ordering::Acquire) {
            let text = format!(
                "file {}: what was locked was lost while this client was out of touch for longer \
                 than its lease: close the file",
                self.inode.id
            );
            return Err(Error::new(ErrorCode::Io, text));
        }
        if !self.is_stale() {
            return Ok(());
        }
        if self.is_fenced.load(Ordering::Acquire) {
            let text = format!(
                "file {}: this client was out of touch for longer than its lease, and others may \
                 have written to it since: open it anew",
                self.inode.id
            );
            return Err(Error::new(ErrorCode::Evicted, text));
        }
        let text = format!(
            "file {}: it was removed while this client was out of touch for longer than its lease",
            self.inode.id
        );
        Err(Error::new(ErrorCode::Stale, text))
    }

    /// What is changed through it is to be on the devices when the call returns.
    pub(crate) fn set_synced(&self) {
        self.is_synced.store(true, Ordering::Release);
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Acquire)
    }

    /// Whether its close has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Begins to close it; `false` if somebody else does.
    pub(crate) fn begin_close(&self) -> bool {
        let is_first = !self.is_closing.swap(true, Ordering::AcqRel);
        if is_first {
            self.inode.closing();
        }
        is_first
    }

    /// Whether writes were lost that the user of this handle hasn't been told of; he is now.
    pub(crate) fn take_loss(&self) -> bool {
        let losses = self.inode.losses();
        self.seen_losses.swap(losses, Ordering::AcqRel) != losses
    }
}

fn stale(handle: HandleId) -> Error {
    Error::new(ErrorCode::Stale, format!("handle {} is not open", handle.raw()))
}

/// All open files of a mount.
#[derive(Debug)]
pub(crate) struct Handles {
    /// Each mutex protects its part alone; none is taken while another is held.
    parts: Vec<Mutex<HashMap<HandleId, Arc<OpenFile>>>>,
    next: AtomicU64,
    count: AtomicUsize,
}

impl Handles {
    pub(crate) fn new() -> Self {
        Self {
            parts: (0..TABLE_PARTS).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(1),
            count: AtomicUsize::new(0),
        }
    }

    fn with<T>(
        &self,
        handle: HandleId,
        f: impl FnOnce(&mut HashMap<HandleId, Arc<OpenFile>>) -> T,
    ) -> T {
        let part = &self.parts[part_of(handle.raw())];
        f(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether another handle may be opened.
    pub(crate) fn check_limit(&self) -> Result<()> {
        if self.count.load(Ordering::Relaxed) < MAX_HANDLES {
            return Ok(());
        }
        let text = format!("the mount has {MAX_HANDLES} files open: close some");
        Err(Error::new(ErrorCode::LimitReached, text))
    }

    pub(crate) fn insert(&self, file: OpenFile) -> HandleId {
        let handle = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.with(handle, |part| part.insert(handle, Arc::new(file)));
        handle
    }

    /// The open file of a handle.
    pub(crate) fn get(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        let file = self.with(handle, |part| part.get(&handle).map(Arc::clone));
        file.ok_or_else(|| stale(handle))
    }

    /// The same, if it isn't being closed and its file still exists.
    pub(crate) fn get_live(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        let file = self.get(handle)?;
        if file.is_closing() {
            return Err(stale(handle));
        }
        file.check_live()?;
        Ok(file)
    }

    pub(crate) fn remove(&self, handle: HandleId) {
        if self.with(handle, |part| part.remove(&handle)).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// All open files that `filter` picks.
    pub(crate) fn select(&self, filter: impl Fn(&OpenFile) -> bool) -> Vec<Arc<OpenFile>> {
        let mut selected = Vec::new();
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            selected.extend(part.values().filter(|file| filter(file)).map(Arc::clone));
        }
        selected
    }
}

/// Inodes that are open, or were and have writes that nobody synced.
#[derive(Debug)]
pub(crate) struct Inodes {
    /// Each mutex protects its part alone. Order: part, then queue, then an inode's own.
    parts: Vec<Mutex<HashMap<InodeId, Arc<InodeState>>>>,
    /// Closed ones with writes that nobody synced, oldest first.
    closed: Mutex<VecDeque<Arc<InodeState>>>,
}

impl Inodes {
    pub(crate) fn new() -> Self {
        let parts = (0..TABLE_PARTS).map(|_| Mutex::default()).collect();
        Self { parts, closed: Mutex::default() }
    }

    fn with<T>(
        &self,
        inode: InodeId,
        f: impl FnOnce(&mut HashMap<InodeId, Arc<InodeState>>) -> T,
    ) -> T {
        let part = &self.parts[part_of(inode.raw())];
        f(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is known of an inode, if anything has to be.
    pub(crate) fn get(&self, inode: InodeId) -> Option<Arc<InodeState>> {
        self.with(inode, |part| part.get(&inode).map(Arc::clone))
    }

    /// One handle more.
    pub(crate) fn open(&self, inode: InodeId) -> Arc<InodeState> {
        self.with(inode, |part| {
            let state = part.entry(inode).or_insert_with(|| InodeState::new(inode));
            state.opened();
            Arc::clone(state)
        })
    }

    /// One handle less. Gives an inode that is closed and has to be synced now, when there are too
    /// many of them.
    pub(crate) fn close(&self, state: &Arc<InodeState>) -> Option<Arc<InodeState>> {
        self.with(state.id, |part| {
            if !state.closed() {
                return None;
            }
            if state.is_idle() {
                part.remove(&state.id);
                return None;
            }
            self.queue(state)
        })
    }

    fn queue(&self, state: &Arc<InodeState>) -> Option<Arc<InodeState>> {
        if state.set_queued(true) {
            return None;
        }
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.push_back(Arc::clone(state));
        if closed.len() <= MAX_CLOSED_UNSYNCED {
            return None;
        }
        let oldest = closed.pop_front()?;
        oldest.set_queued(false);
        oldest.is_closed_unsynced().then_some(oldest)
    }

    /// Forgets an inode if nothing has to be remembered of it: after a sync.
    pub(crate) fn forget_idle(&self, inode: InodeId) {
        self.with(inode, |part| {
            if part.get(&inode).is_some_and(|state| state.is_idle()) {
                part.remove(&inode);
            }
        });
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<InodeState>> {
        let mut all = Vec::new();
        for part in &self.parts {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(part.values().map(Arc::clone));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ChunkFileKey, GroupId, HostIncarnation};

    fn dirty(inodes: &Inodes, number: u64) -> Arc<InodeState> {
        let id = InodeId::new(number);
        let state = inodes.open(id);
        let key = ChunkFileKey { inode: id, generation: 1, component: 0, index: 0 };
        let writing = state.try_write().unwrap();
        writing.piece_written(key, GroupId::new(1), HostIncarnation::new(1));
        drop(writing);
        state
    }

    fn close(inodes: &Inodes, state: &Arc<InodeState>) -> Option<Arc<InodeState>> {
        state.closing();
        inodes.close(state)
    }

    #[test]
    fn closed_inodes_are_forgotten_once_synced() {
        let inodes = Inodes::new();
        let state = dirty(&inodes, 1);
        assert!(close(&inodes, &state).is_none());
        assert!(inodes.get(state.id).is_some());
        state.synced(&state.unsynced()[0], HostIncarnation::new(1));
        inodes.forget_idle(state.id);
        assert!(inodes.get(state.id).is_none());
        let clean = inodes.open(InodeId::new(2));
        assert!(close(&inodes, &clean).is_none());
        assert!(inodes.all().is_empty());
    }

    #[test]
    fn beyond_the_limit_the_oldest_closed_one_has_to_be_synced() {
        let inodes = Inodes::new();
        for number in 1..=MAX_CLOSED_UNSYNCED as u64 {
            let state = dirty(&inodes, number);
            assert!(close(&inodes, &state).is_none());
        }
        // Opened and closed again: it doesn't stand in the queue twice.
        let again = inodes.open(InodeId::new(2));
        assert!(close(&inodes, &again).is_none());
        let last = dirty(&inodes, 1 << 40);
        assert_eq!(close(&inodes, &last).unwrap().id, InodeId::new(1));
    }

    #[test]
    fn a_loss_is_told_once_per_handle() {
        let inodes = Inodes::new();
        let state = dirty(&inodes, 1);
        let pattern = StripePattern {
            generation: 1,
            origin: skep_types::PatternOrigin::Cluster,
            components: vec![],
        };
        let open = || OpenFile::new(Arc::clone(&state), OpenMode::Write, pattern.clone());
        let (first, second) = (open(), open());
        state.synced(&state.unsynced()[0], HostIncarnation::new(2));
        let third = open();
        assert!(first.take_loss() && !first.take_loss());
        assert!(second.take_loss());
        assert!(!third.take_loss(), "opened after the loss");
    }

    #[test]
    fn unknown_handles_are_stale() {
        let handles = Handles::new();
        assert_eq!(handles.get(HandleId::new(7)).unwrap_err().code(), ErrorCode::Stale);
    }
}

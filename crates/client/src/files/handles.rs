//! The table of open handles, shared by all threads of a mount.

use crate::files::open_file::OpenFile;
use crate::limits::{MAX_HANDLES, TABLE_PARTS};
use skep_types::{Error, ErrorCode, Result};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// The part of a table that holds a number: neighbours go to different parts.
pub(crate) fn part_of(number: u64) -> usize {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % TABLE_PARTS
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_handles_are_stale() {
        let handles = Handles::new();
        assert_eq!(handles.get(HandleId::new(7)).unwrap_err().code(), ErrorCode::Stale);
    }
}

//! The table of open handles, shared by all threads of a mount.

use crate::files::open_file::OpenFile;
use crate::files::opened_bytes::OpenedBytesPolicy;
use crate::limits::{MAX_HANDLES, TABLE_PARTS};
use skep_types::{Error, ErrorCode, Result};
use skep_wire::metadata::OpenMode;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Identifies an open file on all threads of a mount. The mount never uses an id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(u64);

impl HandleId {
    /// Creates a handle from its id, which the kernel stores between requests.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the id of the handle as an integer.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// Returns the index of the table part that contains the handle with this id. Handles with
/// consecutive ids are in different parts.
pub(crate) fn part_of(number: u64) -> usize {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % TABLE_PARTS
}

fn stale(handle: HandleId) -> Error {
    Error::new(ErrorCode::Stale, format!("cannot use handle {}: it is not open", handle.raw()))
}

/// All open files of a mount, by handle.
#[derive(Debug)]
pub(crate) struct Handles {
    /// Each mutex protects one part of the table. No thread locks two parts at the same time.
    parts: Vec<Mutex<HashMap<HandleId, Arc<OpenFile>>>>,
    pub(crate) opened_bytes: OpenedBytesPolicy,
    next: AtomicU64,
    count: AtomicUsize,
}

impl Handles {
    pub(crate) fn new(opened_bytes: OpenedBytesPolicy) -> Self {
        Self {
            parts: (0..TABLE_PARTS).map(|_| Mutex::default()).collect(),
            opened_bytes,
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

    /// Returns an error if the mount already has the maximum number of open handles, and an open in
    /// this mode needs another handle. To create a pipe or a device takes no handle.
    pub(crate) fn check_limit(&self, mode: OpenMode) -> Result<()> {
        if mode == OpenMode::No || self.count.load(Ordering::Relaxed) < MAX_HANDLES {
            return Ok(());
        }
        let text = format!(
            "cannot open another file: the mount has {MAX_HANDLES} open files, which is the limit; \
             close some of them"
        );
        Err(Error::new(ErrorCode::LimitReached, text))
    }

    pub(crate) fn insert(&self, file: OpenFile) -> HandleId {
        let handle = HandleId(self.next.fetch_add(1, Ordering::Relaxed));
        self.count.fetch_add(1, Ordering::Relaxed);
        self.with(handle, |part| part.insert(handle, Arc::new(file)));
        handle
    }

    /// Returns the open file of a handle.
    pub(crate) fn get(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        let file = self.with(handle, |part| part.get(&handle).map(Arc::clone));
        file.ok_or_else(|| stale(handle))
    }

    /// Returns the open file of a handle if the handle is not being closed and is still valid.
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

    /// Returns all open files for which `filter` returns `true`.
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
    fn unknown_handle_is_refused_as_stale() {
        let handles = Handles::new(OpenedBytesPolicy::new(std::time::Duration::ZERO));
        assert_eq!(handles.get(HandleId::new(7)).unwrap_err().code(), ErrorCode::Stale);
    }

    /// Regression test: `mknod` of a pipe or a device failed if the mount had the maximum number of
    /// open handles.
    #[test]
    fn limit_of_handles_applies_only_to_opens() {
        let handles = Handles::new(OpenedBytesPolicy::new(std::time::Duration::ZERO));
        assert_eq!(handles.check_limit(OpenMode::Write), Ok(()));
        handles.count.store(MAX_HANDLES, Ordering::Relaxed);
        let error = handles.check_limit(OpenMode::Read).unwrap_err();
        assert_eq!(error.code(), ErrorCode::LimitReached);
        assert_eq!(handles.check_limit(OpenMode::No), Ok(()));
    }
}

//! File locks of applications, and the search for deadlock cycles among their waiters.

pub(crate) mod deadlock;
pub(crate) mod deadlock_result;
pub(crate) mod file_locks;
pub(crate) mod owners;

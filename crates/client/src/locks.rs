//! Locks of applications, and the search for deadlock cycles among those that wait for them.

pub(crate) mod deadlock;
pub(crate) mod file_locks;

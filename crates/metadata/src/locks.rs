//! Locks of applications (`flock`, `fcntl`): the locks that are held, the queues of waiters, and
//! the requests that wait.
//!
//! Does not own the locks of undecided transactions (`tx::locks`).

pub(crate) mod file_locks;
mod queue;
pub(crate) mod request;
mod waits;

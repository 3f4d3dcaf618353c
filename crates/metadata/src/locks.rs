//! File locks of applications (`flock`, `fcntl`): the held locks, the queues of waiters, and the
//! requests that wait.
//!
//! This module does not own the locks of undecided transactions; `tx::locks` does.

pub(crate) mod file_locks;
mod queue;
pub(crate) mod request;
mod waits;

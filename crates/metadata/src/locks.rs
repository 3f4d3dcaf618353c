//! File locks of applications (`flock`, `fcntl`): the held locks, the queues of waiters, and the
//! requests that wait.
//!
//! The module `tx::locks` owns the locks of undecided transactions.

pub(crate) mod file_locks;
mod queue;
pub(crate) mod request;
mod waits;

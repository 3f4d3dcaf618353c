//! File locks of applications (`flock`, `fcntl`): the table of held locks, the queues of waiters,
//! and the requests `WaitLock` and `EndWait`.
//!
//! The module `tx::locks` owns the locks of transactions.

pub(crate) mod file_locks;
mod queue;
pub(crate) mod request;
mod waits;

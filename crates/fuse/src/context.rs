//! What the operations of one worker share.

use crate::checked_files::CheckedFiles;
use crate::transport::TransportKind;
use crate::waits::Waits;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// What the operations of one worker share.
#[derive(Debug)]
pub(crate) struct Context<F> {
    /// The worker's access to the file system.
    pub(crate) file_system: F,
    /// The transport in use, for whoever asks.
    pub(crate) transport: TransportKind,
    /// Whether `SKEP_PATTERN` in the environment of a program that makes a file counts.
    pub(crate) has_job_patterns: bool,
    /// How long the kernel may remember names and attributes.
    pub(crate) validity: Duration,
    /// Files known to have no set-user-id bits.
    pub(crate) checked: CheckedFiles,
    /// Requests that wait for locks.
    pub(crate) waits: Rc<Waits>,
    /// Whether files can be mapped whose I/O goes around the page cache.
    pub(crate) has_direct_mmap: bool,
    /// Times of modification that were made up (see `ops::attributes`).
    pub(crate) invented_times: Cell<u32>,
}

//! State and settings that the operations of one worker share.

use crate::checked_files::CheckedFiles;
use crate::init::KernelFeatures;
use crate::waits::Waits;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How the operations of a mount reply to the kernel.
#[derive(Clone, Copy, Debug)]
pub struct RequestOptions {
    /// Whether `SKEP_PATTERN` in the environment of a program is the stripe pattern of the files
    /// that it makes.
    pub has_job_patterns: bool,
    /// How long the kernel may cache names and attributes.
    pub validity: Duration,
}

/// State and settings that the operations of one worker share.
#[derive(Debug)]
pub(crate) struct Context<F> {
    /// The worker's access to the file system.
    pub(crate) file_system: F,
    pub(crate) options: RequestOptions,
    pub(crate) features: KernelFeatures,
    /// Files that recently had no set-user-id and set-group-id bits.
    pub(crate) checked: CheckedFiles,
    /// Requests that wait for locks, or for the kernel to drop pages.
    pub(crate) waits: Rc<Waits>,
    /// The number of modification times that were invented so far (`ops::attributes`).
    pub(crate) invented_times: Cell<u32>,
}

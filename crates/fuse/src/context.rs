//! State and settings that the operations of one worker share.

use crate::checked_files::CheckedFiles;
use crate::following::Following;
use crate::init::KernelFeatures;
use crate::job_reader::JobReader;
use crate::job_variables::JobVariables;
use crate::repeated_opens::RepeatedOpens;
use crate::waiting::Waiting;
use crate::waits::Waits;
use skep_client::RequestLoad;
use skep_metrics::Registry;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Options for how a mount processes requests and replies to the kernel.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// Whether a new file gets the stripe pattern in `SKEP_PATTERN`, if the environment of the
    /// program that creates the file has this variable.
    pub has_job_patterns: bool,
    /// Whether reads and writes through all handles bypass the kernel's page cache.
    pub has_direct_io: bool,
    /// How long the kernel may cache names and attributes.
    pub validity: Duration,
    /// The environment variables in which the mount finds the id of the calling process's job. The
    /// mount's requests to services carry this id. `None` means that the requests carry no job.
    pub job_variables: Option<JobVariables>,
    /// The registry of the mount's own metrics.
    pub metrics: Arc<Registry>,
}

/// State and settings that the operations of one worker share.
#[derive(Debug)]
pub(crate) struct Context<F> {
    /// This worker's access to the file system.
    pub(crate) file_system: F,
    pub(crate) options: RequestOptions,
    pub(crate) features: KernelFeatures,
    /// Files that recently had neither a set-user-id nor a set-group-id bit.
    pub(crate) checked: CheckedFiles,
    /// Requests that wait for locks, or for the kernel to drop cached pages.
    pub(crate) waits: Rc<Waits>,
    /// Number of invented modification times that all workers of the mount have sent to make the
    /// kernel drop pages of shared files (`ops::attributes`). Two workers with separate counters
    /// could send the same time. The kernel would then not drop its pages.
    pub(crate) invented_times: Arc<AtomicU32>,
    /// The opens of all workers that the kernel repeats after `ESTALE`.
    pub(crate) repeated_opens: Arc<RepeatedOpens>,
    /// Reads the jobs of processes for all workers. `None` means that the mount looks up no jobs.
    pub(crate) jobs: Option<Arc<JobReader>>,
    /// The recent operations of all workers, for programs that follow the operations of the mount.
    pub(crate) following: Arc<Following>,
    /// The requests in flight of all workers: the mount has not replied to them.
    pub(crate) waiting: Arc<Waiting>,
    /// Counts of the requests of all workers by user, group and job, for programs that request the
    /// load of a user.
    pub(crate) load: Arc<RequestLoad>,
}

impl<F> Context<F> {
    /// Returns how long the kernel may cache the names and attributes in a reply. The mount began
    /// to serve the request at the time `begun`. The file system may have read them at any moment
    /// since then. The reply may be late, for example if the connection to a server was
    /// interrupted, and another mount may have changed the names meanwhile. So the time begins with
    /// the request.
    pub(crate) fn validity_since(&self, begun: Duration) -> Duration {
        let age = skep_env::now().saturating_sub(begun);
        self.options.validity.saturating_sub(age)
    }
}

//! The mount of a cluster: registration, one client for each worker, the background thread, and
//! shutdown.

use crate::metrics_socket;
use crate::mount::{self, ServeOptions};
use crate::mount_point;
use crate::session::shares::most_workers;
use crate::trace_reports::report_forever;
use skep_client::{Client, ClusterAccess, LogControl, MapObserver, Mount};
use skep_env::{Signals, UntilSignal};
use skep_metrics::{Registry, catalog::NODE_INFO};
use skep_types::{Error, ErrorCode, Result};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Number of descriptors that a worker may have besides its connections: its ring, its events, its
/// handle of `/dev/fuse`, and some in reserve.
const FILES_PER_WORKER: u64 = 8;
/// Number of descriptors that the other threads of a mount may have, with their connections to
/// management, its logs, and some in reserve.
const OTHER_FILES: u64 = 100;

/// The cluster to mount, and the data that identify this client to the cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The addresses of management, and the token for joining the cluster.
    pub cluster: ClusterAccess,
    /// Name of this host, which Skep only shows to administrators.
    pub host: String,
    /// Version of this program, which Skep only shows to administrators.
    pub version: String,
    /// Time limit for the retries of the registration while management is unreachable or the
    /// cluster is not formatted yet. `None` means no limit.
    pub patience: Option<Duration>,
    /// The log of this process. Management may change the level of the log.
    pub log: LogControl,
    /// The function to which the mount passes the newest cluster map from time to time.
    pub map_observer: MapObserver,
    /// Directory of the socket on which the mount shows its metrics. `None` means no socket.
    pub metrics_directory: Option<PathBuf>,
    /// Address at which the mount also shows its metrics, as `host:port`. `None` means only on the
    /// socket.
    pub metrics_address: Option<String>,
    /// The function to which the mount passes the error if metadata has not confirmed all changes
    /// when the mount ends.
    pub unconfirmed: fn(&Error),
}

/// Mounts a cluster and serves the mount until a program or a signal unmounts it. Then deregisters
/// the client.
///
/// # Errors
/// - Errors of [`crate::serve`].
/// - Errors of [`Mount::new`] if the cluster is unreachable or refuses the client.
/// - `Interrupted` if a signal arrives before the registration succeeds.
pub fn mount(cluster: ClusterOptions, options: ServeOptions) -> Result<()> {
    // Block the signals before any thread starts, because all threads must block the signals that
    // one of them waits for.
    let signals = mount::take_signals(&options)?;
    // Check the mount point before the registration, because a mount with an invalid mount point
    // must not leave traces in the cluster.
    let mount_point = mount_point::prepare(&options.mount_point)?;
    let workers = most_workers(options.transport, options.workers);
    let most_files = skep_env::raise_file_limit();
    let client_options = skep_client::MountOptions {
        cluster: cluster.cluster,
        mount_point: mount_point.display().to_string(),
        host: cluster.host,
        version: cluster.version.clone(),
        // The mount has one client more than workers, because the additional client deregisters the
        // mount when the mount ends.
        workers: workers + 1,
        patience: cluster.patience,
        attribute_timeout: options.requests.validity,
        log: cluster.log,
        map_observer: cluster.map_observer,
        metrics: Arc::clone(&options.requests.metrics),
    };
    let (mount, signals) = run(register(client_options, signals))?;
    let metrics = Arc::clone(&options.requests.metrics);
    describe(&metrics, &mount, &cluster.version, &mount_point);
    check_connections(workers, mount.map().targets.len(), most_files);
    let traces = Arc::clone(metrics.traces());
    let directory = cluster.metrics_directory.as_deref();
    let address = cluster.metrics_address.as_deref();
    let _socket = metrics_socket::start(directory, address, metrics);
    let in_background = Arc::clone(&mount);
    let background = skep_env::spawn_thread("skep-background".into(), None, move || {
        skep_env::block_on(async move {
            let reporting = report_forever(Arc::clone(&in_background), traces);
            let _reporting = skep_env::spawn(reporting);
            let _watching = skep_env::spawn(skep_exporter::log_pauses());
            in_background.run_background().await;
        })
    })?;
    // If the kernel refuses a transport, the workers of the next transport do not use the clients
    // of the previous workers. Each new worker gets a new client with a higher index.
    let (next, serving) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&mount));
    let served = mount::serve_with(options, signals, move |_| {
        let (mount, index) = (Arc::clone(&serving), next.fetch_add(1, Ordering::Relaxed));
        async move {
            let client = Client::new(mount, index)?;
            if index == 0 {
                client.look_at_root().await;
            }
            Ok(client)
        }
    });
    let ended = run(async move { Ok(Client::new(mount, workers)?.shutdown().await) });
    match ended {
        Ok(Ok(())) => {}
        // The process still ends successfully. After a failure, its supervisor would mount again.
        Ok(Err(unconfirmed)) => {
            (cluster.unconfirmed)(&unconfirmed);
            tracing::error!("{unconfirmed}");
        }
        Err(error) => tracing::warn!(
            "cannot deregister the client of this mount: {error}; management will evict this client"
        ),
    }
    if let Ok(Err(error)) = background.join() {
        tracing::warn!(
            "the thread that renews the leases of the mount {} failed while the mount served: \
             {error}; without leases, the cluster may have released locks of the mount that \
             programs still held",
            mount_point.display()
        );
    }
    served
}

/// Logs a warning if the workers of the mount, with one connection to each target, need more file
/// descriptors than the process may have.
fn check_connections(workers: usize, targets: usize, most_files: u64) {
    let (workers, targets) = (workers as u64, targets as u64);
    let connections = workers * targets;
    if connections + workers * FILES_PER_WORKER + OTHER_FILES > most_files {
        tracing::warn!(
            "this mount may open {most_files} files, and needs up to {connections} connections: \
             {workers} threads to {targets} targets; raise its hard limit of open files \
             (`ulimit -Hn`), or mount with the option `workers=` for fewer threads"
        );
    }
}

/// Adds the metrics that describe the mount.
fn describe(metrics: &Registry, mount: &Mount, version: &str, mount_point: &Path) {
    let labels = vec![
        ("kind", "mount".to_owned()),
        ("name", mount_point.display().to_string()),
        ("version", version.to_owned()),
    ];
    metrics.gauge(&NODE_INFO, &labels).set(1);
    metrics.add(mount.map_cell());
}

/// Registers the client. Retries until the time limit in `options`, or until a signal arrives.
/// Returns the mount and the signals.
async fn register(
    options: skep_client::MountOptions,
    signals: Option<Signals>,
) -> Result<(Arc<Mount>, Option<Signals>)> {
    let registering = Mount::new(options);
    let registered = match &signals {
        Some(signals) => signals.until_signal(registering).await?,
        None => UntilSignal::Ready(registering.await),
    };
    match registered {
        UntilSignal::Ready(mount) => Ok((mount?, signals)),
        UntilSignal::Signal(_) => Err(Error::new(
            ErrorCode::Interrupted,
            "cannot mount: a termination signal arrived before management registered this mount",
        )),
    }
}

fn run<T: 'static>(future: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    skep_env::block_on(future).map_err(Error::from).flatten()
}

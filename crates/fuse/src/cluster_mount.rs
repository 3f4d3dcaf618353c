//! Mounting a cluster: registration, a client for each worker, the background thread, and shutdown.

use crate::mount::{self, ServeOptions};
use crate::mount_point;
use crate::session;
use skep_client::{Client, ClusterAccess, LogControl, Mount};
use skep_env::{Signals, UntilSignal};
use skep_types::{Error, ErrorCode, Result};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The cluster to mount, and how this client identifies itself to it.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The cluster.
    pub cluster: ClusterAccess,
    /// Name of this host, for people.
    pub host: String,
    /// Version of the program, for people.
    pub version: String,
    /// How long to retry while management is unreachable or the cluster isn't formatted yet. `None`
    /// means for ever.
    pub patience: Option<Duration>,
    /// The log of this process, whose level management may change.
    pub log: LogControl,
}

/// Mounts a cluster and serves it until a program or a signal unmounts it. Then deregisters the
/// client.
///
/// # Errors
/// As [`crate::serve`], and as [`Mount::new`] when the cluster is unreachable or refuses the
/// client. `Interrupted` when a signal arrives before the registration succeeds.
pub fn mount(cluster: ClusterOptions, options: ServeOptions) -> Result<()> {
    // Before any thread starts: all threads must block the signals that one of them waits for.
    let signals = mount::take_signals(&options)?;
    // Before the registration: an invalid mount point must not leave traces in the cluster.
    let mount_point = mount_point::prepare(&options.mount_point)?;
    let workers = session::most_workers(options.transport);
    let client_options = skep_client::MountOptions {
        cluster: cluster.cluster,
        mount_point: mount_point.display().to_string(),
        host: cluster.host,
        version: cluster.version,
        // One more client deregisters at the end.
        workers: workers + 1,
        patience: cluster.patience,
        log: cluster.log,
    };
    let (mount, signals) = run(register(client_options, signals))?;
    let in_background = Arc::clone(&mount);
    let background = skep_env::spawn_thread("skep-background".into(), None, move || {
        skep_env::block_on(in_background.run_background())
    })?;
    // If the kernel refuses a transport, the workers of the next one get clients of their own.
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
    let ended = run(async move {
        Client::new(mount, workers)?.shutdown().await;
        Ok(())
    });
    if let Err(error) = ended {
        tracing::warn!(
            "cannot deregister the client of this mount: {error}; management will evict it"
        );
    }
    if let Ok(Err(error)) = background.join() {
        tracing::warn!("the background thread of the mount failed: {error}");
    }
    served
}

/// Registers the client, for as long as the options allow or until a signal arrives. Returns the
/// mount and the signals.
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
        UntilSignal::Signal(_) => {
            Err(Error::new(ErrorCode::Interrupted, "a signal came before it was mounted"))
        }
    }
}

fn run<T: 'static>(future: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    skep_env::block_on(future).map_err(Error::from).flatten()
}

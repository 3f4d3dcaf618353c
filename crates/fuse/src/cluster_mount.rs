//! Mounting a cluster: a client for each worker, and what a mount does beside its operations.

use crate::mount::{self, ServeOptions};
use crate::mount_point;
use crate::session;
use skep_client::{Client, ClusterAccess, LogControl, Mount};
use skep_env::Signals;
use skep_types::{Error, ErrorCode, Result};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

/// Which cluster to mount, and who we are to it.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The cluster.
    pub cluster: ClusterAccess,
    /// Name of this host, for people.
    pub host: String,
    /// Version of the program, for people.
    pub version: String,
    /// How long to try while management can't be reached or the cluster isn't formatted yet; none:
    /// for ever.
    pub patience: Option<Duration>,
    /// The log of this process, for management.
    pub log: LogControl,
}

/// Mounts a cluster and serves it until it is unmounted, from outside or after a signal; then takes
/// leave of the cluster.
///
/// # Errors
/// As [`crate::serve`], and as [`Mount::new`] when the cluster can't be reached or refuses us;
/// `Interrupted` when a signal ends the wait for it.
pub fn mount(cluster: ClusterOptions, options: ServeOptions) -> Result<()> {
    // Before any thread is started: each must leave the signals to the one that waits for them.
    let signals = mount::take_signals(&options)?;
    // A directory that can't be mounted on is found before the cluster hears of us.
    let mount_point = mount_point::prepare(&options.mount_point)?;
    let workers = session::most_workers(options.transport);
    let client_options = skep_client::MountOptions {
        cluster: cluster.cluster,
        mount_point: mount_point.display().to_string(),
        host: cluster.host,
        version: cluster.version,
        // One more takes leave at the end.
        workers: workers + 1,
        patience: cluster.patience,
        log: cluster.log,
    };
    let (mount, signals) = run(register(client_options, signals))?;
    let in_background = Arc::clone(&mount);
    let background = skep_env::spawn_thread("skep-background".into(), None, move || {
        skep_env::block_on(in_background.run_background())
    })?;
    // A transport that is refused is followed by another, whose workers get clients of their own.
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
    let left = run(async move {
        Client::new(mount, workers)?.shutdown().await;
        Ok(())
    });
    if let Err(error) = left {
        tracing::warn!("the cluster was not told that the mount ends: {error}");
    }
    if let Ok(Err(error)) = background.join() {
        tracing::warn!("the mount's background work: {error}");
    }
    served
}

/// Registers at the cluster, which may take as long as the options allow, unless a signal comes.
/// Gives the signals back.
async fn register(
    options: skep_client::MountOptions,
    signals: Option<Signals>,
) -> Result<(Arc<Mount>, Option<Signals>)> {
    let registering = Mount::new(options);
    let registered = match &signals {
        Some(signals) => unless_signalled(signals, registering).await,
        None => Some(registering.await),
    };
    let ended = || Error::new(ErrorCode::Interrupted, "a signal came before it was mounted");
    Ok((registered.ok_or_else(ended)??, signals))
}

/// Waits until a future is ready, and drops it if a signal comes before.
async fn unless_signalled<T>(signals: &Signals, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut signal = std::pin::pin!(signals.next());
    std::future::poll_fn(|context| {
        // The signal first: what was taken from the kernel must not be lost if both are there.
        if signal.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        future.as_mut().poll(context).map(Some)
    })
    .await
}

fn run<T: 'static>(future: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    skep_env::block_on(future).map_err(Error::from).flatten()
}

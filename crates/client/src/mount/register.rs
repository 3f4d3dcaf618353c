//! Registration of a mount at management, and its leave from the cluster.

use crate::limits::{LONGEST_MANAGEMENT_PAUSE, MANAGEMENT_PAUSE};
use crate::mount::management::{ask, connect_to_management};
use crate::mount::options::{GAVE_UP, MountOptions};
use skep_types::{Error, ErrorCode, NodeId, Result, RetryClass};
use skep_wire::management::{RegisterClient, RegisterReply};
use std::time::Duration;

/// Registers the mount. Retries after temporary errors until `patience` has passed, and logs each
/// kind of error once.
pub(super) async fn register_patiently(options: &MountOptions) -> Result<RegisterReply> {
    let deadline = options.patience.map(|patience| skep_env::now() + patience);
    let span = match options.patience {
        Some(patience) => format!("for {} s in all", patience.as_secs_f64()),
        None => "without end".into(),
    };
    let mut logged = Vec::new();
    let mut pause = MANAGEMENT_PAUSE;
    loop {
        let error = match register(options).await {
            Ok(registered) if registered.map.formatted => return Ok(registered),
            Ok(registered) => {
                leave(options, registered.node).await;
                Error::new(
                    ErrorCode::NotReady,
                    "the cluster is not formatted: start its metadata services, then run \
                     `skep cluster format`",
                )
            }
            Err(error) => error,
        };
        if !passes(error.code()) {
            return Err(error);
        }
        let left = deadline.map(|deadline| deadline.saturating_sub(skep_env::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(given_up(&error, options.patience));
        }
        if !logged.contains(&error.code()) {
            logged.push(error.code());
            tracing::warn!("{error}; trying on, {span}");
        }
        // The last attempt must be at the deadline, not before it.
        skep_env::sleep(left.unwrap_or(pause).min(pause)).await;
        pause = (pause * 2).min(LONGEST_MANAGEMENT_PAUSE);
    }
}

pub(super) async fn register(options: &MountOptions) -> Result<RegisterReply> {
    let connection = connect_to_management(&options.cluster, NodeId::default()).await?;
    let request = RegisterClient {
        host: options.host.clone(),
        mount_point: options.mount_point.clone(),
        version: options.version.clone(),
        pid: std::process::id(),
    };
    ask(&connection, &request).await
}

/// Notifies management that a client leaves the cluster. If the request fails, management removes
/// the client when its lease runs out.
pub(super) async fn leave(options: &MountOptions, node: NodeId) {
    let left = async {
        let connection = connect_to_management(&options.cluster, node).await?;
        ask(&connection, &skep_wire::management::Leave { node }).await
    };
    if let Err(error) = left.await {
        tracing::debug!("cannot notify management that {node} leaves: {error}");
    }
}

/// Returns whether a failed registration may succeed later. After `TimedOut`, management may have
/// registered the client nevertheless; that registration ends with its lease.
fn passes(code: ErrorCode) -> bool {
    code.retry_class() != RetryClass::Never || code == ErrorCode::TimedOut
}

/// Adds to an error how long the mount has retried.
fn given_up(error: &Error, patience: Option<Duration>) -> Error {
    let seconds = patience.unwrap_or_default().as_secs_f64();
    Error::new(error.code(), format!("{}{GAVE_UP}{seconds} s in all", error.context()))
}

//! The reaction of the connecting side to a failed handshake.
//!
//! Until a peer has authenticated, it may be any process that has taken the port of a dead service.
//! The caller must not pass the errors of such a process on to an application, and waits for the
//! real service. So only four error codes of the peer keep their meaning. A member of the cluster
//! waits even after a refusal that would be final for a process that wants to join.

use crate::access::Identity;
use crate::limits::COMPLAINT_INTERVAL;
use skep_types::{Error, ErrorCode};
use std::cell::RefCell;
use std::time::Duration;

thread_local! {
    /// The time of the last warning of this thread, and the number of failed handshakes since then.
    static COMPLAINTS: RefCell<(Option<Duration>, u64)> = const { RefCell::new((None, 0)) };
}

/// Returns the error that the caller of a failed handshake gets. `error` names the address.
///
/// - `Disconnected`, `StaleMap` and `NotReady` are returned unchanged, because the caller retries
///   in any case.
/// - `AuthenticationFailed` and `VersionMismatch` are returned unchanged if `identity` has no node
///   id, since an administrator must correct the token or the version. A member was admitted
///   earlier with the same token. So the peer is the wrong process, and the member gets
///   `Disconnected`.
/// - Every other error becomes `Disconnected`.
///
/// For a member, logs the errors that become `Disconnected`, at most once in
/// [`COMPLAINT_INTERVAL`].
pub(crate) fn judge(error: Error, identity: &Identity) -> Error {
    let is_member = identity.node.raw() != 0;
    match error.code() {
        ErrorCode::Disconnected | ErrorCode::StaleMap | ErrorCode::NotReady => return error,
        ErrorCode::AuthenticationFailed | ErrorCode::VersionMismatch if !is_member => {
            return error;
        }
        _ => {}
    }
    if is_member {
        complain(&error);
    }
    let context = format!(
        "{error}; the process at this address does not behave like a service of this cluster"
    );
    Error::new(ErrorCode::Disconnected, context)
}

fn complain(error: &Error) {
    let now = skep_env::now();
    let failures = COMPLAINTS.with_borrow_mut(|(last, failures)| {
        *failures += 1;
        if last.is_some_and(|last| now < last + COMPLAINT_INTERVAL) {
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(failures))
    });
    if let Some(failures) = failures {
        tracing::warn!(
            "another program answers at the address of a service; this node retries \
             ({failures} failed handshakes since the last such line): {error}"
        );
    }
}

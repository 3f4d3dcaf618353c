//! The reaction of the connecting side to a failed handshake.
//!
//! A peer that has not authenticated may be any process that listens on the port of a dead service.
//! The caller must not return the errors of such a process to an application, and waits for the
//! real service. So only four error codes of the peer keep their meaning. A member of the cluster
//! waits even after a refusal that would be final for a joining process.

use crate::access::Identity;
use crate::limits::COMPLAINT_INTERVAL;
use skep_types::{Error, ErrorCode};
use std::cell::RefCell;
use std::time::Duration;

thread_local! {
    /// The time of the last warning of this thread, and the number of failed handshakes since then.
    static COMPLAINTS: RefCell<(Option<Duration>, u64)> = const { RefCell::new((None, 0)) };
}

/// Returns the error that the caller of a failed handshake with the peer at `address` gets.
///
/// - `Disconnected`, `StaleMap` and `NotReady` are returned unchanged, because the caller retries
///   in any case.
/// - `AuthenticationFailed` and `VersionMismatch` are returned unchanged if `identity` has no node
///   id, since an administrator must correct the token or the version. The cluster admitted a
///   member earlier with the same token. So the refusing peer is the wrong process, and the member
///   gets `Disconnected`.
/// - Every other error becomes `Disconnected`.
///
/// The context of an error that becomes `Disconnected` names the problem. For
/// `AuthenticationFailed`, the problem is the token of this process, which an administrator must
/// replace. For all other errors, the problem is that the process at `address` does not behave like
/// a service of this cluster.
///
/// For a member, logs the errors that become `Disconnected`, at most once in
/// [`COMPLAINT_INTERVAL`].
pub(crate) fn judge(error: Error, address: &str, identity: &Identity) -> Error {
    let is_member = identity.node.raw() != 0;
    match error.code() {
        ErrorCode::Disconnected | ErrorCode::StaleMap | ErrorCode::NotReady => {
            return error.within(address);
        }
        ErrorCode::AuthenticationFailed | ErrorCode::VersionMismatch if !is_member => {
            return error.within(address);
        }
        _ => {}
    }
    let context = if error.code() == ErrorCode::AuthenticationFailed {
        // The reason is at the end of the text, because reports truncate long texts.
        format!(
            "the service at {address} refuses the token of this process; give this process the \
             newest token, which `skep cluster token` on the management host prints: {error}"
        )
    } else {
        format!("the process at {address} does not behave like a service of this cluster: {error}")
    };
    if is_member {
        complain(&context);
    }
    Error::in_place_of(error.code(), ErrorCode::Disconnected, context)
}

/// Returns the error that the caller gets if it cannot connect to a member of its own group.
/// `NotReady` becomes `Disconnected`, because a process refuses a connection with `NotReady` if it
/// has too many connections. In a reply of a member, `NotReady` means that the member's service
/// stops.
pub(crate) fn of_member(error: Error) -> Error {
    match error.code() {
        ErrorCode::NotReady => {
            Error::in_place_of(ErrorCode::NotReady, ErrorCode::Disconnected, error.context())
        }
        _ => error,
    }
}

/// Whether an error that [`judge`] has returned is a refusal of this process's token.
pub(crate) fn is_token_refusal(error: &Error) -> bool {
    error.cause_code().unwrap_or(error.code()) == ErrorCode::AuthenticationFailed
}

fn complain(problem: &str) {
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
            "{problem}; this process retries ({failures} failed handshakes since the last line)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Secrets;
    use skep_types::{ClusterId, NodeId, NodeKind};
    use skep_wire::limits::MAX_WAIT_ERROR_CHARS;

    #[test]
    fn service_that_refuses_a_member_is_named_with_the_remedy() {
        let secrets = Secrets::generate();
        let refused = secrets.choose(&[1], true).unwrap_err();
        let (node, kind) = (NodeId::new(7), NodeKind::Client);
        let member = Identity { cluster: ClusterId::default(), secrets, node, kind };
        let error = judge(refused.clone(), "10.77.0.4:7420", &member);
        assert_eq!(error.code(), ErrorCode::Disconnected);
        assert!(is_token_refusal(&error));
        let reported: String = error.context().chars().take(MAX_WAIT_ERROR_CHARS).collect();
        for words in ["service at 10.77.0.4:7420 refuses the token", "newest token, which `skep"] {
            assert!(reported.contains(words), "{reported}");
        }
        // A process that joins for the first time gets the unchanged refusal.
        let stranger = Identity { node: NodeId::default(), ..member.clone() };
        let error = judge(refused, "10.77.0.4:7420", &stranger);
        assert_eq!(error.code(), ErrorCode::AuthenticationFailed);
        let foreign = judge(Error::new(ErrorCode::Protocol, "nonsense"), "10.77.0.4:1", &member);
        assert!(!is_token_refusal(&foreign), "{foreign}");
        // The peer wrote the text of the reason, so the decision must not depend on this text.
        let words = Error::new(ErrorCode::Protocol, "it refuses the token of this process");
        assert!(!is_token_refusal(&judge(words, "10.77.0.4:1", &member)));
    }
}

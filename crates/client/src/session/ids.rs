//! The ids of sessions. This module owns the two parts of an id: the client id, and a counter.

use skep_types::{NodeId, SessionId};

/// Returns the id of the session number `counter` of a mount with the client id `client`.
pub(crate) fn session_id(client: NodeId, counter: u32) -> SessionId {
    SessionId::new(u64::from(client.raw()) << 32 | u64::from(counter))
}

/// Returns the client id in the id of a session.
pub(crate) fn client_of(session: SessionId) -> NodeId {
    NodeId::new((session.raw() >> 32) as u32)
}

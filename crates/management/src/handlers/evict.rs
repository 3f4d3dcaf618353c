//! `Evict`: removes a dead client. A metadata target sends this request when a client has not
//! renewed its session for the duration of a lease. An administrator may send this request at any
//! time. A target that has lost contact with many clients at the same time asks management to
//! remove a client only if management also receives no heartbeats of this client.

use crate::authority::Authority;
use skep_cluster::RequestId;
use skep_types::{Error, ErrorCode, EvictionCause, GroupId, NodeKind, Result};
use skep_wire::management::{EmptyReply, Evict};

/// `by` is the group of the metadata target that sends the request. Zero means an administrator.
pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: Evict,
    by: GroupId,
) -> Result<EmptyReply> {
    let map = authority.map();
    let Some(node) = map.node(request.client) else { return Ok(EmptyReply {}) };
    if node.kind != NodeKind::Client {
        let problem = format!(
            "cannot evict {} ({}): this node is a server, and only clients can be evicted",
            node.id, node.name
        );
        return Err(Error::new(ErrorCode::NotPermitted, problem));
    }
    if request.unless_heard && authority.has_contact(node.id) {
        tracing::warn!(
            "client {} ({}) is not evicted: a metadata target has lost contact with this client \
             and many other clients, but management receives their heartbeats; check the network \
             of the metadata servers",
            node.id,
            node.name
        );
        return Ok(EmptyReply {});
    }
    let cause = match by.raw() {
        0 => EvictionCause::Administrator,
        _ => EvictionCause::LeaseExpired,
    };
    authority.evict(id, node.id, cause, by).await
}

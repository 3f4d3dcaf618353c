//! `Leave`: a node shuts down cleanly. Management removes a client, and marks a server as offline.

use crate::authority::Authority;
use skep_cluster::RequestId;
use skep_types::{NodeKind, Result};
use skep_wire::management::{EmptyReply, Leave};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: Leave,
) -> Result<EmptyReply> {
    let map = authority.map();
    let Some(node) = map.node(request.node) else { return Ok(EmptyReply {}) };
    match node.kind {
        NodeKind::Client => {
            authority.remove_client(id, node.id).await?;
            tracing::info!("client {} ({}) left the cluster", node.id, node.name);
        }
        // The publication of the new map also logs that the server has left.
        _ => authority.left(node.id),
    }
    Ok(EmptyReply {})
}

//! `RemoveServer`: removes a server without targets. Refuses to remove a server that sends
//! heartbeats, and a member of management.

use crate::authority::Authority;
use skep_cluster::{Command, RequestId};
use skep_types::map::Reachability;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::management::{EmptyReply, RemoveServer};

pub(super) async fn handle(
    authority: &Authority,
    request_id: RequestId,
    request: RemoveServer,
) -> Result<EmptyReply> {
    let id = request.node;
    authority.check(&Command::RemoveServer { node: id })?;
    let map = authority.map();
    let Some(node) = map.node(id) else { return Ok(EmptyReply {}) };
    if authority.is_member(id) {
        let what = format!(
            "cannot remove {} ({id}): this node stores the log of management; remove the node with \
             `skep management remove {id}`",
            node.name
        );
        return Err(Error::new(ErrorCode::InUse, what));
    }
    if node.reachability == Reachability::Online {
        let what = format!(
            "cannot remove {} ({id}): this server sends heartbeats; stop its service, and repeat \
             the command",
            node.name
        );
        return Err(Error::new(ErrorCode::InUse, what));
    }
    if !request.is_dry_run {
        authority.remove_server(request_id, id).await?;
        tracing::info!("server {} ({id}) is removed from the cluster", node.name);
    }
    Ok(EmptyReply {})
}

//! `RemoveMember`: removes a node from the members of management, and from the cluster.
//!
//! The sender can retry the request. A retry continues where the first attempt ended.

use crate::authority::Authority;
use skep_cluster::RequestId;
use skep_types::{Error, ErrorCode, NodeKind, Result};
use skep_wire::consensus::RemoveMember;
use skep_wire::management::EmptyReply;

pub(super) async fn handle(
    authority: &Authority,
    request_id: RequestId,
    request: RemoveMember,
) -> Result<EmptyReply> {
    let id = request.node;
    let map = authority.map();
    let node = map.node(id);
    let name = node.map_or("the node", |node| node.name.as_str());
    if node.is_none() && !authority.is_member(id)
        || node.is_some_and(|node| node.kind != NodeKind::Management)
    {
        let what = format!(
            "cannot remove {id}: this node is not a management node; `skep management status` \
             shows the management nodes"
        );
        return Err(Error::new(ErrorCode::NotFound, what));
    }
    if id == authority.own() {
        let what = match authority.member().is_only_voter() {
            true => format!(
                "cannot remove {name} ({id}): this node is the only management node; \
                 first add another member with `skep management add`"
            ),
            false => format!(
                "cannot remove {name} ({id}): this node leads management; stop its service, wait \
                 until `skep management status` shows another leader, and repeat the command"
            ),
        };
        return Err(Error::new(ErrorCode::InUse, what));
    }
    if authority.is_member(id) {
        let removing = authority.member().remove_member(u64::from(id.raw()));
        authority.within_limit(removing).await?;
        tracing::info!("{name} ({id}) is no longer a member of management");
    }
    if authority.has_node(id) {
        authority.remove_server(request_id, id).await?;
    }
    Ok(EmptyReply {})
}

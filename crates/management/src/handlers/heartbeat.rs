//! `Heartbeat`: a node reports that it is alive, the free space and health of its targets, and the
//! groups for which its requests wait.

use crate::authority::Authority;
use skep_rpc::{Incoming, Outbox};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, MapVersion, NodeId, Result};
use skep_wire::management::{Heartbeat, MapUpdate};
use std::rc::Rc;

pub(super) async fn handle(authority: &Authority, incoming: &Incoming, outbox: &Rc<Outbox>) {
    match note(authority, &incoming.body).await {
        Ok((node, known)) => {
            // The last fields of a `HeartbeatReply` are the fields of a `MapUpdate`, whose encoding
            // may be cached.
            let mut body = authority.total_capacity().to_bytes();
            body.extend(authority.log_level_changes.of(node).to_bytes());
            match authority.newer(known) {
                Some(update) => body.extend_from_slice(&update),
                None => body.extend(MapUpdate { map: None }.to_bytes()),
            }
            outbox.reply_raw(&incoming.header, &body);
        }
        Err(error) => outbox.refuse(&incoming.header, &error),
    }
}

/// Records that the sender is alive. Returns its node id and the version of its map.
async fn note(authority: &Authority, body: &[u8]) -> Result<(NodeId, MapVersion)> {
    let heartbeat = Heartbeat::from_bytes(body)?;
    authority.continue_above(&heartbeat).await?;
    let Heartbeat { node, known, targets, waits, .. } = heartbeat;
    if !authority.has_node(node) {
        return Err(Error::new(
            ErrorCode::Stale,
            format!("node {node} is not registered or was removed, and must register again"),
        ));
    }
    authority.note_heartbeat(node, &targets);
    authority.waits.report(node, waits);
    Ok((node, known))
}

//! `Evict`: removes a dead client. A metadata target sends this request when a client has not
//! renewed its session for the duration of a lease. An administrator may send it at any time. A
//! target that has lost contact with many clients at once only asks for the removal of clients
//! whose heartbeats do not arrive either.

use crate::authority::Authority;
use skep_cluster::RequestId;
use skep_types::{Error, ErrorCode, GroupId, NodeKind, Result};
use skep_wire::management::{EmptyReply, Evict};
use std::time::Duration;

/// `by` is the group of the metadata target that sends the request, zero for an administrator.
pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: Evict,
    by: GroupId,
) -> Result<EmptyReply> {
    let map = authority.map();
    let Some(node) = map.node(request.client) else { return Ok(EmptyReply {}) };
    if node.kind != NodeKind::Client {
        let problem = format!("{} ({}) is a server; only clients are evicted", node.id, node.name);
        return Err(Error::new(ErrorCode::NotPermitted, problem));
    }
    if request.unless_heard && authority.has_contact(node.id) {
        tracing::warn!(
            "client {} ({}) stays: a metadata target has lost contact with it and with many other \
             clients, but its heartbeats arrive; check the network of the metadata servers",
            node.id,
            node.name
        );
        return Ok(EmptyReply {});
    }
    let silence = authority.silence(node.id);
    authority.remove_client(id, node.id).await?;
    tracing::warn!("removed client {} ({}): {}", node.id, node.name, reason(by, silence));
    Ok(EmptyReply {})
}

/// Returns the reason of a removal. `silence` is the time since the client's last heartbeat.
fn reason(by: GroupId, silence: Duration) -> String {
    let seconds = silence.as_secs_f64();
    match by.raw() {
        0 => "`skep client evict` was called".to_owned(),
        _ => format!(
            "it sent no request to metadata group {by} for a lease; its last heartbeat arrived \
             {seconds:.1} s ago"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_a_removal_names_its_cause() {
        let silence = Duration::from_millis(5300);
        let lost = reason(GroupId::new(3), silence);
        assert!(lost.contains("metadata group g3") && lost.contains("5.3 s ago"), "{lost}");
        let asked = reason(GroupId::default(), silence);
        assert!(asked.contains("skep client evict") && !asked.contains("lease"), "{asked}");
    }
}

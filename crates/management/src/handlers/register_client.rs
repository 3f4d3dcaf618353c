//! `RegisterClient`: a client reports itself before it mounts.

use crate::authority::Authority;
use skep_cluster::Command;
use skep_cluster::command::ClientRegistration;
use skep_types::Result;
use skep_wire::management::{RegisterClient, Registered};

pub(super) fn handle(authority: &Authority, request: RegisterClient) -> Result<Registered> {
    let RegisterClient { host, mount_point, version } = request;
    let name = if mount_point.is_empty() { host } else { format!("{host}:{mount_point}") };
    let command = Command::RegisterClient(ClientRegistration { name, version });
    let outcome = authority.command(&command)?;
    authority.heard(outcome.node, &[]);
    let map = (*authority.map()).clone();
    if let Some(node) = map.node(outcome.node) {
        tracing::info!("client {} ({}) registered", node.id, node.name);
    }
    Ok(Registered { node: outcome.node, targets: Vec::new(), map })
}

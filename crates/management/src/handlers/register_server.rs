//! `RegisterServer`: a service registers itself and its targets.

use crate::authority::Authority;
use skep_cluster::state::kind_word;
use skep_cluster::{Command, RequestId};
use skep_types::Result;
use skep_wire::management::{RegisterReply, RegisterServer};

pub(super) async fn handle(
    authority: &Authority,
    id: RequestId,
    request: RegisterServer,
) -> Result<RegisterReply> {
    let RegisterServer { server, capacities, groups, host } = request;
    let addresses = server.addresses.clone();
    let command = Command::RegisterServer(server);
    let outcome = match authority.command(id, command).await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::warn!(
                "management refused the registration of a server on host {host} at {}: {error}",
                addresses.join(", ")
            );
            return Err(error);
        }
    };
    for (target, group) in outcome.targets.iter().zip(groups) {
        authority.return_to_group(*target, group).await?;
    }
    authority.note_host(outcome.node, &host).await?;
    authority.keep_addresses(outcome.node, &addresses).await?;
    let capacities: Vec<_> = outcome.targets.iter().copied().zip(capacities).collect();
    authority.note_registration(outcome.node, &capacities);
    let map = authority.map();
    if let Some(node) = map.node(outcome.node) {
        tracing::info!(
            "{} service {} ({}) registered; number of targets: {}; addresses: {}",
            kind_word(node.kind),
            node.id,
            node.name,
            outcome.targets.len(),
            node.addresses.join(", ")
        );
    }
    Ok(RegisterReply { node: outcome.node, targets: outcome.targets, map: (*map).clone() })
}

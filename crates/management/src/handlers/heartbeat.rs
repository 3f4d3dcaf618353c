//! `Heartbeat`: a node is alive.

use super::answer_map;
use crate::authority::Authority;
use skep_rpc::{Incoming, Outbox};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, MapVersion, Result};
use skep_wire::management::Heartbeat;
use std::rc::Rc;

pub(super) fn handle(authority: &Authority, incoming: &Incoming, outbox: &Rc<Outbox>) {
    match note(authority, &incoming.body) {
        Ok(known) => answer_map(outbox, &incoming.header, authority.newer(known)),
        Err(error) => outbox.refuse(&incoming.header, &error),
    }
}

/// Notes that the sender is alive; gives the version of the map that it has.
fn note(authority: &Authority, body: &[u8]) -> Result<MapVersion> {
    let Heartbeat { node, known, capacities } = Heartbeat::from_bytes(body)?;
    if authority.map().node(node).is_none() {
        return Err(Error::new(
            ErrorCode::Stale,
            format!("node {node} is not known (any more); it has to register"),
        ));
    }
    authority.heard(node, &capacities);
    Ok(known)
}

//! A member of management that does not lead is a node like others: it registers with the leader,
//! sends heartbeats, and follows the cluster map. So the map of the former leader is here if this
//! member is elected.
//!
//! Does not own the leadership ([`crate::leadership`]).

use crate::authority::Authority;
use crate::limits::TICK;
use skep_rpc::{Change, JoinToken, Membership};
use skep_types::registration::ServerRegistration;
use skep_wire::management::RegisterServer;
use std::rc::Rc;

/// Keeps this member in the cluster while another one leads, until the process ends.
pub(crate) async fn keep(authority: Rc<Authority>, token: JoinToken, own: ServerRegistration) {
    loop {
        until(|| !authority.is_leading() && !authority.member().is_only_voter()).await;
        let following = skep_env::spawn(follow(Rc::clone(&authority), token.clone(), own.clone()));
        until(|| authority.is_leading()).await;
        // Ends the heartbeats to the former leader.
        drop(following);
    }
}

async fn follow(authority: Rc<Authority>, token: JoinToken, own: ServerRegistration) {
    let host = skep_service::host_name();
    let request = RegisterServer { server: own, capacities: Vec::new(), host };
    let (membership, registered) = match Membership::join(&token, request, None).await {
        Ok(joined) => joined,
        Err(error) => return tracing::error!("this management node cannot take part: {error}"),
    };
    authority.note_map(&registered.map);
    let cell = membership.map_cell();
    let on_change = move |change| match change {
        Change::Refused(error) => tracing::error!("this management node is refused: {error}"),
        _ => authority.note_map(&cell.load()),
    };
    membership.keep(Vec::new, on_change).await;
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        skep_env::sleep(TICK).await;
    }
}

//! `ListClients`: returns the registered clients with the data that `skep client list` shows.

use crate::authority::Authority;
use skep_types::Result;
use skep_wire::limits::MAX_LISTED_CLIENTS;
use skep_wire::management::{ClientEntry, ClientList, ListClients};

pub(super) async fn handle(authority: &Authority, request: ListClients) -> Result<ClientList> {
    let mut clients = authority.clients(request.after, MAX_LISTED_CLIENTS + 1);
    let has_more = clients.len() > MAX_LISTED_CLIENTS;
    clients.truncate(MAX_LISTED_CLIENTS);
    let next = clients.last().filter(|_| has_more).map(|client: &ClientEntry| client.node);
    Ok(ClientList { clients, next })
}

//! `ListHosts`: returns the host names of the servers.

use crate::authority::Authority;
use skep_types::Result;
use skep_wire::management::{HostEntry, HostList, ListHosts};

pub(super) async fn handle(authority: &Authority, _request: ListHosts) -> Result<HostList> {
    let entry = |(node, host)| HostEntry { node, host };
    Ok(HostList { hosts: authority.hosts().into_iter().map(entry).collect() })
}

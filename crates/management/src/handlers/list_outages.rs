//! `ListOutages`: returns the servers without heartbeats and the targets that do not serve all
//! requests, with the duration of each outage.

use crate::authority::Authority;
use skep_types::Result;
use skep_wire::management::{ListOutages, OutageList};

pub(super) async fn handle(authority: &Authority, _request: ListOutages) -> Result<OutageList> {
    Ok(authority.outages())
}

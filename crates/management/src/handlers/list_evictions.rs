//! `ListEvictions`: returns the last evictions of clients.

use crate::authority::Authority;
use skep_types::Result;
use skep_wire::management::{EvictionList, ListEvictions};

pub(super) async fn handle(authority: &Authority, _request: ListEvictions) -> Result<EvictionList> {
    Ok(EvictionList { now: skep_env::wall_time(), evictions: authority.evictions() })
}

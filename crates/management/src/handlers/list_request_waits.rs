//! `ListRequestWaits`: returns the nodes whose requests wait for a group.

use crate::authority::Authority;
use skep_types::Result;
use skep_wire::management::{ListRequestWaits, RequestWaitList};

pub(super) async fn handle(
    authority: &Authority,
    _request: ListRequestWaits,
) -> Result<RequestWaitList> {
    Ok(authority.waits.list(|node| authority.has_contact(node)))
}

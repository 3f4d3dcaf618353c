//! `LogOrderDone`: a client says what it logs now.

use crate::authority::Authority;
use skep_types::Result;
use skep_wire::management::{Done, LogOrderDone};

pub(super) fn handle(authority: &Authority, request: LogOrderDone) -> Result<Done> {
    authority.log_orders.done(request);
    Ok(Done {})
}

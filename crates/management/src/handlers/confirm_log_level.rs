//! `ConfirmLogLevel`: a client reports whether it has changed its log level.

use crate::authority::Authority;
use skep_types::Result;
use skep_wire::management::{ConfirmLogLevel, EmptyReply};

pub(super) async fn handle(authority: &Authority, request: ConfirmLogLevel) -> Result<EmptyReply> {
    authority.log_level_changes.confirm(request);
    Ok(EmptyReply {})
}

//! `Decide`: receives the coordinator's decision about a transaction, and applies or drops the
//! prepared steps. The target replies only after the log record of this change is *safe*.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::prepared;
use skep_wire::management::EmptyReply;
use skep_wire::metadata::Decide;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Decide,
) -> Result<EmptyReply, Stop> {
    prepared::end(context, request.transaction, request.commit)?;
    Ok(EmptyReply {})
}

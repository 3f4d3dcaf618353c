//! `ApplyPrepared`: applies the steps of a prepared transaction whose outcome is a commit, before
//! the coordinator's decision is durable. The target keeps the transaction until it receives
//! `Decide`, because the coordinator may lose power and then ask for the transaction again
//! (`ConfirmPrepared`).

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::prepared;
use skep_wire::management::EmptyReply;
use skep_wire::metadata::ApplyPrepared;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ApplyPrepared,
) -> Result<EmptyReply, Stop> {
    prepared::apply(context, request.transaction)?;
    Ok(EmptyReply {})
}

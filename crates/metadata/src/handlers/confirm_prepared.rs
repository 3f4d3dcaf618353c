//! `ConfirmPrepared`: replies whether this target still has a prepared transaction. A coordinator
//! sends this request for a staged transaction. The reply waits until all log records on which it
//! depends are *safe*.
//!
//! # Hazard: a late `BeginPrepare`
//! If the target does not have the transaction, the coordinator undoes its own changes. So this
//! target must not prepare the transaction any more, even if a duplicate of `BeginPrepare` arrives
//! later. Therefore the target records that the transaction has ended. After a power loss has
//! removed the prepared transaction, a duplicate may also have prepared the transaction again. The
//! second preparation has another time, so the target aborts it.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::prepared;
use skep_format::metadata::{Key, PreparedRecord};
use skep_wire::metadata::{ConfirmPrepared, ConfirmPreparedReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ConfirmPrepared,
) -> Result<ConfirmPreparedReply, Stop> {
    let ConfirmPrepared { transaction, since } = request;
    let record = context.get::<PreparedRecord>(&Key::Prepared(transaction))?;
    let is_prepared = record.is_some_and(|record| record.since == since);
    if !is_prepared {
        prepared::end(context, transaction, false)?;
    }
    Ok(ConfirmPreparedReply { is_prepared })
}

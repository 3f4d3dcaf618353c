//! `ResolveTransaction`: an administrator decides on a prepared transaction whose coordinator does
//! not come back, or whose decision cannot be carried out. The target has checked these conditions
//! before (`crate::target`).

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::prepared;
use skep_format::metadata::{Key, PreparedRecord};
use skep_types::{Error, ErrorCode};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::ResolveTransaction;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ResolveTransaction,
) -> Result<EmptyReply, Stop> {
    let ResolveTransaction { transaction, commit } = request;
    if context.get::<PreparedRecord>(&Key::Prepared(transaction))?.is_none() {
        let what = "cannot resolve the transaction: it is not prepared on this target";
        return Err(Error::new(ErrorCode::NotFound, what).into());
    }
    prepared::end(context, transaction, commit)?;
    Ok(EmptyReply {})
}

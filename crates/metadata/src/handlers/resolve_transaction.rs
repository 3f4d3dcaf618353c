//! `ResolveTransaction`: commits or aborts a prepared transaction at the request of an
//! administrator. The module `background::prepared` permits this request only if the coordinator of
//! the transaction does not reply, or if the target cannot carry out the decision.
//!
//! From the feature level of staged transactions on, a commit applies the steps and keeps the
//! transaction without steps until the coordinator is back. So a repeated commit changes nothing.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::prepared;
use skep_format::metadata::{Key, PreparedRecord};
use skep_types::{Error, ErrorCode, STAGING_FEATURE_LEVEL};
use skep_wire::management::EmptyReply;
use skep_wire::metadata::ResolveTransaction;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ResolveTransaction,
) -> Result<EmptyReply, Stop> {
    let ResolveTransaction { transaction, commit } = request;
    let Some(record) = context.get::<PreparedRecord>(&Key::Prepared(transaction))? else {
        let what = "cannot resolve the transaction: this target has no prepared transaction of \
                    this number; `skep transaction list` shows all prepared transactions";
        return Err(Error::new(ErrorCode::NotFound, what).into());
    };
    if record.steps.is_empty() && !commit {
        let what = "cannot abort the transaction: its outcome is a commit, and this target has \
                    already applied its steps; it ends when the coordinator is back";
        return Err(Error::new(ErrorCode::InvalidArgument, what).into());
    }
    // If the coordinator has staged the transaction, the coordinator asks this target for the
    // transaction when the coordinator is back. The coordinator would undo its own changes if this
    // target no longer had the transaction. A restore of management may have lowered the feature
    // level since this target has applied the steps.
    let map = &context.shared.map;
    let may_be_staged = record.steps.is_empty() || map.feature_level >= STAGING_FEATURE_LEVEL;
    if commit && may_be_staged && map.group(transaction.coordinator).is_some() {
        prepared::apply(context, transaction)?;
    } else {
        prepared::end(context, transaction, commit)?;
    }
    Ok(EmptyReply {})
}

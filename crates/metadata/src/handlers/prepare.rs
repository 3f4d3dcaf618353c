//! `Prepare` and `BeginPrepare`: check, lock and log steps for a transaction that another group
//! coordinates. The requests never wait for a lock: if a resource is locked, the target replies
//! "busy". After a successful preparation, the reply to `Prepare` waits until the log record of the
//! prepared transaction is *safe*. The reply to `BeginPrepare` waits until this record is *held*.

use crate::engine::Engine;
use crate::limits::MAX_STEPS;
use crate::tx::context::Context;
use crate::tx::locks::Owner;
use crate::tx::operation::Stop;
use crate::tx::steps::{announce, check, resources};
use skep_format::metadata::{Key, PreparedRecord};
use skep_types::{Error, ErrorCode, Timestamp};
use skep_wire::metadata::{
    BeginPrepare, BeginPrepareReply, Prepare, PrepareReply, Step, TransactionId,
};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Prepare,
) -> Result<PrepareReply, Stop> {
    Ok(match prepare(context, request.transaction, request.steps)? {
        Some(record) => PrepareReply { busy: false, attributes: record.attributes },
        None => PrepareReply { busy: true, attributes: Vec::new() },
    })
}

pub(crate) fn begin<E: Engine>(
    context: &mut Context<'_, E>,
    request: BeginPrepare,
) -> Result<BeginPrepareReply, Stop> {
    Ok(match prepare(context, request.transaction, request.steps)? {
        Some(PreparedRecord { attributes, since, .. }) => {
            BeginPrepareReply { busy: false, attributes, since }
        }
        None => {
            let since = Timestamp::default();
            BeginPrepareReply { busy: true, attributes: Vec::new(), since }
        }
    })
}

/// Prepares steps, and returns the record of the prepared transaction. `None` means that another
/// transaction has a lock that a step needs.
fn prepare<E: Engine>(
    context: &mut Context<'_, E>,
    transaction: TransactionId,
    steps: Vec<Step>,
) -> Result<Option<PreparedRecord>, Stop> {
    if steps.len() > MAX_STEPS {
        let what = format!(
            "cannot prepare {} steps in one request: the limit is {MAX_STEPS}",
            steps.len()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what).into());
    }
    if let Some(record) = context.get::<PreparedRecord>(&Key::Prepared(transaction))? {
        return Ok(Some(record));
    }
    if context.get::<Timestamp>(&Key::Finished(transaction))?.is_some() {
        let what = "cannot prepare the transaction: this transaction has already ended, so the \
                    request came too late";
        return Err(Error::new(ErrorCode::Stale, what).into());
    }
    context.act_for(transaction);
    let mut attributes = Vec::new();
    for step in &steps {
        match check(context, step) {
            Ok(answer) => attributes.extend(answer),
            Err(Stop::Held(_)) => return Ok(None),
            Err(stop) => return Err(stop),
        }
    }
    // The resources that `check` has found free are free now too, because the target runs one
    // operation at a time.
    for resource in resources(&steps, &attributes) {
        let (owner, now) = (Owner::Prepared(transaction), context.shared.now);
        let taken = context.shared.locks.try_take(&resource, owner, now);
        assert!(taken, "a resource that was free stays free within one operation");
    }
    for step in &steps {
        announce(context, step)?;
    }
    let since = context.wall();
    let record = PreparedRecord { steps, attributes, since };
    context.put(&Key::Prepared(transaction), &record);
    Ok(Some(record))
}

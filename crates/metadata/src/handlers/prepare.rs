//! `Prepare`: checks, locks and logs steps for a transaction that another group coordinates. The
//! request never waits for a lock: if a resource is locked, the target replies "busy". Otherwise
//! the reply waits until the log record of the prepared transaction is *safe*.

use crate::engine::Engine;
use crate::limits::MAX_STEPS;
use crate::tx::context::Context;
use crate::tx::locks::Owner;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_format::metadata::{Key, PreparedRecord};
use skep_types::{Error, ErrorCode, Timestamp};
use skep_wire::metadata::{Prepare, PrepareReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Prepare,
) -> Result<PrepareReply, Stop> {
    let transaction = request.transaction;
    if request.steps.len() > MAX_STEPS {
        let what = format!(
            "cannot prepare {} steps in one request: the limit is {MAX_STEPS}",
            request.steps.len()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what).into());
    }
    if let Some(record) = context.get::<PreparedRecord>(&Key::Prepared(transaction))? {
        return Ok(PrepareReply { busy: false, attributes: record.attributes });
    }
    if context.get::<Timestamp>(&Key::Finished(transaction))?.is_some() {
        let what = "cannot prepare the transaction: it has already ended, so the request came too \
                    late";
        return Err(Error::new(ErrorCode::Stale, what).into());
    }
    context.act_for(transaction);
    let mut attributes = Vec::new();
    for step in &request.steps {
        match steps::check(context, step) {
            Ok(answer) => attributes.extend(answer),
            Err(Stop::Held(_)) => return Ok(PrepareReply { busy: true, attributes: Vec::new() }),
            Err(stop) => return Err(stop),
        }
    }
    // The resources that `check` has found free are free now too, because the target runs one
    // operation at a time.
    for resource in steps::resources(&request.steps, &attributes) {
        let (owner, now) = (Owner::Prepared(transaction), context.shared.now);
        let taken = context.shared.locks.try_take(&resource, owner, now);
        assert!(taken, "a resource that was free stays free within one operation");
    }
    for step in &request.steps {
        steps::announce(context, step)?;
    }
    let since = context.wall();
    let record = PreparedRecord { steps: request.steps, attributes, since };
    context.put(&Key::Prepared(transaction), &record);
    Ok(PrepareReply { busy: false, attributes: record.attributes })
}

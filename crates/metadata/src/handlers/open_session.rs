//! `OpenSession`: opens the session whose id is in the header, or confirms that it is open.

use crate::engine::Engine;
use crate::limits::MAX_SLOTS;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{Key, SessionRecord};
use skep_types::{Error, ErrorCode};
use skep_wire::metadata::{OpenSession, OpenSessionReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: OpenSession,
) -> Result<OpenSessionReply, Stop> {
    let session = context.session()?;
    if context.shared.map.has_removed(request.client) {
        let what = format!(
            "cannot open a session of client {}: it was removed from the cluster map",
            request.client
        );
        return Err(Error::new(ErrorCode::Evicted, what).into());
    }
    let slots = request.slots.clamp(1, MAX_SLOTS);
    let record = match context.get::<SessionRecord>(&Key::Session(session))? {
        // This request may be a retry, and the client may already use the slots that the first
        // request has granted. So never grant fewer slots than the first request has granted.
        Some(record) => SessionRecord { slots: record.slots.max(slots), ..record },
        None => SessionRecord { client: request.client, slots },
    };
    context.put(&Key::Session(session), &record);
    let lease_ms = context.shared.map.policy.lease_ms;
    // The target replies only after the log record of the session is *safe*. The record of the
    // target's start is earlier in the log, so it is *safe* too.
    let start = context.shared.starts.last().map_or(0, |(number, _)| number);
    Ok(OpenSessionReply { slots: record.slots, lease_ms, start })
}

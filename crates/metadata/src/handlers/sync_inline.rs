//! `SyncInline`: returns whether a power loss has reverted inline writes of a client. The target
//! replies only after all earlier log records are *safe*, so the writes that it still has are
//! durable.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::{Error, ErrorCode, Result};
use skep_wire::inline::{InlineMark, SyncInline, SyncInlineReply};
use skep_wire::limits::MAX_STARTS;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: SyncInline,
) -> Result<SyncInlineReply, Stop> {
    check_marks(&request.written)?;
    let starts = &context.shared.starts;
    let is_lost = request.written.iter().any(|mark| starts.is_lost(mark));
    let found = context.find_inode(request.inode)?;
    Ok(SyncInlineReply { is_lost, attributes: found.map(|record| record.attributes) })
}

/// Checks the number of marks in a request.
///
/// # Errors
/// `InvalidArgument` if there are more than [`MAX_STARTS`] marks, one for each start of the target.
pub(super) fn check_marks(written: &[InlineMark]) -> Result<()> {
    if written.len() > MAX_STARTS {
        let what = format!(
            "cannot sync inline bytes: the request names writes of more than {MAX_STARTS} starts \
             of the target"
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what));
    }
    Ok(())
}

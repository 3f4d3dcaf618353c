//! `SyncInline`: checks whether the target still has a client's inline writes. The target replies
//! only after all earlier log records are synced.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::{Error, ErrorCode};
use skep_wire::inline::{SyncInline, SyncInlineReply};
use skep_wire::limits::MAX_STARTS;

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: SyncInline,
) -> Result<SyncInlineReply, Stop> {
    if request.written.len() > MAX_STARTS {
        let what = format!(
            "cannot sync inline bytes: the request names writes of more than {MAX_STARTS} starts \
             of the target"
        );
        return Err(Error::new(ErrorCode::InvalidArgument, what).into());
    }
    let starts = &context.shared.starts;
    let is_lost = request.written.iter().any(|mark| starts.is_lost(mark));
    let found = context.find_inode(request.inode)?;
    Ok(SyncInlineReply { is_lost, attributes: found.map(|record| record.attributes) })
}

//! `AwaitTruncation`: returns the attributes of a file after a pending truncation has ended. The
//! target makes the request wait (`Context::check_truncation`).

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_wire::metadata::{AttributesReply, AwaitTruncation};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: AwaitTruncation,
) -> Result<AttributesReply, Stop> {
    let attributes = context.inode(request.inode)?.attributes;
    Ok(AttributesReply { attributes })
}

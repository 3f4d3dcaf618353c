//! `AwaitTruncation`: returns the attributes of a file after a truncation in progress has ended.

use crate::engine::Engine;
use crate::namespace::truncations::await_truncation;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_wire::metadata::{AttributesReply, AwaitTruncation};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: AwaitTruncation,
) -> Result<AttributesReply, Stop> {
    await_truncation(context, request.inode)?;
    let attributes = context.inode(request.inode)?.attributes;
    Ok(AttributesReply { attributes })
}

//! `GetAttributes`: returns the attributes of an inode. For a directory, the request first waits
//! until the transactions that change its names are decided.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_wire::metadata::{AttributesReply, GetAttributes};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: GetAttributes,
) -> Result<AttributesReply, Stop> {
    context.await_decisions(request.inode)?;
    let attributes = context.inode(request.inode)?.attributes;
    Ok(AttributesReply { attributes })
}

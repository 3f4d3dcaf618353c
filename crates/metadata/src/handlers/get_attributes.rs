//! `GetAttributes`: returns the attributes of an inode.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_wire::metadata::{AttributesReply, GetAttributes};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: GetAttributes,
) -> Result<AttributesReply, Stop> {
    let attributes = context.inode(request.inode)?.attributes;
    Ok(AttributesReply { attributes })
}

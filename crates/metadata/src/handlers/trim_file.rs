//! `TrimFile`: truncates a file to its present size, so that storage removes bytes beyond the end
//! of the file from its chunk files.

use crate::engine::Engine;
use crate::namespace::truncations;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_wire::metadata::{AttributesReply, TrimFile};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: TrimFile,
) -> Result<AttributesReply, Stop> {
    let mut record = context.inode(request.inode)?;
    let size = record.attributes.size;
    truncations::truncate(context, &mut record, size)?;
    context.put_inode(&record);
    Ok(AttributesReply { attributes: record.attributes })
}

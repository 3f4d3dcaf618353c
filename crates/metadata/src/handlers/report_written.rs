//! `ReportWritten`: a writer reports the extent that it has written.

use crate::engine::Engine;
use crate::namespace::inodes::check_written;
use crate::namespace::truncations::await_truncation;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::{ErrorCode, FileKind};
use skep_wire::metadata::{AttributesReply, ReportWritten};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ReportWritten,
) -> Result<AttributesReply, Stop> {
    check_written(&request.written)?;
    await_truncation(context, request.inode)?;
    let mut record = context.inode(request.inode)?;
    if record.attributes.kind != FileKind::Regular {
        return Err(ErrorCode::InvalidArgument.into());
    }
    context.merge_written(&mut record, &request.written);
    context.put_inode(&record);
    Ok(AttributesReply { attributes: record.attributes })
}

//! `ReadLink`: returns the path to which a symbolic link points.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::{ErrorCode, FileKind};
use skep_wire::metadata::{BytesReply, ReadLink};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ReadLink,
) -> Result<BytesReply, Stop> {
    let record = context.inode(request.inode)?;
    match record.attributes.kind {
        FileKind::Symlink => Ok(BytesReply { bytes: record.link_target }),
        _ => Err(ErrorCode::InvalidArgument.into()),
    }
}

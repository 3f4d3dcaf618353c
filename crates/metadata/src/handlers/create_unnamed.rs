//! `CreateUnnamed`: creates a regular file without a name and opens it (`O_TMPFILE`). The target
//! removes the file at its last close, or when the session that has it open ends. If a `Link`
//! request has given the file a name, the file stays.

use crate::engine::Engine;
use crate::handlers::create::{new_file, new_file_reply};
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::codec::Bytes;
use skep_types::{Error, ErrorCode, FileKind};
use skep_wire::metadata::{Create, CreateUnnamed, OpenMode, OpenReply};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: CreateUnnamed,
) -> Result<OpenReply, Stop> {
    if request.open == OpenMode::No {
        return Err(Error::new(
            ErrorCode::InvalidArgument,
            "cannot open a file: the request has no open mode",
        )
        .into());
    }
    let directory = context.directory(request.directory)?;
    let like = Create {
        directory: request.directory,
        name: Bytes::default(),
        kind: FileKind::Regular,
        new: request.new,
        device: 0,
        exclusive: true,
        open: request.open,
        pattern: request.pattern,
    };
    let mut record = new_file(context, &directory, &like)?;
    record.attributes.links = 0;
    record.may_be_named = true;
    context.put_inode(&record);
    context.count_first_open(record.attributes.inode, request.open)?;
    Ok(new_file_reply(record))
}

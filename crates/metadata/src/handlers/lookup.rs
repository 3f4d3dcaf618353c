//! `Lookup`: finds the entry of a name in a directory.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_types::ErrorCode;
use skep_wire::metadata::{EntryReply, Lookup};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: Lookup,
) -> Result<EntryReply, Stop> {
    context.directory(request.directory)?;
    match context.dentry(request.directory, &request.name)? {
        Some((_, dentry)) => context.entry_reply(dentry.inode, dentry.kind),
        None => Err(ErrorCode::NotFound.into()),
    }
}

//! `GetEntryInfo`: returns the attributes, parent and stripe pattern of an inode, and the number of
//! sessions that have it open.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::InodeRecord;
use skep_wire::metadata::{EntryInfo, GetEntryInfo};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: GetEntryInfo,
) -> Result<EntryInfo, Stop> {
    let record = context.inode(request.inode)?;
    let open_sessions = context.shared.sharing.holders(request.inode).len() as u32;
    let InodeRecord { attributes, parent, pattern, .. } = record;
    Ok(EntryInfo { attributes, parent, pattern, open_sessions })
}

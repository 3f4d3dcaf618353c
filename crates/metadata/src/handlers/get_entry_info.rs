//! `GetEntryInfo`: returns the attributes, parent and stripe pattern of an inode, and the number of
//! sessions that have it open.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{InodeRecord, Key, expect_parsed, last_u64};
use skep_types::SessionId;
use skep_wire::metadata::{EntryInfo, GetEntryInfo};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: GetEntryInfo,
) -> Result<EntryInfo, Stop> {
    let record = context.inode(request.inode)?;
    let opens = context.opens(request.inode)?;
    let mut open_sessions = 0;
    if !opens.is_zero() {
        for (key, _) in context.scan(&Key::sessions(), &[], usize::MAX)? {
            let session = expect_parsed(&key, last_u64(&key).map(SessionId::new))?;
            let open = context.get_raw(&Key::SessionOpen(session, request.inode))?;
            open_sessions += u32::from(open.is_some());
        }
    }
    let InodeRecord { attributes, parent, pattern, .. } = record;
    Ok(EntryInfo { attributes, parent, pattern, open_sessions })
}

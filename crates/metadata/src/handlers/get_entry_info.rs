//! `GetEntryInfo`: everything that metadata knows of an inode.

use crate::context::Context;
use crate::engine::Engine;
use crate::namespace::{directory_pattern, handed_down};
use crate::operation::Stop;
use skep_format::metadata::Key;
use skep_types::{FileKind, SessionId};
use skep_wire::metadata::{EntryInfo, GetEntryInfo};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: GetEntryInfo,
) -> Result<EntryInfo, Stop> {
    let record = context.inode(request.inode)?;
    let pattern = if record.attributes.kind == FileKind::Directory {
        let policy = &context.shared.map.policy;
        let (chunk_bytes, width) = handed_down(&record);
        directory_pattern(
            if chunk_bytes == 0 { policy.default_chunk_bytes } else { chunk_bytes },
            if width == 0 { policy.default_width } else { width },
        )
    } else {
        record.pattern.clone()
    };
    let opens = context.opens(request.inode)?;
    let mut open_sessions = 0;
    if !opens.is_zero() {
        for (key, _) in context.scan(&Key::sessions(), &[], usize::MAX)? {
            let session = skep_format::metadata::last_u64(&key).map(SessionId::new);
            let Some(session) = session else { continue };
            let open = context.get_raw(&Key::SessionOpen(session, request.inode))?;
            open_sessions += u32::from(open.is_some());
        }
    }
    Ok(EntryInfo { attributes: record.attributes, parent: record.parent, pattern, open_sessions })
}

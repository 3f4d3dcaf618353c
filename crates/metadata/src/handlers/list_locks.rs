//! `ListLocks`: lists the sessions that have files open, with the locks that they hold or wait for.

use crate::engine::Engine;
use crate::limits::USES_EXAMINED;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{
    Key, OpenCounts, SessionRecord, decode_value, expect_parsed, session_open_of,
};
use skep_types::SessionId;
use skep_wire::file_locks::{FileUse, ListLocks, LockList};
use skep_wire::limits::{MAX_LISTED_LOCKS, MAX_LISTED_USES};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ListLocks,
) -> Result<LockList, Stop> {
    let is_first = request.after_session == SessionId::default();
    let after = match is_first {
        true => Vec::new(),
        false => Key::SessionOpen(request.after_session, request.after_inode).to_bytes(),
    };
    let found = context.scan(&Key::session_opens(), &after, USES_EXAMINED)?;
    let mut list = LockList { uses: Vec::new(), next: None };
    let is_last = found.len() < USES_EXAMINED;
    let mut at = None;
    for (key, value) in found {
        let (session, inode) = expect_parsed(&key, session_open_of(&key))?;
        if list.uses.len() == MAX_LISTED_USES {
            list.next = at;
            return Ok(list);
        }
        at = Some((session, inode));
        if request.inode.raw() != 0 && request.inode != inode {
            continue;
        }
        let (mut held, mut waiting) = context.shared.file_locks.of_session(session, inode);
        if request.only_locked && held.is_empty() && waiting.is_empty() {
            continue;
        }
        let since = context.shared.file_locks.waits_since(session, inode);
        let longest_wait = since.map(|since| context.shared.now.saturating_sub(since));
        let opens: OpenCounts = decode_value(&key, &value)?;
        let client = context.get::<SessionRecord>(&Key::Session(session))?;
        let (held_count, waiting_count) = (held.len() as u32, waiting.len() as u32);
        held.truncate(MAX_LISTED_LOCKS);
        waiting.truncate(MAX_LISTED_LOCKS);
        list.uses.push(FileUse {
            session,
            client: client.map(|record| record.client).unwrap_or_default(),
            inode,
            readers: opens.readers,
            writers: opens.writers,
            held,
            held_count,
            waiting,
            waiting_count,
            longest_wait_ms: longest_wait
                .map_or(0, |wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        });
    }
    list.next = at.filter(|_| !is_last);
    Ok(list)
}

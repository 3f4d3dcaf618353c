//! Closes the files of ended sessions, and releases their locks.

use super::task::JobContext;
use crate::engine::Engine;
use crate::limits::CLOSE_BYTES;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::work::InternalWork;
use skep_format::metadata::{
    InodeRecord, Key, OpenCounts, SessionRecord, decode_value, expect_parsed, last_u64,
};
use skep_types::{InodeId, Result, SessionId};
use std::collections::VecDeque;

/// Ended sessions whose clean-up is not complete. Each batch performs one bounded step of the
/// clean-up of one session, so that requests do not wait for the clean-up of a large session.
#[derive(Debug, Default)]
pub(crate) struct SessionCleanUp {
    ended: VecDeque<SessionId>,
}

impl SessionCleanUp {
    /// Adds a session whose end was committed.
    pub(crate) fn add(&mut self, session: SessionId) {
        self.ended.push_back(session);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }

    /// Starts the next step of the clean-up of the first session in the queue.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) {
        if let Some(session) = self.ended.pop_front() {
            context.start(InternalWork::CleanUpSession(session));
        }
    }

    /// Queues the session again, unless the committed step was the last step of its clean-up.
    pub(crate) fn after_clean_up<E: Engine>(
        &mut self,
        session: SessionId,
        context: &JobContext<'_, E>,
    ) {
        // The last step of the clean-up deletes the session's record. If the record still exists,
        // queue the session for the next step.
        let key = Key::Session(session).to_bytes();
        if !matches!(context.table.get(&key), Ok(None)) {
            self.add(session);
        }
    }
}

/// Writes to the store that a session has ended.
pub(super) fn record_end<E: Engine>(
    context: &mut Context<'_, E>,
    session: SessionId,
) -> Result<(), Stop> {
    let now = context.wall();
    context.put(&Key::SessionEnd(session), &now);
    let record = context.get::<SessionRecord>(&Key::Session(session))?;
    let map = &context.shared.map;
    if record.is_some_and(|record| map.has_removed(record.client)) {
        // The target may now grant locks and opens to other clients, although they conflict with
        // the locks and opens of this session. From now on, storage must refuse the removed client.
        // So the fence becomes the version of the target's cluster map, which no longer contains
        // the client.
        let version = map.version;
        context.put(&Key::Fence, &version);
    }
    Ok(())
}

/// Performs one step of the clean-up of an ended session. The first steps close its open files, and
/// the next steps release its locks. The last step deletes the session's record.
pub(super) fn clean_up<E: Engine>(
    context: &mut Context<'_, E>,
    session: SessionId,
) -> Result<(), Stop> {
    let limit = context.shared.limits.closes_per_batch;
    let opens = context.scan(&Key::opens_of(session), &[], limit)?;
    let mut is_last = opens.len() < limit;
    for (key, value) in opens {
        if context.written_bytes() > CLOSE_BYTES {
            is_last = false;
            break;
        }
        let counts: OpenCounts = decode_value(&key, &value)?;
        let inode = expect_parsed(&key, last_u64(&key).map(InodeId::new))?;
        close_after_death(context, session, inode, counts)?;
    }
    if is_last {
        // Release locks only after all files are closed. With an earlier release, the next holder
        // of a lock could read a file before its size recovery is pending.
        let locks = context.scan_keys(&Key::file_locks_of(session), &[], limit)?;
        is_last = locks.len() < limit;
        locks.into_iter().for_each(|key| context.delete_raw(key));
    }
    if is_last {
        // Keep the replies in the slots, because the client may still ask for the outcome of a
        // request.
        context.delete(&Key::Session(session));
    }
    Ok(())
}

/// Closes one file of an ended session. If the file then has no name and no open any more, disposes
/// of it. In all other cases, adds a size recovery of the file if the session was a writer.
fn close_after_death<E: Engine>(
    context: &mut Context<'_, E>,
    session: SessionId,
    inode: InodeId,
    counts: OpenCounts,
) -> Result<(), Stop> {
    let mut record = context.find_inode(inode)?;
    if counts.writers > 0
        && let Some(record) = &mut record
        && context.end_unused_inline(record, session)?
    {
        // The client may have written the first bytes of the file to storage without a report. This
        // transaction ends the inline component and removes the open, so that no client writes
        // inline bytes before the size recovery has found the bytes at storage.
        context.put_inode(record);
    }
    context.uncount_opens(session, inode, counts)?;
    let Some(record) = record else { return Ok(()) };
    if record.attributes.links == 0 && context.opens(inode)?.is_zero() {
        // The file has no name and no open, so dispose of it. If this session was a writer, it may
        // not have reported its last writes. After unreported writes, storage must remove every
        // chunk file that the pattern allows.
        let high_water = match counts.writers {
            0 => record.high_water,
            _ => skep_types::MAX_FILE_BYTES,
        };
        context.dispose(&InodeRecord { high_water, ..record })?;
    } else if counts.writers > 0 {
        // Each death of a writer gets a new number. A size recovery that is already in progress may
        // have missed the last bytes of this writer. The new number makes its result outdated, so
        // the recovery is repeated.
        let death = context.next_number()?;
        context.put(&Key::SizeRecovery(inode), &death);
    }
    Ok(())
}

//! Deletes the records of sessions and of other groups' transactions that ended long ago. The job
//! deletes the replies in the slots of a session together with the record of the session's end.
//!
//! # Hazard: late requests
//! A record that is deleted too early lets a late `Prepare` or `OpenSession` take effect. So the
//! job deletes a record only if two conditions hold. The record is older than `END_KEPT_SECONDS` by
//! the time of day. And the target has run for more than `END_KEPT_SECONDS`, measured by the clock
//! since boot. So the job deletes no record too early, even if the time of day jumps while the
//! target runs or is stopped.

use super::task::JobContext;
use crate::engine::Engine;
use crate::limits::{END_KEPT_SECONDS, FORGET_EVERY, KEYS_FORGOTTEN};
use crate::tx::work::InternalWork;
use skep_format::metadata::{Key, decode_value, last_u64};
use skep_types::{Result, SessionId, Timestamp};
use std::time::Duration;

/// The search for records of ended sessions and transactions that are old enough to be deleted.
/// Each batch reads one page of records, until the search has read all of them.
#[derive(Debug, Default)]
pub(crate) struct ForgetJob {
    /// Time at which the next search begins. While a search is in progress, this time is in the
    /// past, so that each batch continues the search.
    due: Duration,
    /// Time of the first search since the target started. The job deletes records only when
    /// `END_KEPT_SECONDS` have passed since then.
    first: Option<Duration>,
    /// Index of the kind of record (end of a transaction, end of a session) at which the search
    /// continues.
    kind: usize,
    /// Key after which the search continues. Empty at the beginning of a kind.
    after: Vec<u8>,
}

impl ForgetJob {
    /// If the next page of records is due, reads this page, and deletes the records in it that are
    /// old enough.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) -> Result<()> {
        if context.shared.now < self.due {
            return Ok(());
        }
        let kinds = [Key::finished(), Key::session_ends()];
        let (kind, after) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.after));
        let limit = context.shared.limits.ends_per_batch;
        let page = context.table.scan(&kinds[kind], &after, limit)?;
        match page.last() {
            Some((last, _)) if page.len() == limit => {
                (self.kind, self.after) = (kind, last.clone());
            }
            _ if kind + 1 < kinds.len() => self.kind = kind + 1,
            _ => self.due = context.shared.now + FORGET_EVERY,
        }
        let before = context.shared.wall.newest().seconds - END_KEPT_SECONDS;
        let first = *self.first.get_or_insert(context.shared.now);
        let has_run_for = context.shared.now.saturating_sub(first);
        let is_time = has_run_for > Duration::from_secs(END_KEPT_SECONDS.unsigned_abs());
        let mut old = Vec::new();
        for (key, value) in page {
            let is_old = decode_value::<Timestamp>(&key, &value)?.seconds < before;
            // Keep the record of a session's end while the store has the record of the session.
            // Without the record of its end, a restart would treat the session as open.
            let session = last_u64(&key).filter(|_| key.starts_with(&Key::session_ends()));
            let record = session.map(|it| Key::Session(SessionId::new(it)).to_bytes());
            let is_left =
                record.map(|key| context.table.get(&key)).transpose()?.flatten().is_some();
            if !is_time || !is_old || is_left {
                continue;
            }
            if let Some(session) = session {
                let slots = Key::slots_of(SessionId::new(session));
                old.extend(context.table.scan_keys(&slots, &[], usize::MAX)?);
            }
            old.push(key.clone());
            if old.len() > KEYS_FORGOTTEN {
                (self.kind, self.after, self.due) = (kind, key, Duration::ZERO);
                break;
            }
        }
        if !old.is_empty() {
            context.start(InternalWork::DeleteKeys(old));
        }
        Ok(())
    }
}

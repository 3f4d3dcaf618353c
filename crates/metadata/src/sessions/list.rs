//! `ListSessions`: lists the sessions of this target for administrators.

use crate::engine::Engine;
use crate::limits::OPENS_COUNTED;
use crate::target::MetadataTarget;
use skep_format::metadata::{Key, SessionRecord, decode_value};
use skep_types::{NodeId, Result, SessionId};
use skep_wire::limits::{MAX_COUNTED_OPENS, MAX_LISTED_SESSIONS};
use skep_wire::metadata::{ListSessions, SessionEntry, SessionList};

impl<E: Engine> MetadataTarget<E> {
    /// Returns a page of the sessions that have not ended.
    pub(crate) fn list_sessions(&self, request: ListSessions) -> Result<SessionList> {
        let mut list = SessionList { sessions: Vec::new(), next: None };
        let mut counted = 0;
        for (session, known) in self.sessions.after(request.after) {
            if list.sessions.len() == MAX_LISTED_SESSIONS || counted > OPENS_COUNTED {
                list.next = list.sessions.last().map(|entry| entry.session);
                break;
            }
            let opens = Key::opens_of(session);
            let opens = self.table.scan_keys(&opens, &[], MAX_COUNTED_OPENS)?.len();
            counted += opens;
            let lease_ms = known.lease.as_millis();
            let silent_ms = self.shared.now.saturating_sub(known.renewed_at).as_millis();
            list.sessions.push(SessionEntry {
                session,
                client: self.client_of(session)?,
                slots: known.slots,
                lease_ms: u32::try_from(lease_ms).unwrap_or(u32::MAX),
                silent_ms: u64::try_from(silent_ms).unwrap_or(u64::MAX),
                open_files: u32::try_from(opens).unwrap_or(u32::MAX),
            });
        }
        Ok(list)
    }

    fn client_of(&self, session: SessionId) -> Result<NodeId> {
        let key = Key::Session(session).to_bytes();
        let Some(value) = self.table.get(&key)? else { return Ok(NodeId::default()) };
        let record: SessionRecord = decode_value(&key, &value)?;
        Ok(record.client)
    }
}

//! `AskOutcome`: reports whether a request of an ended session was executed.
//!
//! If a client received no reply to a request before its session ended, it asks for the outcome.
//! Without the outcome, the client could only send the request again in its next session. The
//! second execution could remove or overwrite a newer change of another client.
//!
//! # Why the outcome is final
//! The target replies only after it has logged the end of the session. From then on it executes no
//! request of the session. While the transaction of the request is staged, the target replies
//! `Busy`. The replies in the session's slots stay until the record of its end is deleted
//! (`background::forget`). If a power loss removes the log record of the request after the reply,
//! the client loses an acknowledged change, as after any other power loss.

use crate::engine::Engine;
use crate::target::{MetadataTarget, PendingReply};
use crate::tx::operation::ConnectionId;
use skep_format::metadata::Key;
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, Lsn, Result};
use skep_wire::frame::Header;
use skep_wire::metadata::{AskOutcome, Outcome, OutcomeReply};

impl<E: Engine> MetadataTarget<E> {
    /// Replies with the outcome of a request whose session has ended.
    pub(super) fn send_outcome(
        &mut self,
        connection: ConnectionId,
        header: Header,
        body: &[u8],
    ) -> Result<()> {
        let asked = match AskOutcome::from_bytes(body) {
            Ok(asked) => asked,
            Err(error) => {
                let error = Error::new(ErrorCode::Protocol, error.context());
                self.refuse(connection, header, error);
                return Ok(());
            }
        };
        if self.is_staged((asked.session, asked.slot, asked.sequence)) {
            let what = format!(
                "cannot report the outcome of a request of session {} yet: another metadata group \
                 must confirm its part of the change",
                asked.session
            );
            self.refuse(connection, header, Error::new(ErrorCode::Busy, what));
            return Ok(());
        }
        match self.outcome(&asked)? {
            Some((outcome, lsn)) => {
                let after = lsn.filter(|_| header.is_durable());
                let result = Ok(OutcomeReply { outcome }.to_bytes());
                let reply = PendingReply { connection, request: header, change: None, result };
                self.queue_reply(reply, after);
            }
            None => {
                let what = format!(
                    "cannot report the outcome of a request of session {}: outcomes are available \
                     only after the end of the session, and this session has not ended yet",
                    asked.session
                );
                self.refuse(connection, header, Error::new(ErrorCode::Busy, what));
            }
        }
        Ok(())
    }

    /// Returns the outcome of a request. If the request was executed, also returns the LSN of the
    /// log record with its changes. `None` means that the session has not ended.
    fn outcome(&self, asked: &AskOutcome) -> Result<Option<(Outcome, Option<Lsn>)>> {
        let AskOutcome { session, slot, sequence } = *asked;
        if !self.has_ended(session)? {
            let is_stored = self.table.get(&Key::Session(session).to_bytes())?.is_some();
            let is_ending = is_stored || self.sessions.exists(session);
            return Ok((!is_ending).then_some((Outcome::Unknown, None)));
        }
        Ok(Some(match self.slot_record((session, slot))? {
            Some(record) if record.sequence == sequence && !record.is_undone() => {
                (Outcome::Executed { reply: record.reply }, Some(record.lsn))
            }
            // The client has sent a newer request in the slot, so it has received the reply to this
            // request.
            Some(record) if record.sequence > sequence => (Outcome::Unknown, None),
            _ => (Outcome::NotExecuted, None),
        }))
    }
}

//! Estimates when the replies to requests arrive. While a thread expects a reply, the thread's
//! event loop polls for a moment before it sleeps (`skep_env::expect_reply`).

use skep_env::ReplyTime;
use skep_wire::Request;
use skep_wire::catalog::waits_for_event;
use skep_wire::frame::Header;
use skep_wire::inline::SyncInline;
use skep_wire::metadata::{ApplyPrepared, ConfirmPrepared, Decide, Prepare, SyncAll};
use skep_wire::storage::{RemoveChunks, SyncChunk};

/// Returns when the reply to a request with this header is likely to arrive. `None` means that the
/// event loop must not poll for the reply.
pub(crate) fn reply_time(header: &Header) -> Option<ReplyTime> {
    match header.message {
        message if waits_for_event(message) => None,
        // The reply waits for a periodic sync, and no operation waits for the reply.
        Decide::ID => None,
        // No operation waits for the reply.
        ApplyPrepared::ID => None,
        Prepare::ID | ConfirmPrepared::ID | RemoveChunks::ID => Some(ReplyTime::AfterSync),
        SyncAll::ID | SyncChunk::ID | SyncInline::ID => Some(ReplyTime::AfterSync),
        _ if header.is_durable() => Some(ReplyTime::AfterSync),
        _ => Some(ReplyTime::Prompt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_wire::file_locks::WaitLock;
    use skep_wire::frame::FLAG_DURABLE;
    use skep_wire::metadata::{BeginPrepare, Lookup, ReportWritten};

    #[test]
    fn no_polling_for_replies_that_wait_for_a_sync_or_an_event() {
        let of =
            |message: u16, flags: u16| reply_time(&Header { message, flags, ..Header::default() });
        assert_eq!(of(Lookup::ID, 0), Some(ReplyTime::Prompt));
        assert_eq!(of(ReportWritten::ID, 0), Some(ReplyTime::Prompt));
        assert_eq!(of(ReportWritten::ID, FLAG_DURABLE), Some(ReplyTime::AfterSync));
        assert_eq!(of(Prepare::ID, 0), Some(ReplyTime::AfterSync));
        assert_eq!(of(ConfirmPrepared::ID, 0), Some(ReplyTime::AfterSync));
        assert_eq!(of(BeginPrepare::ID, 0), Some(ReplyTime::Prompt));
        assert_eq!(of(SyncAll::ID, FLAG_DURABLE), Some(ReplyTime::AfterSync));
        assert_eq!(of(Decide::ID, 0), None);
        assert_eq!(of(WaitLock::ID, 0), None);
    }
}

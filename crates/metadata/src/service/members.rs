//! Sends the requests of the primary to the other members of its group.
//!
//! Each request goes out once: the state machine repeats what is still necessary
//! ([`crate::shipping`]).

use super::Shell;
use crate::shipping::{MemberMessage, MemberRequest};
use crate::target::Event;
use skep_types::ErrorCode;
use std::rc::Rc;
use std::time::Duration;

/// Time that a member may take to reply. A member replies after its append, or after
/// [`crate::limits::AWAIT_SYNC`]. A process that takes longer has stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends a request to a member, and reports the reply to the state machine.
pub(super) fn send(shell: &Rc<Shell>, request: MemberRequest) {
    let shell = Rc::clone(shell);
    skep_env::spawn(async move {
        let MemberRequest { member, number, message } = request;
        let router = &shell.router;
        let result = match &message {
            MemberMessage::Ship(ship) => router.call_member(member, ship, PATIENCE).await,
            MemberMessage::AwaitSync(wait) => router.call_member(member, wait, PATIENCE).await,
        };
        match result {
            // The target must not carry on, nor reply to a client.
            Err(error) if error.code() == ErrorCode::Deposed => shell.fail(error),
            result => shell.put(Event::MemberReply { member, number, result }),
        }
    })
    .detach();
}

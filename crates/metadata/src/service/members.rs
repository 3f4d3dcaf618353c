//! Requests to the other members of the group, and to management about the group.
//!
//! Each request goes out once: the state machines repeat what is still necessary
//! ([`crate::shipping`]).

use super::Shell;
use crate::shipping::{MemberMessage, MemberRequest};
use crate::target::Event;
use skep_types::ErrorCode;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_wire::management::{AskTakeOver, ChangeGroup};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Time that a member may take to reply. A member replies after its append, or after
/// [`crate::limits::AWAIT_SYNC`]. A process that takes longer has stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time that management may take to reply. The state machines ask again earlier or later.
const MANAGEMENT_PATIENCE: Duration = Duration::from_secs(1);

/// The state of a target's thread that only members of groups of several need.
#[derive(Debug, Default)]
pub(super) struct MembershipState {
    /// Whether the target accepts no more requests until another member has confirmed records.
    pub(super) is_backlogged: Cell<bool>,
    /// Whether a request to management about the group is in flight.
    is_changing: Cell<bool>,
    /// The reason for which the target does not serve although it is the primary.
    pub(super) halted: Cell<Option<&'static str>>,
}

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

/// Asks management for a change of the group that this target leads.
pub(super) fn change_group(shell: &Rc<Shell>, change: GroupChange) {
    if shell.membership.is_changing.replace(true) {
        return;
    }
    let GroupChange { group, target, .. } = change;
    let reason = match change.change {
        MemberChange::Drop => "it does not follow",
        _ => "it has all records",
    };
    tracing::warn!("asks management to change target {target} of group {group}: {reason}");
    let shell = Rc::clone(shell);
    skep_env::spawn(async move {
        let asked = async {
            let (sender, request) = (shell.router.sender()?, ChangeGroup { change });
            shell.management.call_once_as(sender, &request, MANAGEMENT_PATIENCE).await
        };
        if let Err(error) = asked.await {
            tracing::warn!("cannot change target {target} of group {group} yet: {error}");
            if error.code() == ErrorCode::Deposed {
                shell.fail(error);
            }
        }
        shell.membership.is_changing.set(false);
    })
    .detach();
}

/// Asks management to make this member the primary.
pub(super) fn ask_to_take_over(shell: &Rc<Shell>, request: AskTakeOver) {
    if shell.membership.is_changing.replace(true) {
        return;
    }
    let AskTakeOver { group, target, .. } = request;
    tracing::warn!("target {target} asks to take over group {group}: its primary is silent");
    let shell = Rc::clone(shell);
    skep_env::spawn(async move {
        let asked = shell.management.call_once(&request, MANAGEMENT_PATIENCE).await;
        if let Err(error) = asked {
            tracing::warn!("target {target} cannot take over group {group} yet: {error}");
        }
        shell.membership.is_changing.set(false);
    })
    .detach();
}

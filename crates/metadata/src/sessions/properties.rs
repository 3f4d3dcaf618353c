//! The table of the messages to which the admission of requests applies special rules.
//!
//! The catalog of `skep_wire` has the properties that senders need too: the service of a message,
//! whether the message modifies anything, and whether it removes a name.

use skep_wire::Request;
use skep_wire::file_locks::{EndWait, WaitLock};
use skep_wire::log_shipping::AskGroup;
use skep_wire::metadata::{
    ApplyPrepared, AskDecision, AskOutcome, CloseSession, CompareSlots, ConfirmPrepared, Decide,
    EndReplay, KeepAlive, ListCoordinated, ListSessions, ListTransactions, OpenSession, Replay,
    ResolveTransaction,
};
use skep_wire::sharing::{AcknowledgeNotifications, WaitNotifications};

/// A special rule for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property {
    /// The request modifies nothing but needs a session. Each request that modifies anything needs
    /// a session.
    NeedsSession,
    /// The target serves the request while the replay window is open. Except for `Replay`, no such
    /// request reads or changes the namespace for a client.
    DuringReplay,
    /// The limit on waiting requests does not apply to the request, because the request never waits
    /// and lets waiting operations continue. `Replay` may wait, but each session has at most one
    /// replayed change. The change of one session may wait for the change of another, which the
    /// target must accept.
    Unlimited,
}

use Property::{DuringReplay, NeedsSession, Unlimited};

/// Each message with at least one property.
const PROPERTIES: &[(u16, &[Property])] = &[
    (OpenSession::ID, &[DuringReplay]),
    (KeepAlive::ID, &[NeedsSession, DuringReplay, Unlimited]),
    (CloseSession::ID, &[NeedsSession, DuringReplay, Unlimited]),
    (AskOutcome::ID, &[DuringReplay, Unlimited]),
    (CompareSlots::ID, &[NeedsSession, DuringReplay, Unlimited]),
    (Replay::ID, &[DuringReplay, Unlimited]),
    (EndReplay::ID, &[NeedsSession, DuringReplay, Unlimited]),
    (WaitLock::ID, &[NeedsSession]),
    (EndWait::ID, &[NeedsSession, DuringReplay, Unlimited]),
    (ListSessions::ID, &[DuringReplay]),
    (ListTransactions::ID, &[DuringReplay]),
    (ResolveTransaction::ID, &[DuringReplay, Unlimited]),
    (Decide::ID, &[DuringReplay, Unlimited]),
    (AskDecision::ID, &[DuringReplay, Unlimited]),
    (WaitNotifications::ID, &[NeedsSession, DuringReplay]),
    (AcknowledgeNotifications::ID, &[NeedsSession, DuringReplay, Unlimited]),
    (AskGroup::ID, &[DuringReplay]),
    (ConfirmPrepared::ID, &[DuringReplay, Unlimited]),
    (ApplyPrepared::ID, &[DuringReplay, Unlimited]),
    (ListCoordinated::ID, &[DuringReplay]),
];

/// Whether the message with the number `message` has a property.
pub(super) fn has(message: u16, property: Property) -> bool {
    let found = PROPERTIES.iter().find(|(listed, _)| *listed == message);
    found.is_some_and(|(_, properties)| properties.contains(&property))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_wire::catalog;

    /// A message that is listed twice would have only the properties of its first row.
    #[test]
    fn properties_of_each_metadata_message_are_in_one_row() {
        assert!(PROPERTIES.is_sorted_by(|one, two| one.0 < two.0));
        for (message, properties) in PROPERTIES {
            let line = catalog::message(*message).unwrap();
            assert_eq!(line.service, "metadata", "{}", line.name);
            assert!(!properties.is_empty(), "{}", line.name);
        }
    }

    #[test]
    fn modifying_messages_have_no_property_of_read_messages() {
        for (message, _) in PROPERTIES {
            let line = catalog::message(*message).unwrap();
            assert!(!line.modifies || !has(*message, NeedsSession), "{}", line.name);
            let is_replay = *message == Replay::ID;
            assert!(!line.modifies || !has(*message, DuringReplay) || is_replay, "{}", line.name);
        }
    }
}

//! Pending changes of clients' log levels. Clients accept no connections, so this module stores a
//! change until the client's next heartbeat. Each reply to a heartbeat contains the change until
//! the client confirms the change.
//!
//! The changes are in memory only. The administration tool waits for the confirmation, and sends
//! its request again if management ends before the confirmation.

use crate::limits::MAX_LOG_ORDERS;
use skep_env::local::{Receiver, Sender, oneshot};
use skep_types::{Error, ErrorCode, NodeId, Result};
use skep_wire::management::{ConfirmLogLevel, LogLevelChange};
use skep_wire::node::LogLevel;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The changes that are not confirmed yet, at most one per client.
#[derive(Debug, Default)]
pub(crate) struct LogLevelChanges {
    inner: RefCell<Orders>,
}

#[derive(Debug, Default)]
struct Orders {
    last: u64,
    orders: BTreeMap<NodeId, (LogLevelChange, Sender<Result<LogLevel>>)>,
}

impl LogLevelChanges {
    /// Adds a change for a client, and returns its id. The returned receiver gets the client's
    /// confirmation. The channel gets `None` if a later change for the same client replaced this
    /// change.
    ///
    /// # Errors
    /// `LimitReached` if `MAX_LOG_ORDERS` changes are pending already.
    pub(crate) fn add(
        &self,
        client: NodeId,
        level: Option<String>,
    ) -> Result<(u64, Receiver<Result<LogLevel>>)> {
        let mut inner = self.inner.borrow_mut();
        if inner.orders.len() >= MAX_LOG_ORDERS {
            let context = format!(
                "cannot change the log level of client {client}: {MAX_LOG_ORDERS} changes of log \
                 levels are already waiting; repeat the command after some seconds"
            );
            return Err(Error::new(ErrorCode::LimitReached, context));
        }
        inner.last += 1;
        let number = inner.last;
        let (sender, receiver) = oneshot();
        inner.orders.insert(client, (LogLevelChange { number, level }, sender));
        Ok((number, receiver))
    }

    /// Returns the pending change for a client.
    pub(crate) fn of(&self, client: NodeId) -> Option<LogLevelChange> {
        self.inner.borrow().orders.get(&client).map(|(order, _)| order.clone())
    }

    /// Completes the change that a client has confirmed or refused. Ignores the message of the
    /// client if no request waits for the confirmation any more.
    pub(crate) fn confirm(&self, confirmation: ConfirmLogLevel) {
        if let Some(sender) = self.take(confirmation.client, confirmation.number) {
            let refused = || Error::new(ErrorCode::InvalidArgument, confirmation.refusal);
            sender.send(confirmation.level.ok_or_else(refused));
        }
    }

    /// Removes a change because no request waits for the change any more.
    pub(crate) fn give_up(&self, client: NodeId, number: u64) {
        drop(self.take(client, number));
    }

    fn take(&self, client: NodeId, number: u64) -> Option<Sender<Result<LogLevel>>> {
        let mut inner = self.inner.borrow_mut();
        let is_it = inner.orders.get(&client).is_some_and(|(order, _)| order.number == number);
        if is_it { inner.orders.remove(&client).map(|(_, sender)| sender) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: NodeId = NodeId::new(7);

    fn level(current: &str) -> Option<LogLevel> {
        Some(LogLevel { current: current.into(), configured: "info".into() })
    }

    fn confirmation(number: u64, level: Option<LogLevel>) -> ConfirmLogLevel {
        ConfirmLogLevel { client: CLIENT, number, level, refusal: "no such level".into() }
    }

    #[test]
    fn log_level_change_is_resent_until_its_confirmation() {
        let orders = LogLevelChanges::default();
        let (number, answer) = orders.add(CLIENT, Some("debug".into())).unwrap();
        for _ in 0..2 {
            let order = orders.of(CLIENT).expect("the change is pending");
            assert_eq!((order.number, order.level.as_deref()), (number, Some("debug")));
        }
        assert_eq!(orders.of(NodeId::new(8)), None);
        orders.confirm(confirmation(number, level("debug")));
        assert_eq!(orders.of(CLIENT), None);
        let answer = skep_env::block_on(answer).unwrap();
        assert_eq!(answer.expect("the client has answered").unwrap().current, "debug");
    }

    #[test]
    fn later_log_level_change_replaces_the_pending_change() {
        let orders = LogLevelChanges::default();
        let (first, of_first) = orders.add(CLIENT, Some("debug".into())).unwrap();
        let (second, of_second) = orders.add(CLIENT, None).unwrap();
        orders.confirm(confirmation(first, level("debug")));
        orders.give_up(CLIENT, first);
        assert_eq!(orders.of(CLIENT).map(|order| order.number), Some(second));
        assert!(skep_env::block_on(of_first).unwrap().is_none());
        orders.confirm(confirmation(second, None));
        let refused = skep_env::block_on(of_second).unwrap().expect("the client has answered");
        assert_eq!(refused.unwrap_err().context(), "no such level");
    }

    #[test]
    fn number_of_pending_log_level_changes_is_bounded() {
        let orders = LogLevelChanges::default();
        let ids = 1..=u32::try_from(MAX_LOG_ORDERS).unwrap();
        let all: Vec<_> = ids.map(|id| orders.add(NodeId::new(id), None).unwrap()).collect();
        let more = orders.add(NodeId::new(u32::MAX), None);
        assert_eq!(more.err().map(|error| error.code()), Some(ErrorCode::LimitReached));
        orders.give_up(NodeId::new(1), all[0].0);
        assert!(orders.add(NodeId::new(u32::MAX), None).is_ok());
    }
}

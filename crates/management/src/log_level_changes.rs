//! What is wanted of the logs of clients, which take no connections: an order waits here until the
//! client's next heartbeat, is told in its answer, and again until the client says that it is done.
//!
//! In memory only: who ordered waits for the answer, and orders anew if management ends meanwhile.

use crate::limits::MAX_LOG_ORDERS;
use skep_env::local::{Receiver, Sender, oneshot};
use skep_types::{Error, ErrorCode, NodeId, Result};
use skep_wire::management::{ConfirmLogLevel, LogLevelChange};
use skep_wire::node::LogLevel;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Orders that aren't carried out yet, one for each client.
#[derive(Debug, Default)]
pub(crate) struct LogLevelChanges {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    orders: BTreeMap<NodeId, (LogLevelChange, Sender<Result<LogLevel>>)>,
}

impl LogLevelChanges {
    /// Has a client told to log so. The answer comes where this gives: none, if another order for
    /// this client came meanwhile.
    ///
    /// # Errors
    /// `LimitReached`: very many orders wait already.
    pub(crate) fn add(
        &self,
        client: NodeId,
        level: Option<String>,
    ) -> Result<(u64, Receiver<Result<LogLevel>>)> {
        let mut inner = self.inner.borrow_mut();
        if inner.orders.len() >= MAX_LOG_ORDERS {
            let what = format!("{MAX_LOG_ORDERS} orders about logs of clients wait already");
            return Err(Error::new(ErrorCode::LimitReached, what));
        }
        inner.last += 1;
        let number = inner.last;
        let (sender, receiver) = oneshot();
        inner.orders.insert(client, (LogLevelChange { number, level }, sender));
        Ok((number, receiver))
    }

    /// What a client is to do.
    pub(crate) fn of(&self, client: NodeId) -> Option<LogLevelChange> {
        self.inner.borrow().orders.get(&client).map(|(order, _)| order.clone())
    }

    /// A client has carried out an order. One that nobody waits for any more is none.
    pub(crate) fn done(&self, done: ConfirmLogLevel) {
        if let Some(sender) = self.take(done.client, done.number) {
            let refused = || Error::new(ErrorCode::InvalidArgument, done.refusal);
            sender.send(done.level.ok_or_else(refused));
        }
    }

    /// Nobody waits for an order any more.
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

    fn done(number: u64, level: Option<LogLevel>) -> ConfirmLogLevel {
        ConfirmLogLevel { client: CLIENT, number, level, refusal: "no such level".into() }
    }

    #[test]
    fn an_order_is_told_until_it_is_done() {
        let orders = LogLevelChanges::default();
        let (number, answer) = orders.add(CLIENT, Some("debug".into())).unwrap();
        for _ in 0..2 {
            let order = orders.of(CLIENT).expect("it waits");
            assert_eq!((order.number, order.level.as_deref()), (number, Some("debug")));
        }
        assert_eq!(orders.of(NodeId::new(8)), None);
        orders.done(done(number, level("debug")));
        assert_eq!(orders.of(CLIENT), None);
        let answer = skep_env::block_on(answer).unwrap();
        assert_eq!(answer.expect("it came").unwrap().current, "debug");
    }

    #[test]
    fn a_later_order_takes_the_place_of_an_earlier_one() {
        let orders = LogLevelChanges::default();
        let (first, of_first) = orders.add(CLIENT, Some("debug".into())).unwrap();
        let (second, of_second) = orders.add(CLIENT, None).unwrap();
        orders.done(done(first, level("debug")));
        orders.give_up(CLIENT, first);
        assert_eq!(orders.of(CLIENT).map(|order| order.number), Some(second));
        assert!(skep_env::block_on(of_first).unwrap().is_none());
        orders.done(done(second, None));
        let refused = skep_env::block_on(of_second).unwrap().expect("it came");
        assert_eq!(refused.unwrap_err().context(), "no such level");
    }

    #[test]
    fn there_is_an_end_to_orders() {
        let orders = LogLevelChanges::default();
        let ids = 1..=u32::try_from(MAX_LOG_ORDERS).unwrap();
        let all: Vec<_> = ids.map(|id| orders.add(NodeId::new(id), None).unwrap()).collect();
        let more = orders.add(NodeId::new(u32::MAX), None);
        assert_eq!(more.err().map(|error| error.code()), Some(ErrorCode::LimitReached));
        orders.give_up(NodeId::new(1), all[0].0);
        assert!(orders.add(NodeId::new(u32::MAX), None).is_ok());
    }
}

//! The connection of a router to one target, for one term of the target as the primary of its
//! group.
//!
//! This module ensures that all callers share one connection to a target, and ends the connection
//! when the term ends or when the connection is idle. This module is not responsible for the choice
//! of the target ([`crate::routing`]).
//!
//! # Invariants
//! A link never has both an open connection and an attempt to connect
//! ([`TargetLink::check_invariants`]).

use crate::client::Connection;
use skep_env::local::Notify;
use skep_types::{ClusterMap, Epoch, Error, ErrorCode, GroupId, Result, TargetId};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// The use of a link, as [`TargetLink::end_if_idle`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkUse {
    /// The link has a connection, or an attempt to connect.
    Connected,
    /// The link had an idle connection, which has ended now.
    Ended,
    /// The link has no connection.
    Unconnected,
}

/// The connection to one target.
#[derive(Default)]
pub(crate) struct TargetLink {
    connection: RefCell<Option<Rc<Connection>>>,
    is_connecting: Cell<bool>,
    connected: Notify,
    /// The group that the target leads as primary, and the first epoch of its term. `None` means
    /// that the target was not a primary when the link was used last.
    term: Cell<Option<(GroupId, Epoch)>>,
    is_retired: Cell<bool>,
    retired: Notify,
}

impl TargetLink {
    /// Stores the current term of the target, if the link has no term yet.
    pub(crate) fn begin_term(&self, map: &ClusterMap, target: TargetId) {
        if self.term.get().is_none() {
            let group = map.group_led_by(target);
            self.term.set(group.map(|group| (group.id, group.primary_since)));
        }
    }

    /// Whether the target is still in the term of this link.
    pub(crate) fn is_current(&self, map: &ClusterMap, target: TargetId) -> bool {
        self.term.get().is_none_or(|(group, since)| {
            let group = map.group(group);
            group.is_some_and(|it| (it.primary, it.primary_since) == (target, since))
        })
    }

    /// Whether an attempt to connect is in progress.
    pub(crate) fn is_connecting(&self) -> bool {
        self.is_connecting.get()
    }

    /// Ends the connection and any attempt to connect. All calls that use this link fail with
    /// `Disconnected`.
    pub(crate) fn retire(&self) {
        self.is_retired.set(true);
        self.retired.notify();
        self.connected.notify();
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
    }

    /// Ends the connection if no request has used it for `lifetime` at `now`. Also frees the socket
    /// of a connection that the peer has ended.
    ///
    /// No request can begin on the connection during this call. A caller of [`Self::connection`]
    /// sends its request before the caller's first await, and the thread runs one future at a time.
    pub(crate) fn end_if_idle(&self, now: Duration, lifetime: Duration) -> LinkUse {
        let mut held = self.connection.borrow_mut();
        let ended = match held.as_ref() {
            None if self.is_connecting.get() => return LinkUse::Connected,
            None => return LinkUse::Unconnected,
            Some(connection) if connection.is_closed() => LinkUse::Unconnected,
            Some(connection) if connection.idle_time(now) < lifetime => return LinkUse::Connected,
            Some(connection) => {
                connection.close();
                LinkUse::Ended
            }
        };
        *held = None;
        ended
    }

    /// Returns the open connection, or the connection that `connect` opens. Concurrent callers
    /// share one attempt to connect. The attempt is on the heap, because it is rare and large and
    /// would otherwise be part of the future of each request.
    ///
    /// # Errors
    /// - The error of `connect`.
    /// - `Disconnected` if the link is retired.
    pub(crate) async fn connection(
        self: Rc<Self>,
        connect: impl AsyncFnOnce() -> Result<Rc<Connection>>,
    ) -> Result<Rc<Connection>> {
        loop {
            if self.is_retired.get() {
                return Err(ended());
            }
            if let Some(open) = self.connection.borrow().as_ref().filter(|it| !it.is_closed()) {
                return Ok(Rc::clone(open));
            }
            if !self.is_connecting.replace(true) {
                break;
            }
            self.connected.wait().await;
        }
        // The guard resets the flag even if this future is dropped while it connects.
        let _reset = ConnectingGuard(Rc::clone(&self));
        let (mut connecting, mut retired) = (Box::pin(connect()), pin!(self.retired.wait()));
        let connection = std::future::poll_fn(|context| match retired.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(ended())),
            Poll::Pending => connecting.as_mut().poll(context),
        })
        .await?;
        *self.connection.borrow_mut() = Some(Rc::clone(&connection));
        Ok(connection)
    }

    /// Panics if the invariant of the module is violated. `target` is the target of the link.
    pub(crate) fn check_invariants(&self, target: TargetId) {
        let is_open = self.connection.borrow().as_ref().is_some_and(|it| !it.is_closed());
        assert!(
            !(is_open && self.is_connecting.get()),
            "the link to {target} never has both an open connection and an attempt to connect"
        );
    }
}

fn ended() -> Error {
    Error::new(ErrorCode::Disconnected, "a newer cluster map ended the connection")
}

struct ConnectingGuard(Rc<TargetLink>);

impl Drop for ConnectingGuard {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.connected.notify();
    }
}

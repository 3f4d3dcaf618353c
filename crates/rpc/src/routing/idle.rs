//! The end of idle connections of clients. A client of many processors has many connections to each
//! target, and programs use most of them rarely. Each connection costs memory at both ends.
//!
//! A connection ends between two requests, so no call fails, and no retry counts. The thread of the
//! router checks and ends a connection in one step, so no request can begin between the check and
//! the end. The next request opens a new connection.

use super::{Router, jittered};
use crate::limits::{IDLE_CONNECTION_LIFETIME, IDLE_LOOK_INTERVAL};
use crate::link::LinkUse;
use std::rc::Weak;
use std::time::Duration;

impl Router {
    /// Starts the task that ends the idle connections of a client. The task runs while the router
    /// has connections. Does nothing if the task runs already, or if the router belongs to a
    /// target: connections between services carry log records and leases, and there are few of
    /// them.
    pub(super) fn watch_idle_connections(&self) {
        if self.own.is_some() || self.is_watching_idle.replace(true) {
            return;
        }
        let router = Weak::clone(&self.this);
        skep_env::spawn(async move {
            loop {
                skep_env::sleep(jittered(IDLE_LOOK_INTERVAL)).await;
                let Some(router) = router.upgrade() else { return };
                if !router.end_idle_connections(skep_env::now()) {
                    router.is_watching_idle.set(false);
                    return;
                }
            }
        })
        .detach();
    }

    /// Ends the connections that no request has used for [`IDLE_CONNECTION_LIFETIME`] at `now`.
    /// Returns whether the router still has a connection, or an attempt to connect.
    fn end_idle_connections(&self, now: Duration) -> bool {
        let mut is_used = false;
        for link in self.links.borrow().values() {
            match link.end_if_idle(now, IDLE_CONNECTION_LIFETIME) {
                LinkUse::Connected => is_used = true,
                LinkUse::Ended => self.cell.count_idle_close(),
                LinkUse::Unconnected => {}
            }
        }
        is_used
    }
}

#[cfg(test)]
mod tests;

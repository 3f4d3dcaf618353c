//! The queue of the waiters for locks of one kind on one file, in order of arrival.
//!
//! This module owns the state of each wait, and decides which waiters are woken. The module
//! `file_locks` owns the held locks, so callers pass a closure that checks a claim against them.
//!
//! # States of a wait
//! ```text
//!              WaitLock                    the lock is free
//!   (no wait) ----------> Parked --------------------------> Woken
//!                         ^    |                             |   |
//!                WaitLock |    | WAIT_ANSWER has passed      |   | the client sets the lock,
//!                         |    v                             |   | or WAKE_RESERVATION has passed
//!                         +-- Away                WaitLock   |   v
//!                         ^    | WAKE_RESERVATION has passed |  (no wait)
//!                         |    v                             |
//!                         |   (no wait)                      |
//!                         +----------------------------------+
//! ```
//! In the state `Parked`, the target has a `WaitLock` request to which it must reply. In the states
//! `Woken` and `Away`, it has already replied. In every state, `EndWait` or the end of the session
//! removes the wait.
//!
//! If [`MAX_OVERTAKEN`] later claims have overtaken a wait, the wait gets a *barrier* for some
//! time, so that it does not starve. While the barrier exists, no later waiter may get a lock that
//! conflicts with the claim of this wait.
//!
//! # Invariants
//! - A session's wait ids are unique in the queue.
//! - A wait that [`MAX_OVERTAKEN`] later claims have overtaken has a barrier.

use super::request::LockClaim;
use crate::limits::{BARRIER, LONGEST_BARRIER, MAX_OVERTAKEN, WAITERS_EXAMINED, WAKE_RESERVATION};
use crate::tx::operation::ConnectionId;
use skep_types::SessionId;
use skep_wire::frame::Header;
use std::collections::BTreeSet;
use std::time::Duration;

/// The state of a wait for a lock.
#[derive(Debug)]
pub(super) enum WaitState {
    /// The client's `WaitLock` request is parked. The target replies at `until` at the latest.
    Parked { connection: ConnectionId, header: Box<Header>, until: Duration },
    /// The target has replied that the client can now set its lock, and reserves the lock until
    /// `until`.
    Woken { until: Duration },
    /// The target has asked the client to poll again, and reserves the wait's queue position until
    /// `until`.
    Away { until: Duration },
}

/// A wait for a lock.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) number: u64,
    pub(super) claim: LockClaim,
    pub(super) state: WaitState,
    /// Time at which the first request of this wait arrived.
    pub(super) since: Duration,
    /// Number of conflicting later claims that were granted since the end of the last barrier of
    /// this wait, or since its arrival in the queue.
    overtaken: u32,
    /// Time at which the barrier ends; `None` means that the wait has no barrier.
    barrier: Option<Duration>,
    /// Number of this wait's barriers that have ended.
    barriers: u32,
}

impl Wait {
    fn is(&self, wait: (SessionId, u64)) -> bool {
        (self.claim.owner.0, self.number) == wait
    }

    pub(super) fn is_woken(&self) -> bool {
        matches!(self.state, WaitState::Woken { .. })
    }

    fn has_barrier(&self, now: Duration) -> bool {
        self.barrier.is_some_and(|until| now < until)
    }

    /// Counts the grant of a conflicting later claim. When the count reaches [`MAX_OVERTAKEN`], the
    /// wait gets a barrier. Each barrier is twice as long as the previous barrier, up to
    /// [`LONGEST_BARRIER`].
    fn overtake(&mut self, now: Duration) {
        self.end_barrier(now);
        // The count saturates, because its exact value above `MAX_OVERTAKEN` does not matter.
        self.overtaken = self.overtaken.saturating_add(1);
        if self.overtaken >= MAX_OVERTAKEN && self.barrier.is_none() {
            let factor = 1_u32.checked_shl(self.barriers).unwrap_or(u32::MAX);
            self.barrier = Some(now + BARRIER.saturating_mul(factor).min(LONGEST_BARRIER));
        }
    }

    fn end_barrier(&mut self, now: Duration) {
        if self.barrier.is_some_and(|until| until <= now) {
            (self.barrier, self.overtaken) = (None, 0);
            self.barriers += 1;
        }
    }

    fn until(&self) -> Duration {
        match self.state {
            WaitState::Parked { until, .. }
            | WaitState::Woken { until }
            | WaitState::Away { until } => until,
        }
    }

    /// Changes the state of the wait. If the wait has a parked request, adds the reply to
    /// `replies`.
    fn reply(&mut self, next: WaitState, replies: &mut Vec<WaitAnswer>) {
        let is_woken = matches!(next, WaitState::Woken { .. });
        let before = std::mem::replace(&mut self.state, next);
        if let WaitState::Parked { connection, header, .. } = before {
            replies.push(WaitAnswer { connection, header: *header, is_woken });
        }
    }
}

/// A reply to a parked `WaitLock` request.
#[derive(Debug)]
pub(crate) struct WaitAnswer {
    pub(crate) connection: ConnectionId,
    pub(crate) header: Header,
    /// Whether the client can set its lock now. `false` means that the client must poll again.
    pub(crate) is_woken: bool,
}

/// The queue of the waiters for locks of one kind on one file.
#[derive(Debug, Default)]
pub(super) struct Queue(Vec<Wait>);

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.0.iter()
    }

    pub(super) fn get(&self, wait: (SessionId, u64)) -> Option<&Wait> {
        self.0.iter().find(|it| it.is(wait))
    }

    pub(super) fn has(&self, wait: (SessionId, u64)) -> bool {
        self.get(wait).is_some()
    }

    /// Iterates over the earlier waiters in the queue that `wait` must not overtake: woken waiters,
    /// and waiters with a barrier. If `wait` is not in the queue, all waiters count as earlier. If
    /// `wait` is woken, barriers do not block it, because each barrier began after the wake.
    pub(super) fn firm_before(
        &self,
        wait: (SessionId, u64),
        now: Duration,
    ) -> impl Iterator<Item = &Wait> {
        let is_woken = self.get(wait).is_some_and(Wait::is_woken);
        let before = self.0.iter().take_while(move |it| !it.is(wait));
        before.filter(move |it| it.is_woken() || !is_woken && it.has_barrier(now))
    }

    /// Adds a wait at the end of the queue, or changes the state of a wait that is already in the
    /// queue. Returns whether the wait is new. If an earlier request of the wait was parked, also
    /// returns the reply to it.
    ///
    /// The reply to the earlier request asks the client to poll again. The client may be waiting
    /// for this reply, because two requests on different connections may arrive in the wrong order.
    pub(super) fn put(
        &mut self,
        number: u64,
        claim: LockClaim,
        (state, now): (WaitState, Duration),
    ) -> (bool, Option<WaitAnswer>) {
        let session = claim.owner.0;
        if let Some(found) = self.0.iter_mut().find(|it| it.is((session, number))) {
            found.claim = claim;
            let before = std::mem::replace(&mut found.state, state);
            let reply = match before {
                WaitState::Parked { connection, header, .. } => {
                    Some(WaitAnswer { connection, header: *header, is_woken: false })
                }
                WaitState::Woken { .. } | WaitState::Away { .. } => None,
            };
            return (false, reply);
        }
        let (overtaken, barrier, barriers) = (0, None, 0);
        self.0.push(Wait { number, claim, state, since: now, overtaken, barrier, barriers });
        (true, None)
    }

    pub(super) fn remove(&mut self, wait: (SessionId, u64)) -> Option<Wait> {
        let index = self.0.iter().position(|it| it.is(wait))?;
        Some(self.0.remove(index))
    }

    /// Counts the grant of the claim of wait `own` for each earlier wait in the queue for which
    /// `conflicts` holds.
    pub(super) fn overtake(
        &mut self,
        own: (SessionId, u64),
        now: Duration,
        conflicts: impl Fn(&LockClaim) -> bool,
    ) {
        let before = self.0.iter_mut().take_while(|it| !it.is(own));
        before.filter(|it| conflicts(&it.claim)).for_each(|it| it.overtake(now));
    }

    /// Wakes each waiter whose claim conflicts with no held lock and with no earlier waiter that
    /// has priority. An earlier waiter has no priority if a held lock blocks it, unless it is woken
    /// or has a barrier. All other earlier waiters have priority.
    pub(super) fn wake(
        &mut self,
        now: Duration,
        is_held: impl Fn(&LockClaim) -> bool,
        replies: &mut Vec<WaitAnswer>,
    ) {
        let mut firm: Vec<LockClaim> = Vec::new();
        for wait in self.0.iter_mut().take(WAITERS_EXAMINED) {
            let is_blocked = firm.iter().any(|it| it.conflicts(&wait.claim));
            let is_held = !is_blocked && is_held(&wait.claim);
            if !is_blocked && !is_held && matches!(wait.state, WaitState::Parked { .. }) {
                wait.reply(WaitState::Woken { until: now + WAKE_RESERVATION }, replies);
            }
            if !is_held || wait.is_woken() || wait.has_barrier(now) {
                firm.push(wait.claim.clone());
            }
        }
    }

    /// Returns the next time at which a wait or a barrier of the queue expires. `None` means that
    /// the queue is empty.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.0.iter().flat_map(|it| [Some(it.until()), it.barrier]).flatten().min()
    }

    /// Ends expired barriers. Adds to `replies` the replies to requests that were parked for the
    /// maximum time, which ask the clients to poll again. Removes and returns the waits whose
    /// clients have not set the lock or polled again in time.
    pub(super) fn expire(&mut self, now: Duration, replies: &mut Vec<WaitAnswer>) -> Vec<Wait> {
        self.0.iter_mut().for_each(|it| it.end_barrier(now));
        for wait in self.0.iter_mut().filter(|it| it.until() <= now) {
            if let WaitState::Parked { .. } = wait.state {
                wait.reply(WaitState::Away { until: now + WAKE_RESERVATION }, replies);
            }
        }
        self.0.extract_if(.., |it| it.until() <= now).collect()
    }

    /// Panics if an invariant of the module is violated.
    pub(super) fn check_invariants(&self) {
        let mut seen = BTreeSet::new();
        for wait in &self.0 {
            let id = (wait.claim.owner.0, wait.number);
            assert!(seen.insert(id), "wait {} of session {} is in the queue once", id.1, id.0);
            assert!(
                wait.overtaken < MAX_OVERTAKEN || wait.barrier.is_some(),
                "wait {} of session {} was overtaken {} times, so it has a barrier",
                id.1,
                id.0,
                wait.overtaken
            );
        }
    }
}

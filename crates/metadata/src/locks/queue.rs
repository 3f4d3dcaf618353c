//! Who waits for locks of one kind on one file, in the order in which they came.

use super::file_locks::{Answered, Wanted};
use crate::limits::{BARRIER, CALL_KEPT, CALLS_LOOKED_AT, LONGEST_BARRIER, MAX_OVERTAKEN};
use crate::tx::operation::ConnectionId;
use skep_types::SessionId;
use skep_wire::frame::Header;
use std::time::Duration;

/// What a wait is at.
#[derive(Debug)]
pub(super) enum State {
    /// Its request is here, to be answered by then.
    Parked { connection: ConnectionId, header: Box<Header>, until: Duration },
    /// Its asker was told to come, and nobody else gets what he wants until then.
    Called { until: Duration },
    /// Its asker was told to ask again, and keeps his place until then.
    Away { until: Duration },
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) number: u64,
    pub(super) wanted: Wanted,
    pub(super) state: State,
    /// How many that came later got what was in his way, since his last barrier.
    overtaken: u32,
    /// Nobody overtakes him until then.
    barrier: Option<Duration>,
    /// How many he has had before.
    barriers: u32,
}

impl Wait {
    fn is(&self, wait: (SessionId, u64)) -> bool {
        (self.wanted.owner.0, self.number) == wait
    }

    pub(super) fn is_called(&self) -> bool {
        matches!(self.state, State::Called { .. })
    }

    fn has_barrier(&self, now: Duration) -> bool {
        self.barrier.is_some_and(|until| now < until)
    }

    /// Notes that somebody overtook him. Each barrier is twice as long as that before.
    fn overtaken(&mut self, now: Duration) {
        self.end_barrier(now);
        self.overtaken = self.overtaken.saturating_add(1);
        if self.overtaken >= MAX_OVERTAKEN && self.barrier.is_none() {
            let longer = 1_u32.checked_shl(self.barriers).unwrap_or(u32::MAX);
            self.barrier = Some(now + BARRIER.saturating_mul(longer).min(LONGEST_BARRIER));
        }
    }

    fn end_barrier(&mut self, now: Duration) {
        if self.barrier.is_some_and(|until| until <= now) {
            (self.barrier, self.overtaken) = (None, 0);
            self.barriers += 1;
        }
    }
}

/// See the file's description.
#[derive(Debug, Default)]
pub(super) struct Queue(Vec<Wait>);

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
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

    /// Those before a wait (all, if it isn't there) that mustn't be overtaken now: who was called,
    /// and who has a barrier. That holds up none who was called himself, before it was there.
    pub(super) fn firm_before(
        &self,
        wait: (SessionId, u64),
        now: Duration,
    ) -> impl Iterator<Item = &Wait> {
        let passes = self.get(wait).is_some_and(Wait::is_called);
        let before = self.0.iter().take_while(move |it| !it.is(wait));
        before.filter(move |it| it.is_called() || !passes && it.has_barrier(now))
    }

    /// Adds a wait at the end, or gives one that is there another state. Gives whether it is new,
    /// and the request that it had before, which is told to ask again: the two may have come in the
    /// wrong order, over different connections, so that this is the one whose asker listens.
    pub(super) fn put(
        &mut self,
        number: u64,
        wanted: Wanted,
        state: State,
    ) -> (bool, Option<Answered>) {
        let session = wanted.owner.0;
        if let Some(found) = self.0.iter_mut().find(|it| it.is((session, number))) {
            found.wanted = wanted;
            let before = std::mem::replace(&mut found.state, state);
            let answered = match before {
                State::Parked { connection, header, .. } => {
                    Some(Answered { connection, header: *header, is_called: false })
                }
                _ => None,
            };
            return (false, answered);
        }
        self.0.push(Wait { number, wanted, state, overtaken: 0, barrier: None, barriers: 0 });
        (true, None)
    }

    pub(super) fn remove(&mut self, wait: (SessionId, u64)) -> Option<Wait> {
        let index = self.0.iter().position(|it| it.is(wait))?;
        Some(self.0.remove(index))
    }

    /// Notes in those before a wait that something that conflicts was given away.
    pub(super) fn overtake(
        &mut self,
        own: (SessionId, u64),
        now: Duration,
        conflicts: impl Fn(&Wanted) -> bool,
    ) {
        let before = self.0.iter_mut().take_while(|it| !it.is(own));
        before.filter(|it| conflicts(&it.wanted)).for_each(|it| it.overtaken(now));
    }

    /// Calls those whose lock nobody holds against them, but for what somebody before them could
    /// have as well, or has a barrier for.
    pub(super) fn call(
        &mut self,
        now: Duration,
        is_held: impl Fn(&Wanted) -> bool,
        answered: &mut Vec<Answered>,
    ) {
        let mut firm: Vec<Wanted> = Vec::new();
        for wait in self.0.iter_mut().take(CALLS_LOOKED_AT) {
            let is_blocked = firm.iter().any(|it| it.conflicts(&wait.wanted));
            let is_held = !is_blocked && is_held(&wait.wanted);
            if !is_blocked && !is_held && matches!(wait.state, State::Parked { .. }) {
                wait.answer(State::Called { until: now + CALL_KEPT }, answered);
            }
            if !is_held || wait.is_called() || wait.has_barrier(now) {
                firm.push(wait.wanted.clone());
            }
        }
    }

    /// Whether [`Self::expire`] has anything to do.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.0.iter().any(|it| it.until() <= now || it.barrier.is_some_and(|until| until <= now))
    }

    /// Answers what has waited for long, ends barriers, and gives those whose asker hasn't come.
    pub(super) fn expire(&mut self, now: Duration, answered: &mut Vec<Answered>) -> Vec<Wait> {
        self.0.iter_mut().for_each(|it| it.end_barrier(now));
        for wait in self.0.iter_mut().filter(|it| it.until() <= now) {
            if let State::Parked { .. } = wait.state {
                wait.answer(State::Away { until: now + CALL_KEPT }, answered);
            }
        }
        self.0.extract_if(.., |it| it.until() <= now).collect()
    }
}

impl Wait {
    fn until(&self) -> Duration {
        match self.state {
            State::Parked { until, .. } | State::Called { until } | State::Away { until } => until,
        }
    }

    fn answer(&mut self, next: State, answered: &mut Vec<Answered>) {
        let is_called = matches!(next, State::Called { .. });
        if let State::Parked { connection, header, .. } = std::mem::replace(&mut self.state, next) {
            answered.push(Answered { connection, header: *header, is_called });
        }
    }
}

//! The replay window of a target that has started after a power loss: the sessions that still
//! replay lost changes, and the change that the target executes next. No I/O and no clock.
//!
//! While the window is open, the target executes only lost changes (`sessions::replay`). A change
//! may depend on an earlier change of another client, so the target must execute all lost changes
//! in their original order. Each session *announces* its next lost change. As soon as no session is
//! *silent* (each has announced a change or has ended its replay), the target executes the
//! announced change that was executed first before the power loss.
//!
//! ```text
//!   silent ---- announce ----> announced ---- executed (or failed) ----> silent
//!      |                           |
//!      +---- end, no progress -----+---- end, no progress --------------> takes no part any more
//! ```
//!
//! # Invariants
//! - A session is silent, has announced one change, or takes no part.
//! - While a session is silent, the target executes no change.
//! - If each session announces its changes in ascending order, the target executes all changes of
//!   the sessions that were not dropped in ascending order.
//! - The window closes at some time, because each session leaves it: after the end of its replay,
//!   or when there was no progress for the time `patience`.

use skep_types::SessionId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The position of a change in the original order of execution over all clients: the start number,
/// and the number of the change in this start.
pub(crate) type Place = (u64, u64);

/// The next change of a session.
#[derive(Debug, Clone, Copy)]
struct Announced {
    place: Place,
    /// Id of the operation that executes the change.
    operation: u64,
}

/// The sessions that take part in the replay. No session means that the window is closed.
#[derive(Debug, Default)]
pub(crate) struct ReplayWindow {
    silent: BTreeSet<SessionId>,
    announced: BTreeMap<SessionId, Announced>,
    /// The announced changes in the order of their places.
    order: BTreeSet<(Place, SessionId)>,
    /// Time at which a session last announced a change, executed a change, or ended its replay.
    /// Also the last time at which clients could not replay changes.
    progress_at: Duration,
    /// Whether the target has refused or dropped a change.
    has_failed: bool,
}

/// The sessions that a window has dropped because there was no progress.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) sessions: Vec<SessionId>,
    /// Operations of these sessions, which must fail now.
    pub(crate) operations: Vec<u64>,
}

impl ReplayWindow {
    /// Opens the window for the sessions that the target has found in its store.
    pub(crate) fn open(&mut self, sessions: impl Iterator<Item = SessionId>, now: Duration) {
        *self = Self { silent: sessions.collect(), progress_at: now, ..Self::default() };
    }

    /// Whether at least one session still takes part in the replay.
    pub(crate) fn is_open(&self) -> bool {
        !self.silent.is_empty() || !self.announced.is_empty()
    }

    /// Whether this session takes part in the replay: it is silent, or has announced a change.
    pub(crate) fn takes_part(&self, session: SessionId) -> bool {
        self.silent.contains(&session) || self.announced.contains_key(&session)
    }

    /// Adds the next change of a session. Does nothing if the session takes no part in the replay.
    pub(crate) fn announce(
        &mut self,
        session: SessionId,
        place: Place,
        operation: u64,
        now: Duration,
    ) {
        if self.silent.remove(&session) {
            self.progress_at = now;
        } else if self.remove_announced(session).is_none() {
            return;
        }
        self.announced.insert(session, Announced { place, operation });
        self.order.insert((place, session));
    }

    fn remove_announced(&mut self, session: SessionId) -> Option<Announced> {
        let announced = self.announced.remove(&session)?;
        self.order.remove(&(announced.place, session));
        Some(announced)
    }

    /// Returns the id of the operation whose change the target executes next. `None` means that a
    /// session is silent, or that no session takes part.
    pub(crate) fn turn(&self) -> Option<u64> {
        if !self.silent.is_empty() {
            return None;
        }
        let (_, session) = self.order.first()?;
        self.announced.get(session).map(|it| it.operation)
    }

    /// Notes that the operation that replays the announced change of a session has ended. `failed`
    /// means that the target has refused the change. The session is silent until it announces its
    /// next change.
    pub(crate) fn executed(
        &mut self,
        session: SessionId,
        operation: u64,
        failed: bool,
        now: Duration,
    ) {
        if self.announced.get(&session).is_some_and(|it| it.operation == operation) {
            self.remove_announced(session);
            self.silent.insert(session);
            self.progress_at = now;
            self.has_failed |= failed;
        }
    }

    /// Whether the target has refused or dropped a change since the window was opened. A later
    /// change may then rely on a name that is missing.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Removes a session from the window, because its client has ended the replay or the session
    /// itself has ended. Returns the id of the operation with its announced change, which must fail
    /// now.
    pub(crate) fn end(&mut self, session: SessionId, now: Duration) -> Option<u64> {
        let announced = self.remove_announced(session);
        if self.silent.remove(&session) || announced.is_some() {
            self.progress_at = now;
        }
        self.has_failed |= announced.is_some();
        announced.map(|it| it.operation)
    }

    /// If there was no progress for `patience`, drops the silent sessions. If no session is silent,
    /// drops the session with the next change, because this change may wait for another client
    /// forever. Returns the dropped sessions, and the ids of their operations.
    pub(crate) fn drop_stalled(&mut self, now: Duration, patience: Duration) -> Dropped {
        if !self.is_open() || now <= self.progress_at + patience {
            return Dropped::default();
        }
        self.progress_at = now;
        if !self.silent.is_empty() {
            let sessions = std::mem::take(&mut self.silent).into_iter().collect();
            return Dropped { sessions, operations: Vec::new() };
        }
        self.has_failed = true;
        let first = self.order.first().map(|(_, session)| *session);
        let operation = first.and_then(|session| self.remove_announced(session));
        Dropped {
            sessions: first.into_iter().collect(),
            operations: operation.into_iter().map(|it| it.operation).collect(),
        }
    }

    /// Restarts the time without progress, because the target has not replied until now, so the
    /// clients could not replay changes.
    pub(crate) fn restart_patience(&mut self, now: Duration) {
        self.progress_at = now;
    }

    /// Closes the window without a replay. Call this function only before the first request.
    pub(crate) fn close(&mut self) {
        *self = Self::default();
    }

    /// Panics if an invariant of the type is violated.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.announced.len(), self.order.len(), "each announced change has a place");
        for (place, session) in &self.order {
            let announced = self.announced.get(session);
            assert!(
                announced.is_some_and(|it| it.place == *place) && !self.silent.contains(session),
                "session {session} has announced the change at {place:?}, so it is not silent"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(5);

    fn session(number: u64) -> SessionId {
        SessionId::new(number)
    }

    fn window(sessions: u64) -> ReplayWindow {
        let mut window = ReplayWindow::default();
        window.open((1..=sessions).map(session), Duration::ZERO);
        window
    }

    #[test]
    fn replay_waits_until_each_session_has_announced_a_change() {
        let mut window = window(3);
        window.announce(session(1), (1, 7), 10, LEASE);
        window.announce(session(2), (1, 5), 20, LEASE);
        assert_eq!(window.turn(), None, "the third session may have an earlier change");
        assert_eq!(window.end(session(3), LEASE), None);
        assert_eq!(window.turn(), Some(20));
        window.executed(session(2), 20, false, LEASE);
        assert_eq!(window.turn(), None, "the second session may have another change");
        window.announce(session(2), (1, 6), 21, LEASE);
        window.announce(session(2), (1, 6), 22, LEASE);
        assert_eq!(window.turn(), Some(22), "the newest operation has the change");
        window.executed(session(2), 21, true, LEASE);
        assert_eq!(window.turn(), Some(22), "the end of an earlier attempt changes nothing");
        assert!(!window.has_failed());
        assert_eq!(window.end(session(2), LEASE), Some(22));
        assert!(window.has_failed(), "the change of the ended session is not repeated");
        assert_eq!(window.turn(), Some(10));
        assert_eq!(window.end(session(1), LEASE), Some(10));
        assert!(!window.is_open() && !window.takes_part(session(1)));
    }

    #[test]
    fn change_logged_in_an_earlier_start_is_replayed_first() {
        let mut window = window(2);
        window.announce(session(1), (3, 1), 10, LEASE);
        window.announce(session(2), (2, 900), 20, LEASE);
        assert_eq!(window.turn(), Some(20));
    }

    #[test]
    fn silent_sessions_are_dropped_after_a_time_without_progress() {
        let mut window = window(3);
        window.announce(session(2), (1, 5), 20, LEASE);
        assert_eq!(window.drop_stalled(LEASE * 2, LEASE), Dropped::default());
        let later = LEASE * 2 + Duration::from_millis(1);
        let dropped = window.drop_stalled(later, LEASE);
        assert_eq!(dropped.sessions, [session(1), session(3)]);
        assert_eq!(window.turn(), Some(20));
        window.announce(session(1), (1, 1), 10, later);
        assert_eq!(window.turn(), Some(20), "a dropped session takes no part any more");
        // The change of the last session does not end either.
        let dropped = window.drop_stalled(later + LEASE * 2, LEASE);
        let expected = Dropped { sessions: vec![session(2)], operations: vec![20] };
        assert_eq!(dropped, expected);
        assert!(!window.is_open() && window.has_failed());
    }

    proptest::proptest! {
        /// Clients announce their changes at random times. The target executes all changes in their
        /// original order.
        #[test]
        fn changes_of_all_sessions_are_replayed_in_original_order(
            places in proptest::collection::btree_map((1_u64..3, 0_u64..1000), 1_u64..5, 0..40),
            steps in proptest::collection::vec(1_u64..5, 400),
        ) {
            let mut window = window(4);
            let mut left: BTreeMap<u64, Vec<Place>> = (1..5).map(|it| (it, Vec::new())).collect();
            for (place, of) in places.iter().rev() {
                left.entry(*of).or_default().push(*place);
            }
            let (mut executed, mut next) = (Vec::new(), 0);
            let mut running: BTreeMap<u64, (u64, Place)> = BTreeMap::new();
            let every = (1..5).cycle().take(400);
            for of in steps.into_iter().chain(every) {
                if window.silent.contains(&session(of)) {
                    match left.get_mut(&of).and_then(Vec::pop) {
                        Some(place) => {
                            next += 1;
                            running.insert(next, (of, place));
                            window.announce(session(of), place, next, LEASE);
                        }
                        None => {
                            window.end(session(of), LEASE);
                        }
                    }
                }
                if let Some((of, place)) = window.turn().and_then(|it| running.get(&it)) {
                    executed.push(*place);
                    window.executed(session(*of), next_of(&window, *of), false, LEASE);
                }
                window.check_invariants();
            }
            let expected: Vec<_> = places.into_keys().collect();
            proptest::prop_assert_eq!(executed, expected);
            proptest::prop_assert!(!window.is_open());
        }
    }

    /// Returns the id of the operation with a session's announced change.
    fn next_of(window: &ReplayWindow, of: u64) -> u64 {
        window.announced[&session(of)].operation
    }
}

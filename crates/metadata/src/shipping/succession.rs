//! Decides the time from which a new primary may reply to clients, because the previous primary may
//! still hold a lease.
//!
//! The previous primary may send replies until its lease ends. So the new primary normally waits
//! until its own promises end ([`super::silence`]): with each lease that it granted as a backup
//! member, it promised to reply to no client before the end of the lease.
//!
//! # Leases that this member has not granted
//! A member that began to serve after an earlier primary was disconnected has promised nothing to
//! that primary. So a member begins to serve only after the leases of all earlier primaries have
//! ended. To observe this rule, the primary asks management to mark a member as in sync only after
//! the primary's own wait has ended ([`super::shipper`]).
//!
//! A primary of an earlier version does not observe this rule, and after a restore of management
//! all members serve. So there is a second rule: a new primary waits at least as long as the
//! previous primary would still have waited. The requests of the previous primary contain the
//! remaining time.
//!
//! # Release
//! The wait ends earlier if the previous primary itself confirms that it is no longer the primary.
//! A [`LogHeld`] in an epoch of the new primary is this confirmation. A target sends this message
//! only as a backup member or as the receiver of a copy, and in these roles it replies to no
//! client. The target can become the primary again only in a later term.
//!
//! A third target, which has not confirmed anything, may still hold a lease of an earlier epoch. So
//! the new primary relies on the confirmation only if no such lease can exist:
//!
//! - The new term follows directly on the last epoch in which this process received requests. So no
//!   third target was the primary between the two terms.
//! - The leases of all primaries before the previous primary have ended. The previous primary had
//!   to wait for these leases too, and reported the remaining time in its requests.
//!
//! [`LogHeld`]: skep_wire::log_shipping::LogHeld

use skep_cluster::limits::{CLOCK_DRIFT, MAX_TAKE_OVER_AFTER_MS};
use skep_types::{Epoch, Group, TargetId};
use std::time::Duration;

/// The newest term of a primary from which the process of a backup member has received requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedTerm {
    primary: TargetId,
    /// First epoch of the term.
    since: Epoch,
    /// Group epoch at the last request.
    epoch: Epoch,
    /// Time at which the leases of all earlier primaries have ended. `None` means that no request
    /// has contained the wait of the primary.
    earlier_end: Option<Duration>,
}

impl ReceivedTerm {
    /// Returns the newest term of a primary that this member has seen in requests, after a request
    /// of the primary of `group`. `before` is the newest term before this request.
    pub(super) fn after_request(before: Option<Self>, group: &Group) -> Self {
        let Group { primary, primary_since: since, epoch, .. } = *group;
        let same = before.filter(|it| it.is_of(group));
        Self { primary, since, epoch, earlier_end: same.and_then(|it| it.earlier_end) }
    }

    /// Whether this is the present term of the primary of `group`.
    pub(super) fn is_of(&self, group: &Group) -> bool {
        (self.primary, self.since) == (group.primary, group.primary_since)
    }

    /// Handles the remaining wait that the primary has reported in a request that arrived at `now`.
    /// Keeps the earliest of the ends that these reports imply, because each of them is a safe
    /// bound.
    ///
    /// Every lease that a primary has at `now` ends within [`MAX_TAKE_OVER_AFTER_MS`], because the
    /// settings permit no longer promise to a primary. So a longer wait is wrong. Without this
    /// limit, a wrong number in one request could delay the next primary for weeks.
    pub(super) fn note_wait(&mut self, wait_ms: u32, now: Duration) {
        let wait = Duration::from_millis(wait_ms.min(MAX_TAKE_OVER_AFTER_MS).into());
        let end = now + wait + wait / CLOCK_DRIFT;
        self.earlier_end = Some(self.earlier_end.map_or(end, |earlier| earlier.min(end)));
    }
}

/// Returns a time in milliseconds, rounded down, for a message.
pub(super) fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The time from which a primary may reply to clients. A time of zero means that the primary need
/// not wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Succession {
    answers_from: Duration,
    /// The previous primary, whose confirmation shortens the wait, and the earliest time at which
    /// the wait can end. `None` means that no confirmation shortens it.
    former: Option<(TargetId, Duration)>,
}

impl Succession {
    /// Creates the state of a primary that replies to no client before the time `at`. No
    /// confirmation of another member shortens this wait.
    pub fn at(at: Duration) -> Self {
        Self { answers_from: at, former: None }
    }

    /// Creates the state of a member that becomes the primary in the group epoch `epoch`. The
    /// promises of the member end at `promised_until`, and `term` is the term of the last request
    /// that the member has received. The wait is at least as long as the remaining wait of the
    /// primary of `term`.
    pub(super) fn of_backup(
        promised_until: Duration,
        term: Option<ReceivedTerm>,
        epoch: Epoch,
    ) -> Self {
        let direct = term.filter(|it| it.epoch.raw().checked_add(1) == Some(epoch.raw()));
        let former = direct.and_then(|it| Some((it.primary, it.earlier_end?)));
        let earlier_end = term.and_then(|it| it.earlier_end).unwrap_or_default();
        Self { answers_from: promised_until.max(earlier_end), former }
    }

    /// Returns the time before which the primary replies to no client.
    pub fn answers_from(&self) -> Duration {
        self.answers_from
    }

    /// Returns the rest of the wait at the time `now` in milliseconds, rounded up.
    pub(super) fn wait_ms(&self, now: Duration) -> u32 {
        let nearly = Duration::from_nanos(999_999);
        milliseconds(self.answers_from.saturating_sub(now).saturating_add(nearly))
    }

    /// Handles a [`LogHeld`](skep_wire::log_shipping::LogHeld) of `member` in an epoch of this
    /// primary. If `member` is the previous primary, this message shortens the wait.
    pub(super) fn on_report(&mut self, member: TargetId) {
        if let Some((_, earliest)) = self.former.filter(|(former, _)| *former == member) {
            self.answers_from = self.answers_from.min(earliest);
        }
    }
}

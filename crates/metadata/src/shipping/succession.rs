//! When a new primary may reply to clients, although another target was the primary before.
//!
//! The former primary may send replies until its lease ends. So the new primary normally waits
//! until [`LeaseTimes::take_over_after`] has passed since it last received a request of the former
//! primary.
//!
//! # Release
//! The wait ends earlier if the former primary itself confirms that it has left its role. A
//! [`LogHeld`] in an epoch of the new primary is this confirmation. A target sends it only as a
//! backup or as the receiver of a copy, and in these roles it replies to no client. It can become
//! the primary again only in a later term.
//!
//! A third target may hold a lease of an earlier epoch, and has confirmed nothing. So the
//! confirmation counts only if no such lease can exist:
//!
//! - The new term follows directly on the last epoch in which this process received requests. So no
//!   third target was the primary between the two.
//! - [`LeaseTimes::take_over_after`] has passed since this process received the first request of
//!   the former primary's term. So the leases of all primaries before the former one have ended.
//!   The former primary may have waited for them itself, without a reply to any client.
//!
//! [`LeaseTimes::take_over_after`]: crate::limits::LeaseTimes::take_over_after
//! [`LogHeld`]: skep_wire::log_shipping::LogHeld

use skep_types::{Epoch, Group, TargetId};
use std::time::Duration;

/// The newest term of a primary from which the process of a backup has received requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedTerm {
    primary: TargetId,
    /// First epoch of the term.
    since: Epoch,
    /// Group epoch at the last request.
    epoch: Epoch,
    /// Time of the first request of the term that this process has received.
    began: Duration,
}

impl ReceivedTerm {
    /// Returns the term after a request of the primary of `group`, which arrived at `now`. `before`
    /// is the term before the request.
    pub(super) fn after_request(before: Option<Self>, group: &Group, now: Duration) -> Self {
        let Group { primary, primary_since: since, epoch, .. } = *group;
        let same = before.filter(|it| (it.primary, it.since) == (primary, since));
        Self { primary, since, epoch, began: same.map_or(now, |it| it.began) }
    }
}

/// The time from which a primary may reply to clients. A time of zero means that it need not wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Succession {
    answers_from: Duration,
    /// The former primary whose confirmation ends the wait, and the earliest end of the wait.
    former: Option<(TargetId, Duration)>,
}

impl Succession {
    /// Creates the state of a primary that replies to no client before the time `at`, also if
    /// another member confirms that it has left the role of the primary.
    pub fn at(at: Duration) -> Self {
        Self { answers_from: at, former: None }
    }

    /// Creates the state of a member that becomes the primary in the group epoch `epoch`. It last
    /// received a request of a primary at `received_at`, and `term` is the term of that request.
    /// `after` is [`crate::limits::LeaseTimes::take_over_after`].
    pub(super) fn of_backup(
        received_at: Duration,
        term: Option<ReceivedTerm>,
        epoch: Epoch,
        after: Duration,
    ) -> Self {
        let direct = term.filter(|it| it.epoch.raw().checked_add(1) == Some(epoch.raw()));
        let former = direct.map(|it| (it.primary, it.began + after));
        Self { answers_from: received_at + after, former }
    }

    /// Returns the time before which the primary replies to no client.
    pub fn answers_from(&self) -> Duration {
        self.answers_from
    }

    /// Handles a report of `member` in an epoch of this primary.
    pub(super) fn on_report(&mut self, member: TargetId) {
        if let Some((_, earliest)) = self.former.filter(|(former, _)| *former == member) {
            self.answers_from = self.answers_from.min(earliest);
        }
    }
}

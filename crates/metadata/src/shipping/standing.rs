//! The part of another member in the group, as the primary sees it: whether replies wait for it,
//! since when it does not follow, and when the primary may ask management for a change.
//!
//! Does not own the records that the member gets ([`super::member_link`]), and does not decide
//! about the change ([`super::shipper`]).
//!
//! # Lease
//! The primary may answer for a while after it has *sent* a request that the member has
//! acknowledged: the member does not ask to take over before more time has passed since it
//! received the request.

use crate::limits::{ABSENT_PAUSE, MEMBER_PAUSE};
use std::time::Duration;

/// Whether replies wait for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkRole {
    /// The member serves: all replies wait for it.
    Serving,
    /// The member does not serve yet, but all replies wait for it already.
    Counted,
    /// The member does not serve, and nothing waits for it.
    Absent,
}

/// The part of a member in the group during one epoch.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) role: LinkRole,
    /// Send time of the newest request that the member has acknowledged in this epoch. `None` means
    /// that it has acknowledged none.
    acknowledged: Option<Duration>,
    /// Time of the first request since the last reply which shows that the member follows.
    unconfirmed_since: Option<Duration>,
    /// Whether the member lacks records that the primary does not keep.
    pub(super) needs_copy: bool,
    /// Whether the primary has asked management to mark the member as in sync. From then on the
    /// member may serve, even if the reply is lost.
    pub(super) may_serve: bool,
    /// Time at which the primary may ask management again to change the member's state.
    change_at: Duration,
}

impl Standing {
    pub(super) fn new(role: LinkRole) -> Self {
        Self {
            role,
            acknowledged: None,
            unconfirmed_since: None,
            needs_copy: false,
            may_serve: false,
            change_at: Duration::ZERO,
        }
    }

    /// Returns the send time of the newest acknowledged request. `None` means that the member has
    /// acknowledged none in this epoch.
    pub(super) fn acknowledged(&self) -> Option<Duration> {
        self.acknowledged
    }

    /// Notes that the member has acknowledged the request that was sent at this time.
    pub(super) fn acknowledge(&mut self, sent: Option<Duration>) {
        self.acknowledged = self.acknowledged.max(sent);
    }

    /// Notes a request, to which the member must reply.
    pub(super) fn request_sent(&mut self, now: Duration) {
        self.unconfirmed_since.get_or_insert(now);
    }

    /// Notes that the member has appended the records of a request.
    pub(super) fn confirm(&mut self) {
        (self.needs_copy, self.unconfirmed_since) = (false, None);
    }

    /// Whether the member has not followed for this time, although it has got requests.
    pub(super) fn is_failing(&self, after: Duration, now: Duration) -> bool {
        self.unconfirmed_since.is_some_and(|since| now.saturating_sub(since) >= after)
    }

    /// This process was stopped, so the member could not reply.
    pub(super) fn restart_wait(&mut self, now: Duration) {
        self.unconfirmed_since = self.unconfirmed_since.map(|_| now);
    }

    /// Returns the pause after a request has failed.
    pub(super) fn pause(&self) -> Duration {
        if self.role == LinkRole::Absent { ABSENT_PAUSE } else { MEMBER_PAUSE }
    }

    /// Returns whether the primary may ask management for a change now. It then pauses.
    pub(super) fn may_change(&mut self, now: Duration) -> bool {
        let may = now >= self.change_at;
        if may {
            self.change_at = now + ABSENT_PAUSE;
        }
        may
    }
}

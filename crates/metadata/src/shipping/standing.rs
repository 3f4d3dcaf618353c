//! The primary's record of one other member: whether replies wait for it, how long it has confirmed
//! no records, which lease it has granted, and when the primary may ask management to change its
//! state.
//!
//! This module does not own the records that the member gets ([`super::member_link`]), or the
//! choice of the change ([`super::shipper`]).
//!
//! # Lease
//! The lease begins when the primary *sends* a request that the member acknowledges. While it
//! lasts, the primary may reply to clients. The member chooses the duration of the lease. With its
//! acknowledgement, it also promises that it replies to no client as a primary until after the end
//! of the lease ([`super::silence`]).
//!
//! # A disk that hangs
//! A member whose disk completes no sync may still append records and acknowledge requests. While a
//! member with a hanging disk serves, *safe* does not rise, and all durable replies of the group
//! wait. So a member with a hanging disk counts as failing too. The primary compares the member
//! with itself: it measures only while it has itself synced a record that the member has appended
//! and not synced. So a disk that is slow for all members does not let the primary drop one of
//! them. A stopped member does not count as hanging, since it acknowledges nothing. A member may
//! also report that its disk hangs: it replies `DeviceFailed`.

use super::flap_damping::FlapDamping;
use crate::limits::{ABSENT_PAUSE, MEMBER_PAUSE, SYNC_PATIENCE, UNDECIDED_DROP};
use skep_types::Lsn;
use std::time::Duration;

/// Whether replies wait for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkRole {
    /// The member serves, so all replies wait for it.
    Serving,
    /// The member does not serve yet, but all replies already wait for it.
    Counted,
    /// The member does not serve, and no reply waits for it.
    Absent,
}

/// The standing of a member during one epoch.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) role: LinkRole,
    /// Time at which the primary sent the newest request that the member has acknowledged in this
    /// epoch. `None` means that the member has acknowledged no request in this epoch.
    acknowledged: Option<Duration>,
    /// The latest end of the leases that the member has granted in this epoch. Never decreases.
    granted_until: Duration,
    /// Time of the first request that the primary has sent since the last confirmation of records
    /// by the member. `None` means that the primary has sent no request since that confirmation.
    unconfirmed_since: Option<Duration>,
    /// Whether the member has replied that its service stops, and has confirmed no records since.
    stops: bool,
    /// A record that the member must sync: the member has appended it, and the primary has synced
    /// it. Also the time at which the primary noticed this. `None` means that there is no such
    /// record.
    owed_sync: Option<(Lsn, Duration)>,
    /// Whether the member has replied that its disk hangs, and has confirmed no records since.
    reports_hanging_disk: bool,
    damping: FlapDamping,
    /// Time at which the primary sent the newest request in whose reply the member confirmed all
    /// records of the log. `None` means that there was no such reply in this epoch.
    complete_at: Option<Duration>,
    /// Whether the member lacks records that the primary no longer has, neither in memory nor in
    /// its log on disk.
    pub(super) needs_copy: bool,
    /// Whether the primary has asked management to mark the member as in sync. From then on,
    /// management may make the member serve, even if management's reply to the primary is lost.
    pub(super) may_serve: bool,
    /// Time at which the primary may ask management again to change the member's state.
    change_at: Duration,
    /// Time of the newest request to management to drop the member. `None` means that the primary
    /// has sent no such request in this epoch, or that [`Self::take_undecided_drop`] has returned
    /// it.
    drop_asked: Option<Duration>,
}

impl Standing {
    pub(super) fn new(role: LinkRole) -> Self {
        Self {
            role,
            acknowledged: None,
            granted_until: Duration::ZERO,
            unconfirmed_since: None,
            stops: false,
            owed_sync: None,
            reports_hanging_disk: false,
            damping: FlapDamping::default(),
            complete_at: None,
            needs_copy: false,
            may_serve: false,
            change_at: Duration::ZERO,
            drop_asked: None,
        }
    }

    /// Returns the standing of the member at the beginning of the next epoch, before the primary
    /// has received the map that shows whether the member serves. The result has only the failures,
    /// and whether the disk hangs. Without these facts, the primary would count the member again
    /// immediately, and replies would wait for it again.
    pub(super) fn of_next_epoch(&self) -> Self {
        let owed_sync = self.owed_sync.filter(|_| self.has_hanging_disk());
        Self { owed_sync, damping: self.damping, ..Self::new(LinkRole::Absent) }
    }

    /// Compares the last sync of the member with the last sync of the primary at the time `now`.
    /// `synced` is the last record that the member has synced. `expected` is the last record that
    /// the member has appended and the primary has synced.
    pub(super) fn compare_syncs(&mut self, synced: Lsn, expected: Lsn, now: Duration) {
        if self.owed_sync.is_none_or(|(lsn, _)| synced >= lsn) {
            self.owed_sync = (synced < expected).then_some((expected, now));
        }
        if self.has_hanging_disk() {
            self.damping.interrupt();
        }
    }

    /// Notes that the member has synced its log up to the record `synced`.
    pub(super) fn note_synced(&mut self, synced: Lsn) {
        self.owed_sync.take_if(|(lsn, _)| synced >= *lsn);
    }

    /// Handles a reply in which the member reports that its disk hangs.
    pub(super) fn note_hanging_disk(&mut self) {
        self.reports_hanging_disk = true;
    }

    /// Whether the disk of the member hangs. Either the member has reported this. Or the member has
    /// not synced a record, although it has acknowledged a request that the primary sent
    /// [`SYNC_PATIENCE`] after the member should have synced the record.
    pub(super) fn has_hanging_disk(&self) -> bool {
        let is_late = |(_, since): (Lsn, Duration)| {
            self.acknowledged.is_some_and(|sent| sent >= since + SYNC_PATIENCE)
        };
        self.reports_hanging_disk || self.owed_sync.is_some_and(is_late)
    }

    /// Whether the primary may begin to count this absent member at the time `now`: its disk does
    /// not hang, and it has been steady for long enough since it failed.
    pub(super) fn may_count(&self, now: Duration) -> bool {
        self.role == LinkRole::Absent && !self.has_hanging_disk() && self.damping.permits(now)
    }

    /// Begins to count the member.
    pub(super) fn count(&mut self) {
        self.role = LinkRole::Counted;
        self.damping.end();
    }

    /// Notes at the time `now` that the primary stops counting the member because the member fails.
    /// A member whose service stops has not failed.
    pub(super) fn note_failure(&mut self, now: Duration) {
        if !self.stops {
            self.damping.fail(self.has_hanging_disk(), now);
        }
    }

    /// Returns the time at which the primary sent the newest acknowledged request. `None` means
    /// that the member has acknowledged no request in this epoch.
    pub(super) fn acknowledged(&self) -> Option<Duration> {
        self.acknowledged
    }

    /// Handles an acknowledgement of the member. `sent` is the time at which the primary sent the
    /// request, and `granted` is the lease that the member grants.
    pub(super) fn acknowledge(&mut self, sent: Option<Duration>, granted: Duration) {
        self.acknowledged = self.acknowledged.max(sent);
        self.granted_until =
            sent.map_or(self.granted_until, |sent| self.granted_until.max(sent + granted));
    }

    /// Whether this member permits replies to clients at the time `now`: its lease has not ended,
    /// and it has acknowledged a request that the primary sent less than `lease` ago.
    pub(super) fn holds_lease(&self, lease: Duration, now: Duration) -> bool {
        let is_wanted = self.acknowledged.is_some_and(|sent| now < sent + lease);
        is_wanted && now < self.granted_until
    }

    /// Remembers that the primary has sent a request to which the member must reply.
    pub(super) fn request_sent(&mut self, now: Duration) {
        self.unconfirmed_since.get_or_insert(now);
    }

    /// Handles a reply in which the member confirms that it has the records of a request, at the
    /// time `now`.
    pub(super) fn confirm(&mut self, now: Duration) {
        (self.needs_copy, self.unconfirmed_since) = (false, None);
        (self.stops, self.reports_hanging_disk) = (false, false);
        self.damping.confirm(now);
    }

    /// Handles a reply in which the member reports that its service stops. From now on the member
    /// counts as failing, even before it is silent for a lease.
    pub(super) fn note_stop(&mut self) {
        self.stops = true;
    }

    /// Handles a reply in which the member confirms all records that the log had when the primary
    /// sent the request, at the time `sent`. The request named the process that replies.
    pub(super) fn note_complete(&mut self, sent: Duration) {
        self.complete_at = self.complete_at.max(Some(sent));
    }

    /// Whether the member has confirmed the whole log after a request that the primary sent at the
    /// time `since` or later. The member must not have replied since then that its service stops,
    /// and its disk must not hang.
    pub(super) fn is_complete_since(&self, since: Duration) -> bool {
        let is_fit = !self.stops && !self.has_hanging_disk();
        is_fit && self.complete_at.is_some_and(|sent| sent >= since)
    }

    /// Whether the member stops, has a disk that hangs, or has confirmed no records for the time
    /// `after`, although the primary has sent it requests.
    pub(super) fn is_failing(&self, after: Duration, now: Duration) -> bool {
        let is_silent = |since| now.saturating_sub(since) >= after;
        self.stops || self.has_hanging_disk() || self.unconfirmed_since.is_some_and(is_silent)
    }

    /// Whether [`Self::is_failing`] holds for a member that the primary has asked management to
    /// mark as in sync.
    pub(super) fn has_stopped(&self, after: Duration, now: Duration) -> bool {
        self.may_serve && self.is_failing(after, now)
    }

    /// Remembers that the primary has asked management at the time `now` to drop the member.
    pub(super) fn note_drop(&mut self, now: Duration) {
        self.drop_asked = Some(now);
    }

    /// Whether the last request to drop the member is at least [`UNDECIDED_DROP`] old and
    /// management has not carried it out. Returns `true` only once for a request.
    pub(super) fn take_undecided_drop(&mut self, now: Duration) -> bool {
        let is_old = |asked: &mut Duration| now.saturating_sub(*asked) >= UNDECIDED_DROP;
        self.drop_asked.take_if(is_old).is_some()
    }

    /// Gives the member its full time to reply again, because this process was stopped and could
    /// not receive replies.
    pub(super) fn restart_wait(&mut self, now: Duration) {
        self.unconfirmed_since = self.unconfirmed_since.map(|_| now);
    }

    /// Returns the pause before the next request to the member after a request has failed.
    pub(super) fn pause(&self) -> Duration {
        if self.role == LinkRole::Absent { ABSENT_PAUSE } else { MEMBER_PAUSE }
    }

    /// Returns whether the primary may ask management now to change the member's state. If it may,
    /// a pause follows before the next such request.
    pub(super) fn may_change(&mut self, now: Duration) -> bool {
        let may = now >= self.change_at;
        if may {
            self.change_at = now + ABSENT_PAUSE;
        }
        may
    }
}

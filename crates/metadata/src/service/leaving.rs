//! The stop of a backup member: before its process ends, the member stops being a serving member of
//! its group.
//!
//! The primary replies to no client before each serving member has the records. Without this
//! module, the primary would notice the end of the process only after the time of a lease, and
//! operations would wait meanwhile. So a stopping member refuses each request with `NotReady`. The
//! primary then asks management immediately to drop the member ([`crate::shipping`]), and the
//! member waits for the cluster map in which it does not serve. After its next start, it catches up
//! like any absent member.
//!
//! The member sends management no request for its own drop: if the primary had died, the dead
//! primary would become the only serving member.
//!
//! # A previous primary
//! When a primary stops, it first hands its group over ([`super::primary_stop`]). After the
//! hand-over, its service opens the target once more as a backup member. Until this member
//! acknowledges a request, the new primary waits for the lease of the previous primary before it
//! replies to clients ([`crate::shipping::succession`]). So before a backup member stops, it waits
//! until its process has acknowledged a request of the primary.
//!
//! # Invariants
//! - After the first refusal, the member confirms no record in this process. After a further
//!   confirmation, the primary could count the member again before the process ends.
//! - The member waits at most [`RELEASE_LIMIT`] for a request to acknowledge, and then at most
//!   [`LEAVE_LIMIT`] for the cluster map.
//!
//! The invariants concern the messages of a member over time, which no state shows.
//!
//! Held by the tests `stopping_backup_member_waits_a_limited_time_for_its_primary` and
//! `members_that_stop_at_the_same_time_exit_within_4_s` (the limits), and by the test
//! `backup_member_that_stops_cleanly_delays_no_operation` (the refusals).

use super::Shell;
use crate::engine::fjall_engine::FjallEngine;
use crate::shipping::backup::Backup;
use crate::target::Event;
use crate::term::Membership;
use skep_types::map::Reachability;
use skep_types::{Error, ErrorCode, MapVersion, Result};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for which a stopping member waits for the cluster map in which it does not serve.
/// The primary of an idle group sends a request every half second
/// ([`crate::limits::LEASE_RENEWAL`]).
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// Maximum time for which a stopping backup member waits for a last request to acknowledge. A new
/// primary gets the cluster map within a fraction of this time. Without an acknowledgement, the new
/// primary waits for the end of the lease, which takes somewhat longer than this time.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// The last acknowledgement of a backup member whose service stops.
#[derive(Debug, Default)]
pub(super) struct LastAcknowledgement {
    /// End of the wait for a last request to acknowledge. `None` means that the wait has not begun.
    until: Option<Duration>,
}

impl LastAcknowledgement {
    /// Whether the backup member must continue in its role to acknowledge a last request of the
    /// primary. `membership` has the group and the target of this member.
    pub(super) fn is_due(
        &mut self,
        shell: &Shell,
        backup: &Backup<FjallEngine>,
        membership: &Membership,
    ) -> bool {
        let newest = Membership { map: Arc::clone(backup.map()), ..membership.clone() };
        let is_done = backup.has_acknowledged_primary();
        let is_due = !is_done && self.waits(&newest, skep_env::now());
        shell.membership.is_leaving.set(is_due);
        is_due
    }

    /// Whether the member must wait for a request of the primary at the time `now`. The first call
    /// begins the wait.
    fn waits(&mut self, membership: &Membership, now: Duration) -> bool {
        let until = *self.until.get_or_insert(now + RELEASE_LIMIT);
        now < until && is_expected(membership)
    }
}

/// Refuses all requests until a cluster map arrives in which the target does not serve, at most for
/// [`LEAVE_LIMIT`]. Returns immediately if no primary waits for the target. `membership` has the
/// group and the target of this member.
///
/// # Errors
/// An error of the target's log, such as `DeviceFailed` after a failed sync.
pub(super) async fn leave(shell: &Shell, membership: &Membership) -> Result<()> {
    let Membership { group, target, .. } = *membership;
    let newest = || Membership { map: shell.router.map(), ..membership.clone() };
    if !is_expected(&newest()) {
        return Ok(());
    }
    shell.membership.is_leaving.set(true);
    let until = skep_env::now() + LEAVE_LIMIT;
    while skep_env::now() < until {
        if !is_expected(&newest()) {
            tracing::info!(
                "target {target} stops: metadata group {group} continues without this target, \
                 which catches up when it answers again"
            );
            return Ok(());
        }
        for event in shell.next_events(until).await? {
            if let Event::Request { connection, header, .. } = event {
                let error = Error::new(
                    ErrorCode::NotReady,
                    "cannot execute the request: the service of the target is stopping",
                );
                shell.reply(connection, header, Err(error), MapVersion::default());
            }
        }
    }
    tracing::info!(
        "target {target} stops, although metadata group {group} still waits for it: operations of \
         the group may wait for a few seconds"
    );
    Ok(())
}

/// Whether the target is a serving backup member, and its primary is not offline.
fn is_expected(membership: &Membership) -> bool {
    let Membership { group, target, ref map } = *membership;
    let primary = map.group(group).and_then(|group| map.target(group.primary));
    let is_running = primary.is_some_and(|it| it.reachability != Reachability::Offline);
    is_running && membership.serves(target) && !membership.is_primary(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{
        ClusterId, ClusterMap, Group, GroupId, GroupMember, MemberState, NodeId, Target, TargetId,
        TargetKind,
    };

    /// Returns target 2 as a member in the state `state` of a group whose primary is target 1.
    fn backup(state: MemberState, primary: Reachability) -> Membership {
        let (group, target) = (GroupId::new(5), TargetId::new(2));
        let primary = Target {
            reachability: primary,
            ..Target::new(TargetId::new(1), TargetKind::Metadata, NodeId::new(3), "/t")
        };
        let mut entry = Group::of_one(group, TargetKind::Metadata, primary.id);
        entry.members.push(GroupMember { target, state });
        let map = ClusterMap {
            targets: vec![primary],
            groups: vec![entry],
            ..ClusterMap::empty(ClusterId::default())
        };
        Membership { group, target, map: Arc::new(map) }
    }

    #[test]
    fn backup_member_delays_its_stop_only_while_its_primary_runs() {
        let (serving, online) = (MemberState::Serving, Reachability::Online);
        assert!(is_expected(&backup(serving, online)));
        assert!(is_expected(&backup(serving, Reachability::ProbablyOffline)));
        assert!(!is_expected(&backup(serving, Reachability::Offline)), "the primary has stopped");
        assert!(
            !is_expected(&backup(MemberState::Waiting, online)),
            "no reply waits for this member"
        );
        let primary = Membership { target: TargetId::new(1), ..backup(serving, online) };
        assert!(!is_expected(&primary), "the primary does not wait for its own target");
        let removed = Membership { target: TargetId::new(9), ..backup(serving, online) };
        assert!(!is_expected(&removed), "the target is not a member");
    }

    #[test]
    fn stopping_backup_member_waits_a_limited_time_for_its_primary() {
        let now = Duration::from_secs(9);
        let serving = backup(MemberState::Serving, Reachability::Online);
        let mut last = LastAcknowledgement::default();
        assert!(last.waits(&serving, now));
        assert!(last.waits(&serving, now + RELEASE_LIMIT / 2));
        assert!(!last.waits(&serving, now + RELEASE_LIMIT));
        let ended = backup(MemberState::Serving, Reachability::Offline);
        assert!(!LastAcknowledgement::default().waits(&ended, now), "the primary has stopped");
        let waiting = backup(MemberState::Waiting, Reachability::Online);
        assert!(
            !LastAcknowledgement::default().waits(&waiting, now),
            "no reply waits for this member"
        );
    }
}

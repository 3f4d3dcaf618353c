//! The end of a backup member whose service stops: the member leaves the serving members of its
//! group before its process ends.
//!
//! The primary replies to no client before each serving member has the records. If the process of a
//! member only ended, the primary would wait for the time of a lease before it has the member
//! dropped. So a member that stops refuses each request with `NotReady`. The primary then asks
//! management immediately to drop it ([`crate::shipping`]). The member waits for the cluster map in
//! which it does not serve. After its next start it returns like any member that was absent.
//!
//! The member does not ask management itself. Only a running primary can ask, so a primary that has
//! died never becomes the only serving member by the end of a backup member.
//!
//! # A previous primary
//! A primary that stops hands its group over first ([`super::primary_stop`]), and then its target
//! is opened once more as a backup member. The new primary replies to no client before this backup
//! member has acknowledged a request, which releases the lease of the previous primary
//! ([`crate::shipping::succession`]). So a backup member that stops first waits until its process
//! has acknowledged a request of the primary.
//!
//! # Invariants
//! - After the first refusal, the member confirms no record in this process. Otherwise the primary
//!   could count it again before it ends.
//! - The member stops after [`RELEASE_LIMIT`] and [`LEAVE_LIMIT`] at the latest.

use super::Shell;
use crate::engine::fjall_engine::FjallEngine;
use crate::shipping::backup::Backup;
use crate::target::Event;
use crate::term::Membership;
use skep_types::map::Reachability;
use skep_types::{Error, ErrorCode, MapVersion, Result};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time for which a member that stops waits until it does not serve. The primary of an idle
/// group sends a request every half second ([`crate::limits::LEASE_RENEWAL`]).
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// Maximum time for which a stopping backup member waits for a last request to acknowledge. A new
/// primary gets the cluster map within a fraction of this time. Without the acknowledgement, the
/// new primary waits somewhat longer than this time.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);

/// The last acknowledgement of a backup member whose service stops.
#[derive(Debug, Default)]
pub(super) struct LastAcknowledgement {
    /// End of the wait for a last request to acknowledge. `None` means that the wait has not begun.
    until: Option<Duration>,
}

impl LastAcknowledgement {
    /// Whether the backup member continues in its role, because its process has not acknowledged a
    /// request of the primary yet. `membership` names the target.
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

    /// Whether the wait for the first request of the primary lasts at the time `now`.
    fn waits(&mut self, membership: &Membership, now: Duration) -> bool {
        let until = *self.until.get_or_insert(now + RELEASE_LIMIT);
        now < until && is_expected(membership)
    }
}

/// Refuses all requests until the target does not serve in its group. Returns immediately if no
/// primary waits for the target. `membership` names the target.
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
                "target {target} stops: metadata group {group} continues without it, and target \
                 {target} catches up when it answers again"
            );
            return Ok(());
        }
        for event in shell.next_events(until).await? {
            if let Event::Request { connection, header, .. } = event {
                let error = Error::new(ErrorCode::NotReady, "the service of the target stops");
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

/// Whether the target serves as a backup member of a primary that has not stopped.
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
    fn only_a_backup_member_of_a_running_primary_delays_its_stop() {
        let (serving, online) = (MemberState::Serving, Reachability::Online);
        assert!(is_expected(&backup(serving, online)));
        assert!(is_expected(&backup(serving, Reachability::ProbablyOffline)));
        assert!(!is_expected(&backup(serving, Reachability::Offline)), "the primary has stopped");
        assert!(!is_expected(&backup(MemberState::Waiting, online)), "no reply waits for it");
        let primary = Membership { target: TargetId::new(1), ..backup(serving, online) };
        assert!(!is_expected(&primary), "the primary itself");
        let removed = Membership { target: TargetId::new(9), ..backup(serving, online) };
        assert!(!is_expected(&removed), "not a member");
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
        assert!(!LastAcknowledgement::default().waits(&waiting, now), "no reply waits for it");
    }
}

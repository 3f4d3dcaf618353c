//! Sends the requests of the state machine to the other members of the group, and its requests for
//! changes of the group to management.
//!
//! This module sends each request only once, without retries. If a request fails, the state machine
//! decides whether to repeat it ([`crate::shipping`]).

use super::Shell;
use super::log_reads::LogPlaces;
use super::own_disk_wait::OwnDiskWait;
use crate::engine::Engine;
use crate::shipping::{MemberMessage, MemberRequest};
use crate::target::{Action, Event, MetadataTarget};
use skep_metrics::LineLimit;
use skep_store::page_cache::MemberMarkFile;
use skep_types::group_change::{GroupChange, MemberChange};
use skep_types::{Error, ErrorCode, MapVersion, Result, TargetId};
use skep_wire::log_shipping::LogHeld;
use skep_wire::management::{AskTakeOver, ChangeGroup};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Maximum time for which a call to a member waits for the reply. A member replies to records after
/// its append, and to `AwaitLogSync` after at most [`crate::limits::AWAIT_SYNC`]. If the reply
/// takes longer, the process of the member has probably stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum time for which a call to management waits for the reply. The state machines decide
/// independently of this time when they repeat a request.
const MANAGEMENT_PATIENCE: Duration = Duration::from_secs(1);

/// The state of a target's thread that is used only in groups of several members.
#[derive(Debug, Default)]
pub(super) struct MembershipState {
    /// Whether the target accepts no further requests, because too many log records in memory wait
    /// for the confirmation of another member.
    pub(super) is_backlogged: Cell<bool>,
    /// Whether a request to management about the group is in flight.
    is_changing: Cell<bool>,
    /// Whether this member still handles events although its service stops: a primary hands its
    /// group over, or a backup member waits until it does not serve.
    pub(super) is_leaving: Cell<bool>,
    /// The members whose newest reply is that they stop.
    stopping: RefCell<BTreeSet<TargetId>>,
    /// The members whose disks hang, including this target.
    hanging: RefCell<BTreeSet<TargetId>>,
    /// Limits the rate of log lines about reports that this member may lack records.
    loss_reports: LineLimit,
    /// Limits the rate of log lines about changes that management has refused.
    refused_changes: LineLimit,
    /// Limits the rate of log lines about requests to take over that management has refused.
    refused_take_overs: LineLimit,
    /// Limits the rate of log lines about clients that management has not evicted.
    pub(super) refused_evictions: LineLimit,
    /// The reason why the target does not serve although it is the primary. `None` means that the
    /// target serves, or is not the primary.
    pub(super) halted: RefCell<Option<String>>,
    /// How long replies have waited for the disk of this primary.
    pub(super) own_disk: OwnDiskWait,
    /// For each member, the position in the log from which the next read of old records continues.
    pub(super) log_places: LogPlaces,
}

/// The reason for which a primary asks management for a change of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// A service stops: the service of the member that the change drops, or of the primary that
    /// hands its group over.
    Stops,
    /// A disk hangs: the disk of the member that the change drops, or of the primary that hands its
    /// group over.
    DiskHangs,
    /// Every other reason: the member that the change drops does not answer, the disk of the
    /// primary is almost full, or a member has caught up.
    Other,
}

impl MembershipState {
    /// Copies three facts from the primary after its batch at the time `now`: `is_backlogged`, the
    /// members whose disks hang, and whether replies wait for the primary's own disk.
    pub(super) fn after_batch<E: Engine>(&self, target: &MetadataTarget<E>, now: Duration) {
        self.is_backlogged.set(target.is_backlogged());
        *self.hanging.borrow_mut() = target.hanging_disks();
        self.own_disk.note(target.replies_wait_for_own_disk(), now);
    }

    /// Returns the reason for which the target `primary` asks for `change`. `is_stopping` states
    /// whether the service of this target stops.
    fn reason(&self, change: &GroupChange, primary: TargetId, is_stopping: bool) -> Reason {
        let (stops, target) = match change.change {
            MemberChange::HandOver => (is_stopping, primary),
            _ => (self.stopping.borrow().contains(&change.target), change.target),
        };
        match self.hanging.borrow().contains(&target) {
            _ if stops => Reason::Stops,
            true => Reason::DiskHangs,
            false => Reason::Other,
        }
    }

    /// Notes from a member's reply whether its service stops (`NotReady`). A stopping primary
    /// neither asks to drop a stopping member ([`Self::withholds`]) nor hands its group over to
    /// such a member. The log line about a dropped member states whether the member was stopping.
    fn note_reply(&self, member: TargetId, reply: &Result<LogHeld>) {
        let mut stopping = self.stopping.borrow_mut();
        match reply {
            Ok(_) => _ = stopping.remove(&member),
            Err(error) if error.code() == ErrorCode::NotReady => _ = stopping.insert(member),
            Err(_) => {}
        }
    }

    /// Whether this primary must not send `change`: the change drops a stopping member, and the
    /// primary's own service stops too (`is_stopping`). If all members stop, each of them thus
    /// stays a serving member, and after their next start any of them can become the primary. If
    /// another member becomes the primary meanwhile, the new primary asks management to drop the
    /// stopping member.
    fn withholds(&self, change: &GroupChange, is_stopping: bool) -> bool {
        let is_drop = change.change == MemberChange::Drop;
        is_drop && is_stopping && self.stopping.borrow().contains(&change.target)
    }

    /// Returns the members whose newest reply is that they stop.
    pub(super) fn stopping(&self) -> BTreeSet<TargetId> {
        self.stopping.borrow().clone()
    }
}

/// Sends a request to a member, and passes the reply to the state machine.
pub(super) fn send(shell: &Rc<Shell>, request: MemberRequest) {
    let shell = Rc::clone(shell);
    skep_env::spawn(async move {
        let MemberRequest { member, number, message } = request;
        let router = &shell.router;
        let reply = |result| Event::MemberReply { member, number, result };
        let event = match &message {
            MemberMessage::Ship(ship) => reply(router.call_member(member, ship, PATIENCE).await),
            MemberMessage::AwaitSync(wait) => {
                reply(router.call_member(member, wait, PATIENCE).await)
            }
            MemberMessage::Copy(part) => {
                let result = router.call_member(member, part.as_ref(), PATIENCE).await;
                Event::CopyReply { member, number, result }
            }
        };
        if let Event::MemberReply { result, .. } = &event {
            shell.membership.note_reply(member, result);
        }
        match event {
            // This target was deposed, so it must neither continue in its role nor reply to a
            // client.
            Event::MemberReply { result: Err(error), .. }
            | Event::CopyReply { result: Err(error), .. }
                if error.code() == ErrorCode::Deposed =>
            {
                shell.fail(error);
            }
            event => shell.put(event),
        }
    })
    .detach();
}

/// Adds the state of the group in the member mark `mark` to each `AskTakeOver` request in
/// `actions`. With this request, a member asks to take over, or reports that it may lack records.
pub(super) fn add_record(actions: &mut [Action], mark: &MemberMarkFile) {
    for action in actions {
        if let Action::AskTakeOver(request) = action {
            request.record = mark.record();
        }
    }
}

/// Notes, in the member mark of this target, each member about which `actions` has a request to
/// management. Management may carry out these requests after the end of this process. `version` is
/// the version of the state machine's cluster map when it made the requests. The caller must call
/// this method before it performs the actions.
pub(super) fn note_requests(
    shell: &Shell,
    actions: &[Action],
    version: MapVersion,
    mark: &mut MemberMarkFile,
) -> Result<()> {
    for action in actions {
        let (epoch, member) = match action {
            Action::ChangeGroup(it)
                if matches!(it.change, MemberChange::MarkInSync | MemberChange::Drop)
                    && !shell.membership.withholds(it, shell.is_stopping.get()) =>
            {
                (it.epoch, it.target)
            }
            Action::AskTakeOver(it) if !it.lacks_records && !shell.is_stopping.get() => {
                (it.epoch, it.target)
            }
            _ => continue,
        };
        mark.count(epoch, version, member)?;
    }
    Ok(())
}

/// Asks management for a change of the group whose primary is this target.
pub(super) fn change_group(shell: &Rc<Shell>, change: GroupChange) {
    let (membership, is_stopping) = (&shell.membership, shell.is_stopping.get());
    if membership.withholds(&change, is_stopping) || membership.is_changing.replace(true) {
        return;
    }
    let primary = shell.router.map().group(change.group).map(|it| it.primary).unwrap_or_default();
    let reason = membership.reason(&change, primary, is_stopping);
    let shell = Rc::clone(shell);
    skep_env::spawn(async move {
        let asked = async {
            let (sender, request) = (shell.router.sender()?, ChangeGroup { change });
            shell.management.call_once_as(sender, &request, MANAGEMENT_PATIENCE).await
        };
        match asked.await {
            Ok(_) => log_change(&change, primary, reason),
            Err(error) if error.code() == ErrorCode::Deposed => {
                // Another member is the primary now, so no operator needs to see this failure.
                let GroupChange { group, target, .. } = change;
                tracing::debug!("cannot change target {target} in group {group}: {error:#}");
                shell.fail(error);
            }
            Err(error) if error.code() == ErrorCode::StaleMap => {
                // The group has changed meanwhile. The primary decides again with the newer map.
                let GroupChange { group, target, .. } = change;
                tracing::debug!("cannot change target {target} in group {group} yet: {error:#}");
            }
            Err(error) => {
                if shell.membership.refused_changes.is_due(skep_env::now()) {
                    tracing::warn!("{}", refused(&change, primary, reason, &error));
                }
            }
        }
        shell.membership.is_changing.set(false);
    })
    .detach();
}

/// Logs a change of the group that management has made at the request of `primary`.
fn log_change(change: &GroupChange, primary: TargetId, reason: Reason) {
    let GroupChange { group, target, .. } = change;
    match (change.change, reason) {
        (MemberChange::Drop, Reason::Stops) => tracing::info!(
            "the service of target {target} stops: metadata group {group} continues without this \
             target, which catches up when it answers again"
        ),
        (MemberChange::Drop, Reason::DiskHangs) => tracing::warn!(
            "the disk of target {target} hangs, since it completes no sync: metadata group {group} \
             continues without this target, which serves again when its disk completes syncs; \
             check this disk"
        ),
        (MemberChange::Drop, Reason::Other) => tracing::warn!(
            "target {target} does not answer its primary: metadata group {group} continues without \
             this target, which catches up when it answers again"
        ),
        (MemberChange::HandOver, Reason::Stops) => tracing::info!(
            "the service of target {primary} stops: target {target} becomes the primary of \
             metadata group {group}"
        ),
        (MemberChange::HandOver, Reason::DiskHangs) => tracing::warn!(
            "the disk of target {primary} hangs, since it completes no sync: target {target} \
             becomes the primary of metadata group {group}; check the disk of target {primary}"
        ),
        (MemberChange::HandOver, Reason::Other) => tracing::warn!(
            "the disk of target {primary} is almost full: target {target} becomes the primary of \
             metadata group {group}; free up space on the disk of target {primary}"
        ),
        _ => tracing::info!(
            "target {target} has caught up, and becomes a serving member of metadata group {group}"
        ),
    }
}

/// Returns the log line for a change of the group that management has refused or has not replied
/// to, at the request of `primary`.
fn refused(change: &GroupChange, primary: TargetId, reason: Reason, error: &Error) -> String {
    let GroupChange { group, target, .. } = change;
    match (change.change, reason) {
        (MemberChange::Drop, Reason::Stops) => format!(
            "the service of target {target} stops, and management cannot remove the target from \
             the serving members of metadata group {group} yet: {error}; operations of the group \
             wait until the service runs again, or until management answers"
        ),
        (MemberChange::Drop, Reason::DiskHangs) => format!(
            "the disk of target {target} hangs, and management cannot remove the target from the \
             serving members of metadata group {group} yet: {error}; operations that need a sync \
             wait until the disk or management answers"
        ),
        (MemberChange::HandOver, Reason::DiskHangs) => format!(
            "the disk of target {primary} hangs, and management cannot make target {target} the \
             primary of metadata group {group} yet: {error}; operations that need a sync wait \
             until the disk or management answers"
        ),
        (MemberChange::Drop, Reason::Other) => format!(
            "target {target} does not answer its primary, and management cannot remove this target \
             from the serving members of metadata group {group} yet: {error}; operations of the \
             group wait; check the network of this host: if this network has failed, another \
             member may be the primary already"
        ),
        _ => format!(
            "management cannot change the state of target {target} in metadata group {group} yet: \
             {error}"
        ),
    }
}

/// Returns the log line about an `AskTakeOver` request of a member to management. `primary` is the
/// primary in the member's map.
fn take_over_line(request: &AskTakeOver, primary: TargetId) -> String {
    let AskTakeOver { group, target, lacks_records, .. } = request;
    if *lacks_records {
        return format!(
            "target {target} of metadata group {group} may lack log records that the target has \
             confirmed, as after a power loss: the target reports its last record to management, \
             which decides which member continues the group"
        );
    }
    if primary == *target {
        return format!(
            "target {target} asks management to confirm that it is the primary of metadata group \
             {group}"
        );
    }
    format!(
        "target {primary}, the primary of metadata group {group}, does not answer: target {target} \
         asks management to make target {target} the primary"
    )
}

/// Asks management to make this member the primary. Does nothing if the service stops or another
/// request about the group is in flight.
pub(super) fn ask_to_take_over(shell: &Rc<Shell>, request: AskTakeOver) {
    if shell.is_stopping.get() || shell.membership.is_changing.replace(true) {
        return;
    }
    let AskTakeOver { group, target, .. } = request;
    let primary = shell.router.map().group(group).map(|it| it.primary).unwrap_or_default();
    // A member repeats its report until the group changes, perhaps for hours. So limit the rate of
    // the log lines.
    if !request.lacks_records || shell.membership.loss_reports.is_due(skep_env::now()) {
        tracing::info!("{}", take_over_line(&request, primary));
    }
    let shell = Rc::clone(shell);
    skep_env::spawn(async move {
        let asked = shell.management.call_once(&request, MANAGEMENT_PATIENCE).await;
        if asked.is_ok() && request.lacks_records {
            shell.marks.note_report(request.epoch);
        }
        if let Err(error) = asked
            && shell.membership.refused_take_overs.is_due(skep_env::now())
        {
            tracing::warn!(
                "management has not made target {target} the primary of metadata group {group} \
                 yet: {error}; management may still do so later. Until then, each change in the \
                 group waits for a sync of the disk of target {target}. If target {primary} \
                 answers again and operations are slow, move the primary of the group with `skep \
                 group move`"
            );
        }
        shell.membership.is_changing.set(false);
    })
    .detach();
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{Epoch, GroupId, GroupRecord, Lsn, TargetId};

    #[test]
    fn stopping_primary_does_not_drop_stopping_members() {
        let (group, epoch, target) = (GroupId::new(5), Epoch::new(1), TargetId::new(2));
        let change = |change| GroupChange { group, epoch, change, target };
        let membership = MembershipState::default();
        assert!(!membership.withholds(&change(MemberChange::Drop), true), "the member is silent");
        membership.note_reply(target, &Err(ErrorCode::NotReady.into()));
        assert!(membership.withholds(&change(MemberChange::Drop), true));
        assert!(!membership.withholds(&change(MemberChange::Drop), false), "only the member stops");
        assert!(!membership.withholds(&change(MemberChange::MarkInSync), true));
        membership.note_reply(target, &Ok(LogHeld::default()));
        assert!(!membership.withholds(&change(MemberChange::Drop), true), "the member is back");
    }

    #[test]
    fn log_line_about_a_refused_drop_suggests_a_network_fault() {
        let (group, epoch, target) = (GroupId::new(5), Epoch::new(1), TargetId::new(2));
        let change = |change| GroupChange { group, epoch, change, target };
        let error = Error::new(ErrorCode::TimedOut, "management at 10.0.0.1:7400");
        let refused = |change, reason| refused(&change, TargetId::new(1), reason, &error);
        let line = refused(change(MemberChange::Drop), Reason::Other);
        for part in ["target t2", "group g5", "10.0.0.1:7400", "check the network of this host"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let stopped = refused(change(MemberChange::Drop), Reason::Stops);
        assert!(stopped.contains("the service of target t2 stops"), "{stopped}");
        let hangs = refused(change(MemberChange::Drop), Reason::DiskHangs);
        assert!(hangs.contains("the disk of target t2 hangs"), "{hangs}");
        let own = refused(change(MemberChange::HandOver), Reason::DiskHangs);
        assert!(own.contains("the disk of target t1 hangs"), "{own}");
        let other = refused(change(MemberChange::MarkInSync), Reason::Other);
        for line in [stopped, hangs, own, other] {
            assert!(!line.contains("network"), "{line}");
        }
    }

    #[test]
    fn reason_of_a_group_change_names_a_hanging_disk() {
        let (group, epoch) = (GroupId::new(5), Epoch::new(1));
        let (primary, target) = (TargetId::new(1), TargetId::new(2));
        let membership = MembershipState::default();
        let reason = |change, is_stopping| {
            membership.reason(&GroupChange { group, epoch, change, target }, primary, is_stopping)
        };
        let (dropped, moved) = (MemberChange::Drop, MemberChange::HandOver);
        assert_eq!(reason(dropped, false), Reason::Other);
        *membership.hanging.borrow_mut() = BTreeSet::from([target]);
        assert_eq!(
            (reason(dropped, false), reason(moved, false)),
            (Reason::DiskHangs, Reason::Other)
        );
        *membership.hanging.borrow_mut() = BTreeSet::from([primary]);
        assert_eq!(
            (reason(dropped, false), reason(moved, false)),
            (Reason::Other, Reason::DiskHangs)
        );
        assert_eq!(reason(moved, true), Reason::Stops);
        membership.note_reply(target, &Err(ErrorCode::NotReady.into()));
        assert_eq!(reason(dropped, false), Reason::Stops);
    }

    #[test]
    fn take_over_log_line_never_calls_the_asking_target_silent() {
        let (group, target) = (GroupId::new(5), TargetId::new(1));
        let (epoch, last_epoch, last) = (Epoch::new(9), Epoch::new(8), Lsn::default());
        let request = |lacks_records| AskTakeOver {
            group,
            epoch,
            target,
            lacks_records,
            last_epoch,
            last,
            record: GroupRecord::default(),
        };
        let other = take_over_line(&request(false), TargetId::new(2));
        assert!(other.contains("target t2, the primary of metadata group g5, does not"), "{other}");
        for own in [take_over_line(&request(false), target), take_over_line(&request(true), target)]
        {
            assert!(!own.contains("does not answer"), "{own}");
        }
    }
}

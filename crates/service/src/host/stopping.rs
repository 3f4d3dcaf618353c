//! The stop of the targets when the service ends.
//!
//! When the primary of a metadata group stops, it first hands over its group to another member.
//! Then the thread of the old primary ends with `Deposed`, as after each change of its role. The
//! node reopens the old primary as a backup member, and stops it in this role. A backup member that
//! stops releases the lease of the primary, so that the new primary need not wait for the end of
//! the lease. The node also reopens and stops a target whose role has changed just before the
//! signal.
//!
//! The module `targets` starts and watches the threads.

use super::TargetEvent;
use super::targets::{Report, RunningTarget, ServingNode};
use super::unserved::UnservedTarget;
use skep_env::Mailbox;
use skep_types::{ClusterMap, Error, ErrorCode, Result, TargetId};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for the targets to stop when the service ends. The targets need time to sync their
/// data, but service managers kill a process after 90 seconds.
const STOP_TIMEOUT: Duration = Duration::from_secs(80);

impl ServingNode {
    /// Stops all targets, and waits until their threads have ended.
    pub(super) async fn stop_targets(&self, inbox: &Mailbox<Report>) {
        self.is_stopping.set(true);
        let running: Vec<_> = self.running.borrow().iter().map(|it| it.target).collect();
        for target in running {
            self.send(target, TargetEvent::Stop);
        }
        // The node opens each target at most once, so that the stop ends even if roles change
        // often.
        let mut reopened = BTreeSet::new();
        for path in self.take_reopening() {
            reopened.extend(self.stop_in_new_role(&path));
        }
        let ending = async {
            while !self.running.borrow().is_empty() {
                if let Ok(Report::Ended(target, result)) = inbox.receive().await {
                    let ended = self.remove_ended(target);
                    self.on_stopped(&ended, result, &mut reopened);
                }
            }
        };
        if skep_env::timeout(STOP_TIMEOUT, ending).await.is_none() {
            let left: Vec<_> =
                self.running.borrow().iter().map(|it| it.target.to_string()).collect();
            tracing::error!(
                "target {} did not stop within {} s; this service ends nevertheless, and the next \
                 start of the service checks the last writes to the target",
                left.join(", target "),
                STOP_TIMEOUT.as_secs()
            );
        }
    }

    /// Some unserved targets only wait until the node opens them in their new role. Removes these
    /// targets from the list of unserved targets, and returns their directories.
    fn take_reopening(&self) -> Vec<PathBuf> {
        let mut unserved = self.unserved.borrow_mut();
        let all = std::mem::take(&mut *unserved);
        let (reopening, left): (Vec<_>, Vec<_>) =
            all.into_iter().partition(UnservedTarget::is_reopening);
        *unserved = left;
        reopening.into_iter().map(|it| it.path).collect()
    }

    /// Handles the end of a target's thread. If the role of the target has changed, reopens the
    /// target. `reopened` are the targets that this service has already reopened while it stops.
    fn on_stopped(
        &self,
        ended: &RunningTarget,
        result: Result<()>,
        reopened: &mut BTreeSet<TargetId>,
    ) {
        let Err(error) = result else { return };
        let target = ended.target;
        if error.code() != ErrorCode::Deposed {
            tracing::error!("target {target} stopped with an error: {error}");
        } else if ended.is_leaving.get() || !reopened.insert(target) {
            tracing::info!("target {target} stopped: {error}");
        } else {
            self.stop_in_new_role(&ended.path);
        }
    }

    /// Opens a target whose role has changed, and stops it in its new role. Returns the target. If
    /// the target cannot be opened, logs the error and returns `None`.
    fn stop_in_new_role(&self, path: &Path) -> Option<TargetId> {
        let opened = self.host.open_target(path, &self.node.borrow()).and_then(|directory| {
            let target = directory.identity().target;
            self.start_thread(directory, None)?;
            Ok(target)
        });
        match opened {
            Ok(target) => {
                let map = self.membership.map_cell().load();
                tracing::info!("{}", stop_line(&map, target));
                self.send(target, TargetEvent::Stop);
                Some(target)
            }
            Err(error) => {
                log_failure(path, &error);
                None
            }
        }
    }
}

/// Returns the log line about a target that stops in its new role.
fn stop_line(map: &ClusterMap, target: TargetId) -> String {
    match map.group_of(target) {
        Some(group) if group.primary != target => format!(
            "group {} continues with target {} as its primary, and target {target} stops",
            group.id, group.primary
        ),
        Some(group) => format!("target {target}, the primary of group {}, stops", group.id),
        None => format!("target {target} has left its group, and stops"),
    }
}

fn log_failure(path: &Path, error: &Error) {
    tracing::warn!(
        "cannot stop the target in {} in its new role, since this service cannot reopen the target \
         after the change of the role: {error}; operations of the group may wait for a few seconds",
        path.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_types::{ClusterId, Group, GroupId, GroupMember, MemberState, TargetKind};

    #[test]
    fn log_line_of_a_stopping_target_names_the_new_primary() {
        let (old, new) = (TargetId::new(1), TargetId::new(2));
        let mut map = ClusterMap::empty(ClusterId::default());
        let mut group = Group::of_one(GroupId::new(7), TargetKind::Metadata, new);
        group.members.push(GroupMember { target: old, state: MemberState::Serving });
        map.groups.push(group);
        let line = stop_line(&map, old);
        assert_eq!(line, "group g7 continues with target t2 as its primary, and target t1 stops");
        assert!(stop_line(&map, new).contains("the primary of group g7, stops"));
        assert!(stop_line(&map, TargetId::new(3)).contains("has left its group"));
    }
}

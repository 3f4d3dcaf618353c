//! Ends a mount: sends its last reports to metadata, makes its changes there durable, closes its
//! sessions, and leaves the cluster.

use crate::client::Client;
use crate::files::sync::is_gone;
use crate::inode_state::InodeState;
use crate::limits::SHUTDOWN_PATIENCE;
use crate::session::request::ModifyOptions;
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, InodeId, Result, SessionId};
use skep_wire::metadata::{CloseSession, SyncAll};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// The beginning of the error of [`Client::shutdown`]. `skep umount` finds it in the log of a
/// mount.
pub const UNCONFIRMED: &str =
    "metadata has not confirmed the last writes and changes of this mount: ";

/// Maximum number of files that the error of [`Client::shutdown`] names.
const NAMED_FILES: usize = 10;

impl Client {
    /// Ends the mount: sends all outstanding reports to metadata, makes the changes at metadata
    /// durable, closes the sessions with all their open files, and leaves the cluster. If a server
    /// does not reply within `SHUTDOWN_PATIENCE`, the session or registration at this server ends
    /// when its lease runs out.
    ///
    /// # Errors
    /// Returns `Io` with [`UNCONFIRMED`] if metadata has not confirmed all reports and changes. The
    /// context names the files, and counts the changes. The mount has ended nevertheless.
    pub async fn shutdown(&self) -> Result<()> {
        if !self.mount().member.begin_leave() {
            return Ok(());
        }
        // A close that waits for a move of inline bytes (`Client::await_move`) or for an abandoned
        // write must end its wait now.
        self.mount().inodes.all().iter().for_each(|state| state.wake_waiting());
        // If `SHUTDOWN_PATIENCE` ends first, `unconfirmed` returns an error for the reports and
        // changes that metadata has not confirmed.
        skep_env::timeout(SHUTDOWN_PATIENCE, self.report_to_groups()).await;
        let unconfirmed = self.unconfirmed();
        // If a copy of inline bytes (`data::move_inline`) or an append may still be on its way to
        // storage, do not close the sessions. The sessions end when management removes this client
        // from the cluster map, and storage then refuses its requests. No move or append begins
        // after this check, because the mount is leaving. A move or append whose thread has ended
        // counts as in progress.
        let is_changing =
            |state: &Arc<InodeState>| state.is_moving_inline() || state.is_appending();
        let sessions = match self.mount().inodes.all().iter().any(is_changing) {
            true => Vec::new(),
            false => self.mount().sessions.open_sessions(),
        };
        let tasks: Vec<_> = sessions
            .into_iter()
            .map(|(group, session)| {
                let worker = Rc::clone(&self.0);
                skep_env::spawn(async move {
                    let time_left = Some(SHUTDOWN_PATIENCE);
                    let options = CallOptions { session, time_left, ..CallOptions::default() };
                    let closed = worker.router.call(group, &CloseSession {}, options).await;
                    if let Err(error) = closed {
                        tracing::debug!(
                            "cannot close session {session} at group {group}: {error:#}"
                        );
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        // The `Leave` request has its own time limit, but that limit does not include the time to
        // connect. So the `timeout` here is also necessary.
        skep_env::timeout(SHUTDOWN_PATIENCE, self.mount().member.leave()).await;
        unconfirmed.map_or(Ok(()), Err)
    }

    /// Sends all outstanding reports and closes to metadata, and makes all changes durable. A group
    /// that does not reply does not prevent that other groups confirm their changes.
    async fn report_to_groups(&self) {
        let client = self.clone();
        // Begin to sync the changes before the reports, because a report may wait for a storage
        // target.
        let settling = skep_env::spawn(async move { client.settle_changes(None).await });
        let mut states: HashMap<GroupId, Vec<_>> = HashMap::new();
        for state in self.mount().inodes.all() {
            if let Ok(group) = self.group_of(state.id) {
                states.entry(group).or_default().push(state);
            }
        }
        let groups = self.metadata_groups().into_iter().map(|group| {
            let (client, states) = (self.clone(), states.remove(&group).unwrap_or_default());
            skep_env::spawn(async move { client.report_to_group(group, &states).await })
        });
        for task in groups.collect::<Vec<_>>() {
            task.await;
        }
        settling.await;
    }

    /// Sends the outstanding reports and closes to one metadata group, and makes them durable.
    /// `states` are the inodes of the group that may have unreported writes.
    async fn report_to_group(&self, group: GroupId, states: &[Arc<InodeState>]) {
        for state in states {
            self.report_at_end(state).await;
        }
        self.close_waiting_everywhere(group).await;
        self.settle_changes(Some(group)).await;
    }

    /// Reports the writes to a file that metadata does not have yet.
    async fn report_at_end(&self, state: &Arc<InodeState>) {
        let Err(error) = self.report_written(state, ModifyOptions::default()).await else { return };
        // A file that was removed, for example while the session of this mount was lost, has no
        // size that a program could read later. So the unmount reports no error for it.
        if is_gone(&error) && self.is_removed(state.id).await {
            state.forget_unreported();
            return;
        }
        tracing::error!(
            "cannot report the last writes to file {} to metadata at the unmount: {error}; \
             metadata asks storage for the size of the file when the session of this mount has \
             ended",
            state.id
        );
    }

    /// Returns the error for the writes and changes that metadata has not confirmed. `None` means
    /// that metadata has confirmed all of them.
    fn unconfirmed(&self) -> Option<Error> {
        let mount = self.mount();
        let unreported = mount.inodes.all().into_iter().filter(|it| it.unreported().is_some());
        let files: Vec<_> = unreported.map(|state| state.id).collect();
        let text = unconfirmed_text(&files, &mount.sessions.changes.unsettled(skep_env::now()))?;
        Some(Error::new(ErrorCode::Io, text))
    }

    /// Makes the acknowledged changes of the mount durable. After the end of the mount, no client
    /// would repeat these changes if metadata lost them in a power loss. First repeats the changes
    /// that an earlier power loss has reverted. `only` selects one metadata group; `None` means all
    /// groups.
    async fn settle_changes(&self, only: Option<GroupId>) {
        let sessions = &self.mount().sessions;
        let mut open = sessions.open_sessions();
        open.retain(|(group, _)| only.is_none_or(|it| it == *group));
        let is_unsettled =
            |(group, id): &(GroupId, SessionId)| sessions.changes.may_be_unsynced(*group, *id);
        let unsettled = open.into_iter().filter(is_unsettled);
        let tasks: Vec<_> = unsettled
            .map(|(group, session)| {
                let client = self.clone();
                skep_env::spawn(async move { client.settle_group(group, session).await })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }

    /// Makes the changes of one session durable, including the changes that the mount has repeated
    /// after a start of the target.
    async fn settle_group(&self, group: GroupId, session: SessionId) {
        let changes = &self.mount().sessions.changes;
        while changes.may_be_unsynced(group, session) {
            let attempt = changes.attempt(group, session);
            let options = CallOptions { session, durable: true, ..CallOptions::default() };
            if let Err(error) = self.ask_group(group, &SyncAll {}, options).await {
                // `unconfirmed` later returns the error for these changes, so this function only
                // logs.
                tracing::warn!(
                    "cannot make the last changes at metadata group {group} durable at the \
                     unmount: {error}"
                );
                return;
            }
            changes.synced(group, attempt);
        }
    }
}

/// Returns the text of the error for unconfirmed writes and changes. `files` have unreported
/// writes, and `changes` are the numbers of unconfirmed changes at the metadata groups. Returns
/// `None` if both are empty.
fn unconfirmed_text(files: &[InodeId], changes: &[(GroupId, usize)]) -> Option<String> {
    let mut parts = Vec::new();
    for (group, count) in changes {
        parts.push(format!(
            "{count} acknowledged changes at metadata group {group} may not be durable, and are \
             lost if its host has lost power"
        ));
    }
    if !files.is_empty() {
        let mut names: Vec<_> = files.iter().take(NAMED_FILES).map(InodeId::to_string).collect();
        if files.len() > NAMED_FILES {
            names.push(format!("and {} more", files.len() - NAMED_FILES));
        }
        parts.push(format!(
            "the last sizes and times of {} are missing (inodes {}), so metadata asks storage for \
             the sizes when the session of this mount has ended",
            if files.len() == 1 { "1 file".into() } else { format!("{} files", files.len()) },
            names.join(", ")
        ));
    }
    (!parts.is_empty()).then(|| format!("{UNCONFIRMED}{}", parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmount_error_counts_unconfirmed_changes_and_names_files() {
        assert_eq!(unconfirmed_text(&[], &[]), None);
        let text = unconfirmed_text(&[], &[(GroupId::new(3), 7)]).unwrap();
        assert!(text.starts_with(UNCONFIRMED) && text.contains("7 acknowledged"), "{text}");
        assert!(text.contains("group g3") && !text.contains("inodes"), "{text}");
        let files: Vec<_> = (1..=12).map(InodeId::new).collect();
        let text = unconfirmed_text(&files, &[]).unwrap();
        let first = format!("12 files are missing (inodes {}, ", files[0]);
        assert!(text.contains(&first) && text.contains(", and 2 more)"), "{text}");
    }
}

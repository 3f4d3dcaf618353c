//! Waits for sharing notifications from metadata, and handles them.
//! `docs/design/0008-shared-files.md` describes the effect of a notification.
//!
//! One task for each session waits for notifications. These tasks run on the thread of the mount's
//! background work, so that worker threads have no requests that may wait for hours.

use crate::client::Client;
use crate::files::sync::is_gone;
use crate::inode_state::InodeState;
use crate::limits::{KERNEL_CLOSE_WAIT, NOTIFICATIONS_PAUSE, SHARED_REPORT_WAIT};
use crate::session::request::ModifyOptions;
use crate::session::table::is_lost;
use skep_env::Mailbox;
use skep_env::local::Notify;
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, Result, SessionId};
use skep_wire::limits::MAX_NOTIFICATIONS;
use skep_wire::sharing::{AcknowledgeNotifications, Notification, WaitNotifications};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of new sessions that wait in the mailbox for the background task. A mount never
/// opens this number of sessions before the task reads them, so the mailbox never overflows.
const MAX_FOLLOWED: usize = 1 << 16;

/// Waits for notifications in every session of the mount, until the calling task is cancelled.
pub(crate) async fn follow_sessions(client: Client) {
    let (sender, mailbox) = match Mailbox::new(MAX_FOLLOWED) {
        Ok(both) => both,
        Err(error) => return log_end(&error),
    };
    client.mount().notifications.set_follower(sender);
    let followed = Rc::new(RefCell::new(HashSet::new()));
    loop {
        let (group, session) = match mailbox.receive().await {
            Ok(opened) => opened,
            Err(error) => return log_end(&error),
        };
        // Two threads may have opened the same session and sent it to the mailbox. Follow it only
        // once.
        if !followed.borrow_mut().insert(session) {
            continue;
        }
        let (client, followed) = (client.clone(), Rc::clone(&followed));
        skep_env::spawn(async move {
            client.follow_session(group, session).await;
            followed.borrow_mut().remove(&session);
        })
        .detach();
    }
}

fn log_end(error: &std::io::Error) {
    tracing::error!(
        "this mount gets no notifications that files become shared: {error}; other mounts wait \
         when they open a file that this mount has open; unmount this mount, and mount again"
    );
}

impl Client {
    async fn follow_session(&self, group: GroupId, session: SessionId) {
        let in_progress = Rc::new(RefCell::new(BTreeSet::new()));
        let ended = Rc::new(Notify::default());
        while self.mount().sessions.is_current(group, session) && !self.mount().is_ending() {
            let known: Vec<_> = in_progress.borrow().iter().copied().collect();
            if known.len() >= MAX_NOTIFICATIONS {
                ended.wait().await;
                continue;
            }
            let options = CallOptions { session, ..CallOptions::default() };
            let notifications =
                match self.router().call(group, &WaitNotifications { known }, options).await {
                    Ok((reply, _)) => reply.notifications,
                    Err(error) if is_lost(&error) && !self.mount().is_ending() => {
                        return self.renew_session(group, session, &error).await;
                    }
                    Err(error) => {
                        tracing::debug!(
                            "session {session}: cannot wait for notifications: {error:#}"
                        );
                        skep_env::sleep(NOTIFICATIONS_PAUSE).await;
                        continue;
                    }
                };
            for notification in notifications {
                in_progress.borrow_mut().insert(notification.number);
                let (client, in_progress) = (self.clone(), Rc::clone(&in_progress));
                let ended = Rc::clone(&ended);
                skep_env::spawn(async move {
                    client.handle_notification((group, session), notification).await;
                    in_progress.borrow_mut().remove(&notification.number);
                    ended.notify();
                })
                .detach();
            }
        }
    }

    /// Handles a notification and acknowledges it.
    async fn handle_notification(
        &self,
        (group, session): (GroupId, SessionId),
        notification: Notification,
    ) {
        let mount = self.mount();
        mount.notifications.recent.note(notification.inode);
        if let Some(state) = mount.inodes.get(notification.inode) {
            let is_shared = self.share_reported(&state, (group, session)).await;
            if !is_shared || !self.report_inline_end(&state, (group, session)).await {
                return;
            }
        }
        let request = AcknowledgeNotifications { numbers: vec![notification.number] };
        let options = CallOptions { session, ..CallOptions::default() };
        if let Err(error) = self.router().call(group, &request, options).await {
            tracing::debug!("cannot acknowledge notification {}: {error:#}", notification.number);
        }
    }

    /// Marks a file as shared, and reports the end of this mount's writes to metadata. After a
    /// failed report, tries again as long as this mount has the file open. Without the report, the
    /// other client would get a smaller size, and its appends would overwrite acknowledged bytes.
    /// Returns `false` if the mount or the session of the notification (`session`) ends first. The
    /// caller then acknowledges nothing.
    ///
    /// # Hazard: two mounts that wait for each other
    /// This mount may be renewing its session. The renewal may wait for an acknowledgement of
    /// another mount, which waits for an acknowledgement of this mount. So this function does not
    /// try again after `TimedOut`.
    async fn share_reported(&self, state: &Arc<InodeState>, session: (GroupId, SessionId)) -> bool {
        let mut is_logged = false;
        // Retry: reports the end again after a pause, until metadata has recorded it or this mount
        // has closed the file.
        while self.is_acknowledgement_awaited(session) {
            let Err(error) = self.begin_to_share(state).await else { return true };
            let has_timed_out = error.code() == ErrorCode::TimedOut;
            if has_timed_out || is_gone(&error) || !state.has_unconfirmed_writes() {
                tracing::debug!(
                    "file {}: cannot handle the notification that the file is shared: {error:#}",
                    state.id
                );
                return true;
            }
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(
                    "file {}: another mount waits for its open of this file, because this mount \
                     cannot report the end of its writes, and tries again: {error}",
                    state.id
                );
            }
            skep_env::sleep(NOTIFICATIONS_PAUSE).await;
        }
        false
    }

    /// Makes the end of a file's inline component durable at metadata, if this mount has ended it.
    /// Tries again until metadata has executed or refused the report, since the client that waits
    /// for the acknowledgement of the notification must not use inline bytes. An earlier reply to
    /// the report is not enough, because a power loss may have reverted the report since. Returns
    /// `false` if the mount or the session of the notification (`session`) ends first. The caller
    /// then acknowledges nothing, and metadata ends the component when it closes the files of the
    /// session.
    async fn report_inline_end(
        &self,
        state: &Arc<InodeState>,
        session: (GroupId, SessionId),
    ) -> bool {
        while state.ending_inline().is_some() && self.is_acknowledgement_awaited(session) {
            match self.confirm_inline_end(state).await {
                Ok(()) => {}
                Err(error) if is_gone(&error) => return true,
                Err(error) => {
                    tracing::debug!(
                        "file {}: cannot report the end of its inline component: {error:#}",
                        state.id
                    );
                }
            }
            if state.ending_inline().is_some() {
                skep_env::sleep(NOTIFICATIONS_PAUSE).await;
            }
        }
        state.ending_inline().is_none()
    }

    /// Returns whether this mount still has the session of a notification, and is not ending. If
    /// both are true, metadata waits for the acknowledgement of the notification.
    fn is_acknowledgement_awaited(&self, (group, session): (GroupId, SessionId)) -> bool {
        let mount = self.mount();
        mount.sessions.is_current(group, session) && !mount.is_ending()
    }

    async fn begin_to_share(&self, state: &Arc<InodeState>) -> Result<()> {
        // If this mount is closing the file, wait until metadata has executed the close. After the
        // close the file is no longer shared.
        let life = state.life();
        let closed = state.wait_until(|| (!state.is_being_closed()).then_some(()));
        skep_env::timeout(KERNEL_CLOSE_WAIT, closed).await;
        // If this mount has closed the file and opened it again meanwhile, ignore this
        // notification: the reply to the new open has shown whether the file is shared.
        if state.life().is_none() || state.life() != life {
            return Ok(());
        }
        let was_shared = state.is_shared();
        self.mount().share(state);
        // Operations that began before the file was shared assume that no other client changes the
        // size of the file. This mount must not acknowledge the notification before these
        // operations have ended.
        state.wait_until(|| (!state.is_used_alone()).then_some(())).await;
        if was_shared {
            self.wait_for_renewal(state).await?;
        }
        // Other clients must write the first bytes of the file to the same place as this mount.
        // They would write these bytes to metadata if metadata has not recorded the end of the
        // inline component, or if a power loss of metadata has reverted this end.
        let confirmed = self.confirm_inline_end(state).await;
        let has_size = was_shared && !state.has_unconfirmed_writes();
        let reporting = self.report_written(state, ModifyOptions::default());
        let reported = match has_size {
            true => skep_env::timeout(SHARED_REPORT_WAIT, reporting).await.unwrap_or_else(|| {
                let text = "cannot report the changes of this mount yet: metadata has not executed \
                            the report";
                Err(Error::new(ErrorCode::TimedOut, text))
            }),
            false => reporting.await,
        };
        reported.and(confirmed)
    }

    /// Waits a limited time until this mount has renewed its session, so that it can report the
    /// writes to a file that was shared before. The renewal opens other shared files again, and may
    /// wait for a mount whose own renewal waits for this acknowledgement.
    ///
    /// # Errors
    /// Returns `TimedOut` if the renewal takes longer than this time.
    async fn wait_for_renewal(&self, state: &InodeState) -> Result<()> {
        let group = self.group_of(state.id)?;
        let renewed = self.mount().sessions.await_renewal(group);
        skep_env::timeout(SHARED_REPORT_WAIT, renewed).await.ok_or_else(|| {
            let text = format!(
                "cannot use the session at group {group} yet: the mount is still renewing this \
                 session"
            );
            Error::new(ErrorCode::TimedOut, text)
        })
    }
}

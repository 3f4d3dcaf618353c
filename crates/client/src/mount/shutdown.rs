//! Ends a mount: sends its last reports to metadata, makes its changes there durable, closes its
//! sessions, and leaves the cluster.

use crate::client::Client;
use crate::limits::SHUTDOWN_PATIENCE;
use crate::session::request::ModifyOptions;
use skep_rpc::CallOptions;
use skep_wire::metadata::{CloseSession, SyncAll};
use std::rc::Rc;

impl Client {
    /// Ends the mount: sends all outstanding reports to metadata, makes the changes at metadata
    /// durable, closes the sessions with all their open files, and leaves the cluster. If a server
    /// does not reply within `SHUTDOWN_PATIENCE`, the session or registration at this server ends
    /// when its lease runs out.
    pub async fn shutdown(&self) {
        if !self.mount().member.begin_leave() {
            return;
        }
        // A close that waits for a move of inline bytes must end now (`Client::await_move`).
        self.mount().inodes.all().iter().for_each(|state| state.wake_waiting());
        let report = async {
            for state in self.mount().inodes.all() {
                if let Err(error) = self.report_written(&state, ModifyOptions::default()).await {
                    tracing::error!(
                        "cannot report the last writes to file {} to metadata at the unmount: \
                         {error}; metadata asks storage for the size of the file when the session \
                         of this mount has ended",
                        state.id
                    );
                }
            }
            self.close_waiting_everywhere().await;
            self.settle_changes().await;
        };
        if skep_env::timeout(SHUTDOWN_PATIENCE, report).await.is_none() {
            tracing::error!(
                "cannot report the last writes at the unmount, or cannot make the last changes \
                 durable, since metadata has not replied for {} s; metadata asks storage for the \
                 sizes of the written files when the session of this mount has ended",
                SHUTDOWN_PATIENCE.as_secs()
            );
        }
        // If a copy of inline bytes may still be on its way to storage (`data::move_inline`), do
        // not close the sessions. The sessions end when management removes this client from the
        // cluster map, and storage then refuses its requests. No move begins after this check,
        // because the mount is leaving. A move whose thread has ended counts as in progress.
        let is_moving = self.mount().inodes.all().iter().any(|state| state.is_moving_inline());
        let sessions = match is_moving {
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
        // connect. So this timeout is also necessary.
        skep_env::timeout(SHUTDOWN_PATIENCE, self.mount().member.leave()).await;
    }

    /// Makes the acknowledged changes of the mount durable, because no client repeats them after a
    /// power loss of metadata when the mount has ended. First repeats the changes that an earlier
    /// power loss has reverted.
    async fn settle_changes(&self) {
        let sessions = &self.mount().sessions;
        let open = sessions.open_sessions().into_iter();
        let unsettled = open.filter(|(group, id)| sessions.changes.may_be_unsynced(*group, *id));
        let tasks: Vec<_> = unsettled
            .map(|(group, session)| {
                let client = self.clone();
                skep_env::spawn(async move {
                    let options = CallOptions { session, durable: true, ..CallOptions::default() };
                    if let Err(error) = client.ask_group(group, &SyncAll {}, options).await {
                        tracing::error!(
                            "cannot make the last changes at metadata group {group} durable at the \
                             unmount: {error}"
                        );
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }
}

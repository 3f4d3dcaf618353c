//! Deferred reports of the times of a file. If an `fsync` follows a write within the size of the
//! file, only the times have changed. The mount reports the times a moment later, once for many
//! writes, and no caller waits. Without this delay, metadata would execute one more transaction for
//! each `fsync` of a database.
//!
//! Before the mount releases a lock, it reports the times, and the program waits for this report.
//! If a program releases its locks between two calls of `fsync`, as databases do, the mount sends
//! the report while storage syncs the data. At the release, the mount then has nothing to report.
//!
//! `report` sends the report itself.

use crate::client::Client;
use crate::inode_state::InodeState;
use crate::inode_state::guards::TimesChangeGuard;
use crate::limits::TIMES_DELAY;
use crate::session::request::ModifyOptions;
use std::sync::Arc;

impl Client {
    /// Reports the times of a file to metadata after [`TIMES_DELAY`], if there is anything to
    /// report and no other task has planned the same report.
    pub(crate) fn report_later(&self, state: &Arc<InodeState>) {
        if state.unreported().is_none() || !state.plan_times_report() {
            return;
        }
        let (client, state) = (self.clone(), Arc::clone(state));
        skep_env::spawn(async move {
            skep_env::sleep(TIMES_DELAY).await;
            let Some(_reporting) = state.begin_times_report() else { return };
            // An error is only logged, because the close of the file then reports the times.
            if let Err(error) = client.report_written(&state, ModifyOptions::default()).await {
                tracing::debug!("file {}: cannot report the times: {error:#}", state.id);
            }
        })
        .detach();
    }

    /// Begins to report the times of a file, if there is anything to report and a program has
    /// released a lock of the file since the last `fsync`. Does not wait for the report. The caller
    /// syncs the data of the file meanwhile, for an `fsync`.
    pub(crate) fn report_beside_sync(&self, state: &Arc<InodeState>) {
        if !state.take_release() || state.unreported().is_none() {
            return;
        }
        let Some(reporting) = state.try_report_times() else { return };
        let (client, state) = (self.clone(), Arc::clone(state));
        skep_env::spawn(async move {
            let _reporting = reporting;
            let how = ModifyOptions { is_driven: true, ..ModifyOptions::default() };
            // An error is only logged, because the release of the lock then reports the times.
            if let Err(error) = client.report_written(&state, how).await {
                tracing::debug!("file {}: cannot report the times: {error:#}", state.id);
            }
        })
        .detach();
    }

    /// Begins a change of a file's times, a close, or the release of a lock. Waits for the end of a
    /// report of the times in progress: a deferred report, or one of an `fsync` or a `stat`. Until
    /// the caller drops the guard, no such report begins.
    pub(crate) async fn change_times(&self, state: &Arc<InodeState>) -> TimesChangeGuard {
        let changing = state.change_times();
        if state.is_reporting_times() {
            state.wait_until(|| (!state.is_reporting_times()).then_some(())).await;
        }
        changing
    }
}

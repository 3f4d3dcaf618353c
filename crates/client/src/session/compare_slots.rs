//! After a start of a metadata target: finds the acknowledged changes that a power loss has
//! reverted, and reports them, before the target executes further changes of the session.
//!
//! A program gets the error `EIO` once from its next `fsync`, or from its next change of a name or
//! of attributes that concerns an inode of a reverted change. That change is not sent. Otherwise it
//! could destroy what is left: for example, if `link(a, b)` is reverted, `unlink(a)` removes the
//! last name of a file.
//!
//! Does not own the list of changes (`acknowledged`), nor opens (`restore_opens`).

use crate::client::Client;
use crate::session::acknowledged::{Change, inodes_of, names_of};
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, Result, SessionId};
use skep_wire::metadata::{CompareSlots, Lookup};
use std::any::Any;

/// Most reverted changes of one comparison that the log names one by one.
const NAMED_CHANGES: usize = 100;

impl Client {
    /// Compares the acknowledged changes of a session with the slots of the target, and reports the
    /// lost changes. From then on requests name the present start of the target.
    ///
    /// # Errors
    /// Returns the error of the group, for example if it has ended the session.
    pub(crate) async fn compare_slots(&self, group: GroupId, id: SessionId) -> Result<()> {
        let options = CallOptions { session: id, ..CallOptions::default() };
        let (reply, _) = self.router().call(group, &CompareSlots {}, options).await?;
        let lost = self.mount().sessions.changes.compare(group, id, &reply);
        let replaced = || Error::new(ErrorCode::StaleSession, "another session replaces it");
        self.report_reverted(group, &lost.ok_or_else(replaced)?);
        Ok(())
    }

    fn report_reverted(&self, group: GroupId, lost: &[Change]) {
        for Change { request, inodes, .. } in lost.iter().take(NAMED_CHANGES) {
            tracing::error!(
                "a power loss has reverted an acknowledged {request} of inodes {} and {} at the \
                 metadata target of group {group}; the next fsync or change of them fails once",
                inodes[0],
                inodes[1]
            );
        }
        if lost.len() > NAMED_CHANGES {
            tracing::error!(
                "the same power loss has reverted {} further changes",
                lost.len() - NAMED_CHANGES
            );
        }
        for inode in lost.iter().flat_map(|it| it.inodes) {
            if let Some(state) = self.mount().inodes.get(inode) {
                state.change_reverted();
            }
        }
    }

    /// Refuses a change that concerns an inode with reverted changes, once.
    ///
    /// # Errors
    /// `Io`. The request was not sent.
    pub(crate) async fn check_reverted(&self, request: &dyn Any) -> Result<()> {
        let Some(named) = inodes_of(request) else { return Ok(()) };
        let mut inodes = named.to_vec();
        for (directory, name) in names_of(request) {
            // A name that does not exist concerns no other inode.
            if let Ok(found) = self.ask(directory, &Lookup { directory, name }).await {
                inodes.push(found.inode);
            }
        }
        if !self.mount().sessions.changes.take_reverted(&inodes) {
            return Ok(());
        }
        let text = format!(
            "this change was not made: a power loss of a metadata host has reverted an earlier \
             change of inode {} or of an inode that it concerns; check the state, and repeat the \
             changes",
            named[0]
        );
        Err(Error::new(ErrorCode::Io, text))
    }
}

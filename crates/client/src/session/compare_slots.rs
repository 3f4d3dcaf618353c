//! After a start of a metadata target, finds the acknowledged changes that a power loss has
//! reverted, and begins their replay (`replay`). Reports the changes that stay lost before the
//! target executes further changes of the session.
//!
//! For each inode of a change that stays lost, a program gets the error `EIO` once: from the next
//! `fsync` of the inode, or from the next change of a name or of attributes that concerns the
//! inode. The client does not send the change that gets the error, because this change could
//! destroy data. For example, if `link(a, b)` stays lost, `unlink(a)` removes the last name of a
//! file.
//!
//! `acknowledged` has the list of changes. `restore_opens` compares the opens.

use crate::client::Client;
use crate::session::acknowledged::{Change, Compared};
use crate::session::kept_requests::{inodes_of, names_of};
use skep_rpc::CallOptions;
use skep_types::{Error, ErrorCode, GroupId, Result, SessionId};
use skep_wire::inline::RemoveInline;
use skep_wire::metadata::{CompareSlots, CompareSlotsReply, Lookup};
use std::any::Any;

/// Maximum number of reverted changes that the log lists one by one after a comparison.
const NAMED_CHANGES: usize = 100;

impl Client {
    /// Compares the acknowledged changes of a session with the slots of the target, and replays the
    /// lost changes. Later requests contain the current start number of the target.
    ///
    /// # Errors
    /// Returns the error of the group, for example if it has ended the session.
    pub(crate) async fn compare_slots(&self, group: GroupId, id: SessionId) -> Result<()> {
        let attempt = self.next_attempt(group, id).await;
        let reply = self.slots_of(group, id).await?;
        match self.mount().sessions.changes.compare(group, attempt, &reply) {
            Some(Compared::Now) => self.begin_replay(group, id, Vec::new()),
            Some(Compared::Before) => {}
            None => return Err(replaced(group, id)),
        }
        // Another thread may be replaying changes, so wait until this replay has ended.
        self.next_attempt(group, id).await;
        Ok(())
    }

    /// Compares the changes of a session again, because the target has started again during a
    /// replay. Returns whether the target had executed the last replayed change, whose reply was
    /// lost.
    pub(super) async fn compare_again(&self, group: GroupId, id: SessionId) -> Result<bool> {
        let reply = self.slots_of(group, id).await?;
        let is_executed = self.mount().sessions.changes.compare_again(group, id, &reply);
        is_executed.ok_or_else(|| replaced(group, id))
    }

    async fn slots_of(&self, group: GroupId, id: SessionId) -> Result<CompareSlotsReply> {
        let options = CallOptions { session: id, ..CallOptions::default() };
        self.router().call(group, &CompareSlots {}, options).await.map(|(reply, _)| reply)
    }

    /// Reports acknowledged changes that stay lost.
    pub(super) fn report_reverted(&self, group: GroupId, lost: &[Change]) {
        let reported = lost.iter().filter_map(|it| Some((it.request, it.inodes?)));
        let reported: Vec<_> = reported.collect();
        for (request, inodes) in reported.iter().take(NAMED_CHANGES) {
            let [first, second] = inodes;
            let of = match first == second {
                true => format!("inode {first}"),
                false => format!("inodes {first} and {second}"),
            };
            tracing::error!(
                "a power loss has reverted an acknowledged {request} of {of} at the metadata \
                 target of group {group}, and this mount cannot repeat this change; the next fsync \
                 or change of {of} fails once"
            );
        }
        if reported.len() > NAMED_CHANGES {
            tracing::error!(
                "number of further changes that the same power loss has reverted: {}",
                reported.len() - NAMED_CHANGES
            );
        }
        self.mount().sessions.changes.revert(lost.iter());
        for inode in reported.iter().flat_map(|(_, inodes)| *inodes) {
            if let Some(state) = self.mount().inodes.get(inode) {
                state.change_reverted();
            }
        }
    }

    /// Refuses a change if it concerns an inode with reverted changes. Forgets the reverted changes
    /// of this inode, so that they cause only one error.
    ///
    /// # Errors
    /// Returns `Io` for such a change. The caller must not send the change then.
    pub(crate) async fn check_reverted(&self, request: &dyn Any) -> Result<()> {
        // The mount itself sends this request, so no program would get the error.
        if request.is::<RemoveInline>() {
            return Ok(());
        }
        let Some(named) = inodes_of(request) else { return Ok(()) };
        let mut inodes = named.to_vec();
        for (directory, name) in names_of(request) {
            // Ignore an error, because a name that does not exist refers to no inode.
            let lookup = Lookup { directory, name: name.clone() };
            if let Ok(found) = self.ask(directory, &lookup).await {
                inodes.push(found.inode);
            }
        }
        if !self.mount().sessions.changes.take_reverted(&inodes) {
            return Ok(());
        }
        let text = format!(
            "cannot change inode {}: a power loss of a metadata host has reverted an earlier \
             change of this inode or of another inode of the operation; check the state, and \
             repeat the lost changes",
            named[0]
        );
        Err(Error::new(ErrorCode::Io, text))
    }
}

/// Returns the error for a session that another session of the mount has replaced.
fn replaced(group: GroupId, id: SessionId) -> Error {
    let what = format!(
        "cannot check whether group {group} has lost changes of session {id}: this mount has \
         replaced the session, and continues its operations in a newer one"
    );
    Error::new(ErrorCode::StaleSession, what)
}

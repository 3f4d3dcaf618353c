//! Compares the replies that clients receive with the records in the logs and with the reference
//! model. `witness` reads the log records.

use super::{InstanceId, Violation, Witness};
use crate::client::is_lost;
use crate::known_sizes::ModelSize;
use crate::operation::{Op, Summary};
use skep_types::codec::Codec;
use skep_types::{Error, ErrorCode, InodeId};
use skep_wire::metadata as md;
use skep_wire::metadata::Outcome;
use std::collections::BTreeSet;

impl Witness {
    /// Returns the sizes that the file of an operation had at any moment of the operation's window.
    /// `None` means that the reply may show another size, because a target has lost log records
    /// since the request, or because the reply comes from a previous primary.
    pub(crate) fn sizes_in(&self, window: u64) -> Option<BTreeSet<ModelSize>> {
        let window = self.windows.get(&window).filter(|_| !self.is_blind)?;
        (!window.is_void && !window.is_of_former_primary).then(|| window.sizes.clone())
    }

    /// Checks the final reply to a request. `is_reply_lost` means that the target may have executed
    /// an earlier attempt whose reply was lost.
    ///
    /// # Errors
    /// Describes a wrong reply.
    pub(crate) fn check_answer(
        &mut self,
        window: u64,
        instance: Option<InstanceId>,
        result: &Result<Vec<u8>, Error>,
        is_reply_lost: bool,
    ) -> Result<(), Violation> {
        let Some(window) = self.windows.remove(&window) else { return Ok(()) };
        if self.is_blind {
            return Ok(());
        }
        let op = &window.op;
        if let Ok(reply) = result
            && let Some(attributes) = op.attributes(reply)
        {
            self.versions.check(&attributes, window.oldest_version)?;
        }
        if let (Op::Open(_), Ok(reply)) = (op, result)
            && let Ok(opened) = md::OpenReply::from_bytes(reply)
            && !window.has_right_bytes(&opened)
        {
            return Err(format!("{op:?} was answered with other inline bytes than the file had"));
        }
        if let Some(id) = instance {
            let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
            instance.answered = true;
            let result = result.as_ref().map(|reply| as_logged(op, reply));
            match (&result, &instance.committed) {
                (Ok(reply), Some((_, _, committed))) if reply == committed => return Ok(()),
                // The reply is correct, because it was in flight when a power loss reverted the
                // record.
                (Ok(reply), _) if !instance.is_durable && instance.lost.contains(reply) => {
                    return Ok(());
                }
                (Ok(_), Some(_)) => {
                    return Err(format!("{id:?} {op:?} got a reply that differs from its record"));
                }
                (Ok(_), None) => {
                    return Err(format!("{id:?} {op:?} was acknowledged and is not in a log"));
                }
                // The refusal is correct. The target may still execute an earlier attempt, so the
                // client asks for the outcome of that attempt.
                (Err(error), _) if is_lost(error) && is_reply_lost => {
                    instance.answered = false;
                    return Ok(());
                }
                (Err(error), committed) => {
                    instance.refused = true;
                    // The refusal is correct if the target has removed the stored reply of an
                    // earlier attempt together with the session.
                    if is_lost(error) {
                        return Ok(());
                    }
                    if committed.is_some() {
                        return Err(format!("{id:?} {op:?} was done and refused: {error}"));
                    }
                }
            }
        }
        let answer = match result {
            Ok(body) => {
                let summary = Summary::of_reply(op, body);
                Ok(summary.ok_or_else(|| format!("{op:?} has a malformed reply"))?)
            }
            Err(error) => Err(error.code()),
        };
        if self.has_seen_full_disks && op.adds() && answer == Err(ErrorCode::NoSpace) {
            return Ok(());
        }
        if window.is_of_former_primary || window.is_right(&answer) {
            return Ok(());
        }
        Err(format!(
            "{op:?} was answered {answer:?} ({result:?}); expected at some moment: {:?}",
            window.outcomes
        ))
    }

    /// Checks the reply to a sync of inline bytes. The reply reports that all writes are durable,
    /// or that some writes are lost.
    ///
    /// # Errors
    /// Describes a wrong report in the reply.
    pub(crate) fn check_inline_sync(
        &mut self,
        writes: &[InstanceId],
        is_lost: bool,
    ) -> Result<(), Violation> {
        if self.is_blind {
            return Ok(());
        }
        let missing = writes.iter().find(|id| !self.is_done(**id));
        match (missing, is_lost) {
            (Some(id), false) => {
                return Err(format!("the write {id:?} is lost and was reported as safe"));
            }
            (None, true) => {
                return Err(format!("{writes:?} are safe and were reported as partly lost"));
            }
            _ => {}
        }
        for id in writes.iter().filter(|_| !is_lost) {
            if let Some(instance) = self.instances.get_mut(id) {
                // The target has reported the write as durable, so no power loss may revert the
                // write.
                instance.is_durable = true;
            }
        }
        Ok(())
    }

    /// Checks a complete listing of a directory. `seen` contains the entries in the order in which
    /// the client received them.
    ///
    /// # Errors
    /// Describes a missing, repeated or wrong entry.
    pub(crate) fn check_listing(
        &mut self,
        window: u64,
        seen: &[(Vec<u8>, InodeId)],
    ) -> Result<(), Violation> {
        let is_blind = self.is_blind;
        let window = self.windows.remove(&window).filter(|it| !it.is_void && !is_blind);
        self.listings.count(window.is_some());
        let Some(window) = window else { return Ok(()) };
        let directory = window.op.home();
        let is_certain = |name: &[u8]| !self.staging.may_be_undone(directory, name);
        for (name, inode) in window.always.iter().filter(|(name, _)| is_certain(name)) {
            let times = seen.iter().filter(|it| *it == &(name.clone(), *inode)).count();
            if times != 1 {
                let name = name.escape_ascii();
                return Err(format!("{:?} returned \"{name}\" ({inode}) {times} times", window.op));
            }
        }
        let is_wrong = |entry: &&(Vec<u8>, InodeId)| !window.ever.contains(*entry);
        match seen.iter().find(|entry| is_wrong(entry) && is_certain(&entry.0)) {
            Some(entry) => Err(format!("{:?} returned {entry:?}, which never existed", window.op)),
            None => Ok(()),
        }
    }

    /// Checks the outcome that a target has reported for a request whose session has ended.
    ///
    /// # Errors
    /// Describes a wrong outcome.
    pub(crate) fn check_outcome(
        &mut self,
        id: InstanceId,
        outcome: &Outcome,
    ) -> Result<(), Violation> {
        let Some(instance) = self.instances.get_mut(&id).filter(|_| !self.is_blind) else {
            return Ok(());
        };
        let committed = instance.committed.as_ref().map(|it| &it.2);
        match outcome {
            Outcome::Executed { reply } => {
                // Accept an outcome that the target sent before a power loss reverted the record.
                let was_lost = !instance.is_durable && instance.lost.contains(&reply.0);
                if committed != Some(&reply.0) && !was_lost {
                    return Err(format!("{id:?} {:?} was reported as done, wrongly", instance.op));
                }
                (instance.answered, instance.refused) = (true, false);
            }
            Outcome::NotExecuted if committed.is_some() => {
                return Err(format!("{id:?} {:?} was reported as not done, wrongly", instance.op));
            }
            Outcome::NotExecuted | Outcome::Unknown => instance.refused = true,
        }
        Ok(())
    }
}

/// Returns a reply in the form that is stored in the record of its slot. The stored form has no
/// truncated chunk files, because the target adds these chunk files after storage has truncated
/// them. The stored form has neither bytes of the file nor attributes of the directory.
fn as_logged(op: &Op, reply: &[u8]) -> Vec<u8> {
    let (truncated, inline, directory) = (Vec::new(), None, None);
    let logged = match op {
        Op::Open(_) | Op::Create(_) => md::OpenReply::from_bytes(reply)
            .map(|reply| md::OpenReply { truncated, inline, directory, ..reply }.to_bytes()),
        Op::MakeDirectory(_) | Op::MakeSymlink(_) | Op::Link(_) => {
            md::NewEntryReply::from_bytes(reply)
                .map(|reply| md::NewEntryReply { directory, ..reply }.to_bytes())
        }
        Op::Unlink(_) | Op::RemoveDirectory(_) | Op::Rename(_) => {
            md::NamesReply::from_bytes(reply).map(|_| md::NamesReply { directory }.to_bytes())
        }
        Op::SetAttributes(_) => md::SetAttributesReply::from_bytes(reply)
            .map(|reply| md::SetAttributesReply { truncated, ..reply }.to_bytes()),
        _ => return reply.to_vec(),
    };
    logged.unwrap_or_default()
}

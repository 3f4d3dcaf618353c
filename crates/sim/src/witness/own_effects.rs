//! The effects of a batch that no client has requested: ended sessions, recovered sizes, repeated
//! truncations.

use super::{Effect, Witness};
use crate::changes::Changes;
use crate::model::{Inode, Model, is_next_generation};
use crate::operation::Op;
use skep_format::metadata::{InodeRecord, SlotRecord};
use skep_types::codec::Codec;
use skep_types::{InodeId, SessionId, StripePattern};
use skep_wire::metadata as md;
use std::collections::BTreeSet;

impl Witness {
    /// Returns the truncations that a batch repeats without a request of a client. Each of these
    /// files has a newer truncate generation than the replies to the requests in the batch. The
    /// target repeats a truncation after these requests, because the truncation would delay later
    /// requests.
    pub(super) fn repeated_truncations(&self, changes: &Changes) -> Vec<Effect> {
        let mut repeated = Vec::new();
        for (inode, record) in &changes.inodes {
            let (Some(record), Some(known)) = (record, self.model.inodes.get(inode)) else {
                continue;
            };
            let by_request = |(session, slot, it): &(SessionId, u32, SlotRecord)| {
                let instance = self.instances.get(&(*session, *slot, it.sequence))?;
                generation_in(&instance.op, &it.reply.0, *inode)
            };
            let newest = changes.slots.iter().filter_map(by_request).max();
            let newest = newest.unwrap_or(known.truncate_generation);
            let generation = record.attributes.truncate_generation;
            if is_next_generation(newest, generation) {
                repeated.push(Effect::Repeated(*inode, generation));
            }
        }
        repeated
    }

    /// Returns the effects of a batch that no client has requested.
    pub(super) fn own_effects(
        &self,
        changes: &Changes,
        chunk_size: &dyn Fn(&InodeRecord) -> u64,
    ) -> Result<Vec<Effect>, String> {
        let mut effects = Vec::new();
        for (session, inode) in &changes.closed {
            let found = self.model.inodes.get(inode);
            if found.is_some_and(|it| it.opens.contains_key(session)) {
                effects.push(Effect::Closed(*session, *inode));
            }
        }
        effects.extend(changes.freed_by_end.iter().map(|owner| Effect::Unlocked(*owner)));
        effects.extend(self.inline_ends(&self.model, changes));
        effects.extend(self.recovered_sizes(changes, chunk_size)?);
        Ok(effects)
    }

    /// Returns the ends of inline components in a batch that closes the files of an ended session.
    /// An inline component with bytes never ends this way.
    pub(super) fn inline_ends(&self, model: &Model, changes: &Changes) -> Vec<Effect> {
        let is_ended = |inode: &&InodeId| {
            let record = changes.inodes.get(*inode).and_then(Option::as_ref);
            let pattern = record.and_then(|it| it.pattern.as_ref());
            let is_unused = |known: &Inode| {
                known.inline.is_empty()
                    && known.pattern.as_deref().is_some_and(|it| it.inline_bytes() > 0)
            };
            pattern.is_some_and(StripePattern::has_moved_inline)
                && model.inodes.get(inode).is_some_and(is_unused)
        };
        let by_end = changes.closed.iter().filter(|(session, _)| self.ended.contains_key(session));
        let closed: BTreeSet<_> = by_end.map(|(_, inode)| inode).collect();
        closed.into_iter().filter(is_ended).map(|inode| Effect::InlineEnded(*inode)).collect()
    }

    /// Returns the sizes that a target has recovered in a batch, for files whose writers have died.
    pub(super) fn recovered_sizes(
        &self,
        changes: &Changes,
        chunk_size: &dyn Fn(&InodeRecord) -> u64,
    ) -> Result<Vec<Effect>, String> {
        let mut effects = Vec::new();
        for inode in &changes.recovered_sizes {
            let Some(Some(record)) = changes.inodes.get(inode) else { continue };
            let size = record.attributes.size;
            match self.model.inodes.get(inode) {
                Some(known) if size > known.size => {
                    let most = chunk_size(record).max(known.inline.len() as u64);
                    if size > most {
                        return Err(format!(
                            "{inode} got the size {size}, but its chunk files end at {most}"
                        ));
                    }
                    effects.push(Effect::Size(*inode, size));
                }
                _ => {}
            }
        }
        Ok(effects)
    }
}

/// Returns the truncate generation in the reply to a request that has truncated the file `inode`.
fn generation_in(op: &Op, reply: &[u8], inode: InodeId) -> Option<u64> {
    op.truncations().filter(|(truncated, _)| *truncated == inode)?;
    let attributes = match op {
        Op::Open(_) => md::OpenReply::from_bytes(reply).ok()?.attributes,
        _ => md::SetAttributesReply::from_bytes(reply).ok()?.attributes,
    };
    Some(attributes.truncate_generation)
}

/// Applies an effect that no client has requested to the model.
pub(super) fn apply_own_effect(model: &mut Model, effect: &Effect) {
    match effect {
        Effect::Client(..) | Effect::Nothing => {}
        Effect::Closed(session, inode) => close_all(model, *session, *inode),
        Effect::Unlocked(owner) => {
            if let Some(inode) = model.inodes.get_mut(&owner.inode) {
                inode.locks.remove(&(owner.session, owner.kind, owner.owner));
            }
        }
        Effect::Repeated(inode, generation) => {
            if let Some(inode) = model.inodes.get_mut(inode) {
                inode.truncate_generation = *generation;
            }
        }
        Effect::InlineEnded(inode) => {
            if let Some(inode) = model.inodes.get_mut(inode) {
                inode.end_inline();
            }
        }
        Effect::Size(inode, size) => {
            if let Some(inode) = model.inodes.get_mut(inode) {
                inode.size = inode.size.max(*size);
            }
        }
    }
}

pub(super) fn close_all(model: &mut Model, session: SessionId, inode: InodeId) {
    let opens = model.inodes.get(&inode).and_then(|it| it.opens.get(&session).copied());
    if let Some((readers, writers)) = opens {
        if let Some(inode) = model.inodes.get_mut(&inode) {
            inode.was_left_open |= writers > 0;
        }
        // The removal cannot fail, because the model contains these opens.
        let _ = model.close(inode, session, readers, writers);
    }
}

//! Searches for an order of a batch's effects that the reference model accepts. `own_effects` finds
//! the effects that no client has requested.

use super::own_effects::{apply_own_effect, close_all};
use super::{Effect, Witness};
use crate::changes::{Changes, fits, fits_prepared};
use crate::model::Model;
use crate::operation::Op;
use skep_format::metadata::DentryRecord;
use skep_types::codec::Codec;
use skep_types::{InodeId, SessionId};
use skep_wire::metadata::NewEntryReply;

impl Witness {
    /// Returns an order of a batch's operations that the reference model accepts.
    pub(super) fn order(
        &self,
        pending: &[Effect],
        changes: &Changes,
    ) -> Result<Vec<Effect>, String> {
        let mut problem = String::new();
        let found =
            self.search(self.model.clone(), pending.to_vec(), changes, &mut 5_000, &mut problem);
        found
            .map(|mut it| {
                it.reverse();
                it
            })
            .ok_or(problem)
    }

    /// Searches depth first for an order that the reference model accepts. Returns the operations
    /// in the reverse of this order.
    fn search(
        &self,
        model: Model,
        left: Vec<Effect>,
        changes: &Changes,
        budget: &mut u32,
        problem: &mut String,
    ) -> Option<Vec<Effect>> {
        if left.is_empty() {
            let mut model = model;
            for (session, inode) in &changes.closed {
                close_all(&mut model, *session, *inode);
            }
            for effect in self.inline_ends(&model, changes) {
                apply_own_effect(&mut model, &effect);
            }
            return match fits(&model, changes, &self.map, true) {
                Ok(()) => Some(Vec::new()),
                Err(what) => {
                    *problem = what;
                    None
                }
            };
        }
        for index in 0..left.len() {
            *budget = budget.saturating_sub(1);
            if *budget == 0 {
                return None;
            }
            let mut rest = left.clone();
            let mut step = rest.remove(index);
            {
                let mut next = model.clone();
                if let Effect::Client(id, reply) = &step {
                    let Some(instance) = self.instances.get(id) else { continue };
                    let done = next.apply(&instance.op, id.0, reply, instance.first_pattern());
                    let done = done.and_then(|()| self.check_prepared(&next, &instance.op, reply));
                    let is_nothing = match done {
                        Ok(()) => self.had_no_effect(id.0, &instance.op, changes),
                        Err(_) => self.may_have_no_effect(&instance.op),
                    };
                    if is_nothing {
                        next = model.clone();
                        step = Effect::Nothing;
                    } else if let Err(what) = done {
                        if problem.is_empty() || left.len() == 1 {
                            *problem = format!("{id:?} {:?} {what}", instance.op);
                        }
                        continue;
                    }
                } else {
                    apply_own_effect(&mut next, &step);
                }
                let found = self.search(next, rest.clone(), changes, budget, problem);
                if let Some(mut order) = found {
                    order.push(step);
                    return Some(order);
                }
            }
        }
        None
    }

    /// Checks that a new directory on another target is the directory that this target has prepared
    /// in the transaction.
    fn check_prepared(&self, model: &Model, op: &Op, reply: &[u8]) -> Result<(), String> {
        let Op::MakeDirectory(_) = op else { return Ok(()) };
        let made = NewEntryReply::from_bytes(reply).map_err(|error| error.to_string())?.entry.inode;
        match (self.prepared.get(&made), model.inodes.get(&made)) {
            (Some(prepared), Some(new)) => fits_prepared(new, prepared),
            _ => Ok(()),
        }
    }

    /// Whether an operation that the reference model would refuse now may have been executed
    /// correctly, without an effect. An example is a rename to another name of the same file. The
    /// coordinator looked up the old name on another target, and then a client removed the old
    /// name.
    fn may_have_no_effect(&self, op: &Op) -> bool {
        let (from, to, name) = match op {
            Op::Rename(it) => (it.from_directory, it.to_directory, &it.to_name),
            Op::Exchange(it) => (it.from_directory, it.to_directory, &it.to_name),
            _ => return false,
        };
        let there = self.model.inodes.get(&to);
        let found = there.and_then(|directory| directory.entries.get(&name.0));
        found.is_some() && self.model.group(from) != self.model.group(to)
    }

    /// Whether a rename had no effect, although the reference model would now apply it. The
    /// coordinator found that both names referred to the same file. After that, another client used
    /// the old name for a different file. The batch of such a rename does not change the new name.
    pub(super) fn had_no_effect(&self, session: SessionId, op: &Op, changes: &Changes) -> bool {
        let (to, name) = match op {
            Op::Rename(it) => (it.to_directory, &it.to_name),
            Op::Exchange(it) => (it.to_directory, &it.to_name),
            _ => return false,
        };
        let is_it = |(directory, _, dentry): &(InodeId, u64, Option<DentryRecord>)| {
            *directory == to && dentry.as_ref().is_none_or(|it| it.name == *name)
        };
        let may_be = || self.windows.values().any(|it| it.may_have_no_effect(session, op));
        self.may_have_no_effect(op) && !changes.dentries.iter().any(is_it) && may_be()
    }
}

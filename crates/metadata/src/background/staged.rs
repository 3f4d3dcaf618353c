//! The ends of staged transactions: the changes of the store when a staged transaction is committed
//! or undone. The module `target::staged` decides between commit and undo.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_format::metadata::{DecisionRecord, Key, SlotRecord, StagedRecord};
use skep_types::FileKind;
use skep_wire::metadata::TransactionId;

/// Replaces the record of a staged transaction by the decision to commit it.
pub(super) fn commit<E: Engine>(context: &mut Context<'_, E>, number: u64) -> Result<(), Stop> {
    if let Some(record) = context.get::<StagedRecord>(&Key::Staged(number))? {
        context.delete(&Key::Staged(number));
        let participants = vec![record.participant];
        context.put(&Key::Decision(number), &DecisionRecord { participants });
    }
    Ok(())
}

/// Undoes the change of a staged transaction: removes the entry that it has added, or adds the
/// entry that it has removed. Marks its request as undone, so that a retry of the request runs
/// again.
pub(super) fn undo<E: Engine>(context: &mut Context<'_, E>, number: u64) -> Result<(), Stop> {
    let Some(record) = context.get::<StagedRecord>(&Key::Staged(number))? else { return Ok(()) };
    // The transaction itself has locked the name, and this lock must not block the undo.
    let coordinator = context.shared.group;
    context.apply_prepared(TransactionId { coordinator, number });
    let StagedRecord { entry, session, slot, sequence, .. } = record;
    let links = i32::from(entry.kind == FileKind::Directory);
    let mut directory = context.directory(entry.directory)?;
    match (context.dentry(entry.directory, &entry.name)?, entry.is_added) {
        (Some((cursor, dentry)), true) if dentry.inode == entry.inode => {
            context.remove_dentry(entry.directory, cursor)?;
            context.change_directory(&mut directory, -1, -links);
        }
        (None, false) => {
            context.insert_dentry(entry.directory, &entry.name, entry.inode, entry.kind)?;
            context.change_directory(&mut directory, 1, links);
        }
        _ => {}
    }
    let key = Key::Slot(session, slot);
    let is_of_request = |stored: &SlotRecord| stored.sequence == sequence;
    if context.get::<SlotRecord>(&key)?.as_ref().is_some_and(is_of_request) {
        context.put(&key, &SlotRecord::undone(sequence));
    }
    context.delete(&Key::Staged(number));
    Ok(())
}

//! Prepared transactions: the steps that this target has prepared for transactions of other groups.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::steps;
use skep_format::metadata::{Key, PreparedRecord};
use skep_wire::metadata::{Step, TransactionId};

/// Commits or aborts a prepared transaction. The caller must release the locks of `transaction` as
/// soon as the writes of `context` are committed.
pub(crate) fn end<E: Engine>(
    context: &mut Context<'_, E>,
    transaction: TransactionId,
    commit: bool,
) -> Result<(), Stop> {
    context.apply_prepared(transaction);
    if let Some(record) = context.get::<PreparedRecord>(&Key::Prepared(transaction))? {
        if commit {
            apply_steps(context, &record)?;
        }
        context.delete(&Key::Prepared(transaction));
    }
    // A late `Prepare` of this transaction must find that the transaction has ended.
    let now = context.wall();
    context.put(&Key::Finished(transaction), &now);
    Ok(())
}

/// Applies the steps of a prepared transaction whose outcome is a commit, but keeps its record
/// without steps until the decision arrives. The caller must release the locks of `transaction` as
/// soon as the writes of `context` are committed.
pub(crate) fn apply<E: Engine>(
    context: &mut Context<'_, E>,
    transaction: TransactionId,
) -> Result<(), Stop> {
    context.apply_prepared(transaction);
    let key = Key::Prepared(transaction);
    if let Some(record) = context.get::<PreparedRecord>(&key)?
        && !record.steps.is_empty()
    {
        apply_steps(context, &record)?;
        let since = record.since;
        let applied = PreparedRecord { steps: Vec::new(), attributes: Vec::new(), since };
        context.put(&key, &applied);
    }
    Ok(())
}

fn apply_steps<E: Engine>(
    context: &mut Context<'_, E>,
    record: &PreparedRecord,
) -> Result<(), Stop> {
    let mut answers = record.attributes.iter();
    for step in &record.steps {
        let answer = match step {
            Step::MakeDirectoryInode { .. } | Step::AddLink { .. } => answers.next(),
            _ => None,
        };
        steps::apply(context, step, answer)?;
    }
    Ok(())
}

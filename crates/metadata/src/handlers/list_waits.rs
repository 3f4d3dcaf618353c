//! `ListWaits`: lists the lock owners that wait for POSIX locks, and the lock owners that block
//! them.

use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use skep_wire::file_locks::{ListWaits, WaitList};

pub(crate) fn run<E: Engine>(
    context: &mut Context<'_, E>,
    request: ListWaits,
) -> Result<WaitList, Stop> {
    Ok(context.shared.file_locks.posix_waits(request.after))
}

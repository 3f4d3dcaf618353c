//! Reserves numbers for inodes and transactions before the target runs out of them.

use super::task::JobContext;
use crate::engine::Engine;
use crate::tx::context::Context;
use crate::tx::operation::Stop;
use crate::tx::work::InternalWork;
use skep_format::metadata::Key;
use skep_types::{Lsn, Result};

/// The job that reserves numbers, and whether a reservation is in progress.
#[derive(Debug, Default)]
pub(crate) struct NumberReservation {
    is_reserving: bool,
}

impl NumberReservation {
    /// Starts a reservation if at most half of `number_range` reserved numbers are left.
    pub(crate) fn start<E: Engine>(&mut self, context: &mut JobContext<'_, E>) {
        let left = context.shared.numbers.left();
        if left <= context.shared.limits.number_range / 2 && !self.is_reserving {
            self.is_reserving = true;
            context.start(InternalWork::ReserveNumbers);
        }
    }

    /// Adds the reserved numbers after the reservation was committed in the log record `lsn`. The
    /// numbers become usable when this record is *safe*.
    pub(crate) fn after_commit<E: Engine>(&mut self, lsn: Lsn, context: &mut JobContext<'_, E>) {
        let shared = &mut *context.shared;
        let end = shared.numbers.reserved_end() + shared.limits.number_range;
        shared.numbers.reserve(end, lsn);
        self.is_reserving = false;
    }
}

/// Writes the end of the next range of reserved numbers to the store.
pub(super) fn reserve<E: Engine>(context: &mut Context<'_, E>) -> Result<(), Stop> {
    let end = context.shared.numbers.reserved_end() + context.shared.limits.number_range;
    context.put(&Key::NumbersReserved, &end);
    Ok(())
}

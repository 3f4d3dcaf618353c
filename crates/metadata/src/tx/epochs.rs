//! The starts of a target, by number: whether something that was acknowledged, and never synced, is
//! still in its log.
//!
//! An acknowledgement names the start (*epoch*) and the log record. If a later start could write
//! that record anew, the log ended before it: the host had lost its power. A killed process loses
//! no record, so the next start's first one lies behind all that it had acknowledged.
//!
//! Invariant: an epoch is on the device before anything is acknowledged under it; otherwise the
//! next start could take its number.

use crate::engine::Engine;
use crate::target::MetadataTarget;
use crate::tx::context::Context;
use crate::tx::operation::{Internal, Stop};
use skep_format::metadata::{Key, decode_value, last_u64};
use skep_types::{Lsn, Result};
use skep_wire::inline::InlineMark;
use skep_wire::limits::MAX_EPOCHS;
use std::collections::BTreeMap;

/// The starts that are remembered.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// By number: the first log record that the start could write. The last is the present one.
    first: BTreeMap<u64, Lsn>,
    /// The record that the present one is in.
    logged: Option<Lsn>,
    is_synced: bool,
}

impl Epochs {
    fn begin(&mut self, first: Lsn) {
        let number = self.number() + 1;
        self.first.insert(number, first);
    }

    fn number(&self) -> u64 {
        self.first.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Numbers that need not be remembered any longer.
    fn surplus(&self) -> Vec<u64> {
        let count = self.first.len().saturating_sub(MAX_EPOCHS);
        self.first.keys().take(count).copied().collect()
    }

    /// The present one, once things may be acknowledged under it.
    pub(crate) fn current(&self) -> Option<u64> {
        self.is_synced.then(|| self.number())
    }

    /// The log is on the device up to a record.
    pub(crate) fn synced(&mut self, lsn: Lsn) {
        self.is_synced |= self.logged.is_some_and(|logged| logged <= lsn);
    }

    /// Whether what was acknowledged so may be gone: what isn't known counts.
    pub(crate) fn is_lost(&self, mark: &InlineMark) -> bool {
        let began_after = |number| self.first.get(&number).is_some_and(|it| *it > mark.record);
        mark.epoch > self.number() || !(mark.epoch + 1..=self.number()).all(began_after)
    }
}

/// Logs the present start, and forgets old ones.
pub(crate) fn begin<E: Engine>(context: &mut Context<'_, E>) -> Result<(), Stop> {
    let epochs = &context.shared.epochs;
    let surplus = epochs.surplus();
    if let Some((number, first)) = epochs.first.last_key_value() {
        let (number, first) = (*number, *first);
        context.put(&Key::Epoch(number), &first);
    }
    surplus.into_iter().for_each(|number| context.delete(&Key::Epoch(number)));
    Ok(())
}

impl<E: Engine> MetadataTarget<E> {
    /// Begins another epoch at the target's start.
    pub(crate) fn load_epochs(&mut self) -> Result<()> {
        let epochs = &mut self.shared.epochs;
        for (key, value) in self.table.scan(&Key::epochs(), &[], usize::MAX)? {
            let Some(number) = last_u64(&key) else { continue };
            epochs.first.insert(number, decode_value(&key, &value)?);
        }
        epochs.begin(self.next_lsn);
        self.start_internal(Internal::BeginEpoch);
        Ok(())
    }

    /// The epoch was logged.
    pub(crate) fn after_epoch(&mut self, lsn: Lsn) {
        let epochs = &mut self.shared.epochs;
        epochs.logged = Some(lsn);
        for number in epochs.surplus() {
            epochs.first.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(epoch: u64, record: u64) -> InlineMark {
        InlineMark { epoch, record: Lsn::new(record) }
    }

    #[test]
    fn what_a_later_start_could_write_anew_is_lost() {
        let mut epochs = Epochs::default();
        epochs.begin(Lsn::new(1));
        assert!(!epochs.is_lost(&mark(1, 100)), "nothing has happened since");
        // A kill after record 100: the next start goes on behind it.
        epochs.begin(Lsn::new(101));
        assert!(!epochs.is_lost(&mark(1, 100)));
        // A power loss took what came after record 150.
        epochs.begin(Lsn::new(151));
        assert!(!epochs.is_lost(&mark(2, 150)));
        assert!(epochs.is_lost(&mark(2, 151)));
        assert!(!epochs.is_lost(&mark(1, 100)) && !epochs.is_lost(&mark(3, 151)));
        // However far the log goes on afterwards.
        epochs.begin(Lsn::new(1000));
        assert!(epochs.is_lost(&mark(2, 200)) && !epochs.is_lost(&mark(3, 200)));
        // Of another target, or of one that was set back.
        assert!(epochs.is_lost(&mark(5, 1)) && epochs.is_lost(&mark(u64::MAX - 1, 1)));
    }

    #[test]
    fn only_the_last_starts_are_remembered_and_older_ones_count_as_lost() {
        let mut epochs = Epochs::default();
        for number in 1..=100 {
            epochs.begin(Lsn::new(number * 10));
        }
        let surplus = epochs.surplus();
        assert_eq!(surplus, (1..=100 - MAX_EPOCHS as u64).collect::<Vec<_>>());
        surplus.iter().for_each(|number| {
            epochs.first.remove(number);
        });
        assert!(epochs.is_lost(&mark(35, 1)));
        assert!(!epochs.is_lost(&mark(36, 1)), "all later ones are known");
    }

    #[test]
    fn nothing_is_acknowledged_before_the_epoch_is_synced() {
        let mut epochs = Epochs::default();
        epochs.begin(Lsn::new(1));
        epochs.synced(Lsn::new(9));
        assert_eq!(epochs.current(), None);
        epochs.logged = Some(Lsn::new(10));
        epochs.synced(Lsn::new(9));
        assert_eq!(epochs.current(), None);
        epochs.synced(Lsn::new(10));
        assert_eq!(epochs.current(), Some(1));
    }
}

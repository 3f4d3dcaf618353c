//! The ordered key-value store below a metadata target: a small trait and two engines. Services use
//! fjall; the simulation and tests use an engine in memory.
//!
//! The engine need not sync, because the target's log is the source of truth. The target applies a
//! batch only after every serving member of its group has synced the log records of the batch. With
//! each batch, the target passes the LSN of the last log record in the batch. Applied batches
//! become durable together, at a checkpoint.

pub mod fjall_engine;
pub mod memory;

use skep_format::metadata::{Key, decode_value};
use skep_types::{Lsn, Result};
use std::ops::Bound;

/// The changes of a batch: keys with their new values. `None` removes the key.
pub type Mutations = std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Returns the lower bound of a scan of keys that begin with `prefix` and are greater than `after`.
/// An empty `after` means that the scan begins with the first key, which may be `prefix` itself.
pub(crate) fn start_of_scan<'a>(prefix: &'a [u8], after: &'a [u8]) -> Bound<&'a [u8]> {
    match after {
        [_, ..] if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    }
}

/// An ordered key-value store.
pub trait Engine {
    /// Returns the value of a key; `None` means that the key does not exist.
    ///
    /// # Errors
    /// `DeviceFailed` if the engine cannot read or write the store. The target then stops.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Returns up to `limit` key-value pairs whose key starts with `prefix` and is greater than
    /// `after`, in ascending key order.
    ///
    /// # Errors
    /// The same as for [`Self::get`].
    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Like [`Self::scan`], but returns only the keys and copies no values.
    ///
    /// # Errors
    /// The same as for [`Self::get`].
    fn scan_keys(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<Vec<u8>>>;

    /// Applies a batch atomically. In the same atomic step, the engine stores `applied` as the
    /// LSN of the last log record whose changes it has.
    ///
    /// # Errors
    /// The same as for [`Self::get`].
    fn apply(&mut self, batch: &Mutations, applied: Lsn) -> Result<()>;

    /// Returns the LSN of the last log record whose changes the store has. `None` means that the
    /// store is empty.
    ///
    /// # Errors
    /// The same as for [`Self::get`], and `Corrupt` if the LSN cannot be decoded.
    fn applied(&self) -> Result<Option<Lsn>> {
        let key = Key::Applied.to_bytes();
        self.get(&key)?.map(|value| decode_value(&key, &value)).transpose()
    }

    /// Returns the approximate number of key-value pairs, which may include removed pairs.
    fn approximate_pairs(&self) -> u64;
}

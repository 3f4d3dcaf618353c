//! The ordered key-value store under a metadata target, as a small trait with two engines: fjall
//! for services, and one in memory for simulation and tests.
//!
//! The engine runs without syncing by itself: the log is the truth. It receives only batches whose
//! log records are on the device, each with the number of the last record in it, and becomes
//! durable as a whole at a checkpoint.

pub mod fjall_engine;
pub mod memory;

use skep_types::{Lsn, Result};

/// Keys and new values; `None` removes a key.
pub type Mutations = std::collections::BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An ordered key-value store.
pub trait Engine {
    /// The value of a key.
    ///
    /// # Errors
    /// `DeviceFailed` if the store cannot be read or written; the target then stops.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Up to `limit` pairs with a key that starts with `prefix` and is greater than `after`, by
    /// rising key.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Applies a batch atomically and notes `applied` as the last log record in the store.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn apply(&mut self, batch: &Mutations, applied: Lsn) -> Result<()>;
}

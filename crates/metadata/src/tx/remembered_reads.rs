//! The values that one run of an operation has read from the table. The table does not change
//! during the run, so a second read of a key need not search the memory tables and files of the
//! engine again.
//!
//! Handlers read some keys twice. For example, they look for a name before they add it, and they
//! read an inode to check a step and to apply it. The search for a key that does not exist costs as
//! much as the search for one that does.

use crate::limits::MAX_REMEMBERED_READS;
use skep_types::Result;
use std::cell::RefCell;

/// A key with its value in the table. `None` means that the table does not have the key.
#[derive(Debug)]
struct StoredValue {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// The first [`MAX_REMEMBERED_READS`] values that a run has read.
#[derive(Debug, Default)]
pub(super) struct RememberedReads(RefCell<Vec<StoredValue>>);

impl RememberedReads {
    /// Passes a key with its value to `f`. Calls `read` if the run has not read this key yet.
    ///
    /// # Errors
    /// The error of `read` or `f`.
    pub(super) fn with<T>(
        &self,
        key: Vec<u8>,
        read: impl FnOnce(&[u8]) -> Result<Option<Vec<u8>>>,
        f: impl FnOnce(&[u8], Option<&[u8]>) -> Result<T>,
    ) -> Result<T> {
        let mut known = self.0.borrow_mut();
        if let Some(known) = known.iter().find(|it| it.key == key) {
            return f(&key, known.value.as_deref());
        }
        let value = read(&key)?;
        let result = f(&key, value.as_deref());
        if known.len() < MAX_REMEMBERED_READS {
            known.push(StoredValue { key, value });
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn repeated_reads_of_a_key_in_one_run_use_remembered_values() {
        let (reads, count) = (RememberedReads::default(), Cell::new(0));
        let last = MAX_REMEMBERED_READS as u8;
        // Even keys have themselves as their value, and odd keys do not exist.
        let stored = |key: &[u8]| (key[0].is_multiple_of(2)).then(|| key.to_vec());
        let get = |key: u8| {
            let read = |key: &[u8]| {
                count.set(count.get() + 1);
                Ok(stored(key))
            };
            let value = reads.with(vec![key], read, |key, value| {
                assert_eq!(value, stored(key).as_deref());
                Ok(value.is_some())
            });
            assert_eq!(value.unwrap(), key.is_multiple_of(2));
        };
        for _ in 0..3 {
            (0..last).for_each(&get);
        }
        assert_eq!(count.get(), MAX_REMEMBERED_READS);
        get(last);
        get(last);
        assert_eq!(count.get(), MAX_REMEMBERED_READS + 2, "the number of values has a limit");
    }
}

//! Assigns a start number when the target starts.

use crate::engine::Engine;
use crate::target::MetadataTarget;
use crate::tx::work::InternalWork;
use skep_format::metadata::{Key, decode_value, expect_parsed, last_u64};
use skep_types::Result;

impl<E: Engine> MetadataTarget<E> {
    /// Loads the start numbers from the store, and assigns the next number to this start.
    pub(super) fn load_starts(&mut self) -> Result<()> {
        for (key, value) in self.table.scan(&Key::starts(), &[], usize::MAX)? {
            let number = expect_parsed(&key, last_u64(&key))?;
            self.shared.starts.load(number, decode_value(&key, &value)?);
        }
        self.shared.starts.begin(self.gates.next_lsn());
        self.start_internal(InternalWork::RecordStart);
        Ok(())
    }
}

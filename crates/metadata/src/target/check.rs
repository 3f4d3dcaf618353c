//! Checks of the invariants of a target. The simulator runs them after each batch.

use super::calls::CallPurpose;
use crate::background::BackgroundCall;
use crate::engine::Engine;
use crate::target::MetadataTarget;
use skep_format::metadata::{FileLocksRecord, Key, decode_value, lock_owner_of, truncation_of};
use skep_types::{InodeId, Result};
use std::collections::BTreeMap;

impl<E: Engine> MetadataTarget<E> {
    /// Checks every invariant of the target's state that the types do not enforce. The check reads
    /// whole tables of the store, so only tests and simulations call it.
    ///
    /// # Errors
    /// The error of the engine, if it fails.
    ///
    /// # Panics
    /// Panics if an invariant is violated. The message is the violated invariant.
    pub fn check_invariants(&self) -> Result<()> {
        self.check_memory();
        self.check_against_store()
    }

    /// Runs the checks of [`Self::check_invariants`] that read memory only.
    fn check_memory(&self) {
        self.operations.check_invariants();
        self.calls.check_invariants();
        self.gates.check_invariants();
        self.table.check_invariants();
        self.background.check_invariants();
        self.sessions.check_invariants();
        let shared = &self.shared;
        shared.numbers.check_invariants();
        shared.locks.check_invariants();
        shared.truncations.check_invariants();
        shared.file_locks.check_invariants();
        shared.sharing.check_invariants();
        for (slot, id) in self.sessions.all_running() {
            assert!(
                self.operations.contains(id),
                "operation {id}, which runs in slot {} of session {}, exists",
                slot.1,
                slot.0
            );
        }
        let mut awaited: [BTreeMap<InodeId, usize>; 2] = Default::default();
        for purpose in self.calls.purposes() {
            match purpose {
                CallPurpose::Operation { id, .. } => assert!(
                    self.operations.contains(*id),
                    "operation {id}, which waits for a reply, exists"
                ),
                CallPurpose::Background(BackgroundCall::Truncate(call)) => {
                    *awaited[0].entry(call.inode).or_default() += 1;
                }
                CallPurpose::Background(BackgroundCall::SyncTruncated(call)) => {
                    *awaited[1].entry(call.inode).or_default() += 1;
                }
                CallPurpose::Background(_)
                | CallPurpose::Confirm { .. }
                | CallPurpose::Abandoned => {}
            }
        }
        let missing = self.background.missing_truncation_replies();
        assert_eq!(awaited, missing, "each missing reply of a truncation has its call");
    }

    /// Checks that the tables of opens, staged transactions, truncations and file locks in memory
    /// equal the records in the store.
    fn check_against_store(&self) -> Result<()> {
        let sharing = &self.shared.sharing;
        let opens = self.table.scan_keys(&Key::session_opens(), &[], usize::MAX)?;
        for key in &opens {
            let (session, inode) =
                skep_format::metadata::session_open_of(key).expect("a key of an open file");
            assert!(
                sharing.holders(inode).contains(&session),
                "session {session} has file {inode} open, so it is a holder of the file"
            );
        }
        assert_eq!(sharing.open_count(), opens.len(), "each holder has its file open");
        let staged = self.table.scan_keys(&Key::staged(), &[], usize::MAX)?;
        let known = self.operations.staged.stored_count();
        assert_eq!(known, staged.len(), "each staged transaction in memory is stored");
        let truncations = self.table.scan(&Key::truncations(), &[], usize::MAX)?;
        for (key, value) in &truncations {
            let inode = truncation_of(key).expect("a key of a truncation");
            let known = self.shared.truncations.get(inode).map(|it| &it.record);
            assert_eq!(
                known,
                Some(&decode_value(key, value)?),
                "the truncation of file {inode} in memory"
            );
        }
        assert_eq!(self.shared.truncations.len(), truncations.len(), "each truncation is stored");
        let mut ranges = 0;
        for (key, value) in self.table.scan(&Key::all_file_locks(), &[], usize::MAX)? {
            let owner = lock_owner_of(&key).expect("a key of file locks");
            let record: FileLocksRecord = decode_value(&key, &value)?;
            let held = self.shared.file_locks.record(&owner);
            assert_eq!(held.as_ref(), Some(&record), "the table has the locks of {owner:?}");
            ranges += record.ranges.len();
        }
        assert_eq!(self.shared.file_locks.range_count(), ranges, "each lock in memory is stored");
        Ok(())
    }
}

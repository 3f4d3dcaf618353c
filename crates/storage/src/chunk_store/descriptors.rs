//! Spare descriptors of a target. With these descriptors, the target can open chunk files even if
//! connections or other files use all other descriptors of the process.
//!
//! A lack of descriptors or of memory is temporary, and is not a failure of the device. Operations
//! that fail for this reason return `LimitReached`, and their callers repeat these operations.

use super::ChunkStore;
use crate::limits::SPARE_DESCRIPTORS;
use skep_types::is_out_of_descriptors;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Open descriptors that no operation uses.
#[derive(Debug)]
pub(super) struct SpareDescriptors(RefCell<Vec<File>>);

impl SpareDescriptors {
    /// Opens the spare descriptors, or fewer of them if the process has too few free descriptors.
    pub(super) fn open() -> Self {
        let spares = Self(RefCell::default());
        while spares.add() {}
        spares
    }

    /// Opens one more spare descriptor. Returns `false` if the target has enough spare descriptors,
    /// or if the process has no free descriptor.
    fn add(&self) -> bool {
        let mut spares = self.0.borrow_mut();
        let opened = (spares.len() < SPARE_DESCRIPTORS).then(|| File::open("/dev/null"));
        let Some(Ok(opened)) = opened else { return false };
        spares.push(opened);
        true
    }

    /// Closes a spare descriptor, so that its number is free. Returns `false` if no spare
    /// descriptor is left.
    fn release(&self) -> bool {
        self.0.borrow_mut().pop().is_some()
    }
}

impl ChunkStore {
    /// Opens a file of the target. If the process has no free descriptor, closes a chunk file that
    /// no operation uses, or else a spare descriptor, and repeats the attempt.
    ///
    /// # Errors
    /// Errors of `open(2)`.
    pub(super) fn open_file(&self, options: &OpenOptions, path: &Path) -> io::Result<File> {
        loop {
            match options.open(path) {
                Err(error)
                    if is_out_of_descriptors(&error)
                        && (self.open.borrow_mut().evict_one() || self.spares.release()) => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    self.spares.add();
                    return Ok(file);
                }
            }
        }
    }
}

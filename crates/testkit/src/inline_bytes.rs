//! Clusters whose new files have no inline bytes, for tests in which small files must have chunk
//! files.

use crate::{Cluster, PATIENCE, files, wait_for};

/// Number of new files that the test checks. Each file is in a new directory with the same name,
/// and the hash of this name selects the metadata group. So all checked files are on one group.
const DIRECTORIES: usize = 8;

impl Cluster {
    /// Sets `inline-bytes` to 0, and waits until new files on one metadata target have no inline
    /// bytes.
    ///
    /// # Panics
    /// Panics if new files still have inline bytes after [`PATIENCE`].
    pub fn turn_off_inline_bytes(&self) {
        self.skep(&["config", "set", "inline-bytes", "0"]);
        wait_for("new files have no inline bytes", PATIENCE, || {
            (0..DIRECTORIES).all(|_| self.new_file_has_no_inline_bytes()).then_some(())
        });
    }

    fn new_file_has_no_inline_bytes(&self) -> bool {
        let directory = self.path().join("without-inline-bytes");
        let file = directory.join("file");
        files::create_dir(&directory);
        files::write(&file, "x");
        let has_none = self.entry_info(&file).components()[0].redundancy() != "inline";
        files::remove_file(&file);
        files::remove_dir(&directory);
        has_none
    }
}

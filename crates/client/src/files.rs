//! Open files: opening, closing, reporting and syncing them, and the tables of their handles and
//! inodes. What happens to their bytes is in `data`.

pub(crate) mod close;
pub(crate) mod closing_files;
pub(crate) mod deferred_close;
pub(crate) mod handles;
pub(crate) mod inodes;
pub(crate) mod open;
pub(crate) mod open_file;
pub(crate) mod report;
pub(crate) mod sync;

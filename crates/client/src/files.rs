//! Open files: opening, closing, reporting and syncing them, and the tables of handles and inodes.
//! The bytes of files are in `data`.

pub(crate) mod close;
pub(crate) mod closing_files;
pub(crate) mod deferred_close;
pub(crate) mod handles;
pub(crate) mod inodes;
mod later_report;
pub(crate) mod open;
pub(crate) mod open_file;
pub(crate) mod report;
pub(crate) mod sync;

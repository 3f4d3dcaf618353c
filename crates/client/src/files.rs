//! Opens, closes and syncs files, and reports their writes to metadata. Also contains the tables of
//! handles and inodes. `data` reads and writes the bytes of files.

pub(crate) mod close;
pub(crate) mod closing_files;
pub(crate) mod deferred_close;
pub(crate) mod handles;
pub(crate) mod inodes;
mod later_report;
pub(crate) mod open;
pub(crate) mod open_file;
pub(crate) mod opened_bytes;
pub(crate) mod recent_files;
pub(crate) mod report;
pub(crate) mod sync;

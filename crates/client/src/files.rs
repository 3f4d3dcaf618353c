//! Open files: opening, closing and syncing them, and the tables of their handles and inodes. What
//! happens to their bytes is in `data`.

pub(crate) mod deferred_close;
pub(crate) mod handles;
pub(crate) mod open;
pub(crate) mod sync;

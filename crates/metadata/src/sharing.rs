//! Files that several sessions have open. The module `table` owns the opens by file and the
//! notifications. The module `notifications` handles the requests in which clients receive and
//! acknowledge notifications.

mod notifications;
pub(crate) mod table;

//! Files that several sessions have open. The module `table` owns the holders of files and the
//! notifications, and `notifications` owns the requests in which clients receive and acknowledge
//! notifications.

mod notifications;
pub(crate) mod table;

//! Files that several sessions have open: the table of holders and notifications, and the requests
//! in which clients receive and acknowledge notifications.

mod notifications;
pub(crate) mod table;

//! Sessions of clients: their table, leases and slots, the admission of requests, and the list for
//! administrators.

mod list;
mod requests;
pub(crate) mod table;

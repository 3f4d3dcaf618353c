//! Sessions of clients: their table, leases and slots, the admission of requests, and the session
//! list for administrators.

mod lifetime;
mod list;
mod requests;
pub(crate) mod table;

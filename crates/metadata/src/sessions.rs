//! Sessions of clients: their table, leases and slots, the admission of requests, the outcome of
//! requests in ended sessions, and the session list for administrators.

mod lifetime;
mod list;
mod outcome;
mod requests;
pub(crate) mod table;

//! Sessions of clients: their table, leases and slots, the admission of requests, the outcome of
//! requests in ended sessions, the comparison of slots after a start, silent clients for which
//! others wait, and the session list for administrators.

mod compare_slots;
mod lifetime;
mod list;
mod outcome;
mod requests;
pub(crate) mod silent_holders;
pub(crate) mod table;

//! Sessions of clients. The modules own the table of sessions, leases and slots, the admission of
//! requests, and the outcome of requests in ended sessions. They also own the comparison of slots
//! after a start, the search for silent clients, and the session list for administrators.

mod compare_slots;
mod lifetime;
mod list;
mod outcome;
mod requests;
pub(crate) mod silent_holders;
pub(crate) mod table;

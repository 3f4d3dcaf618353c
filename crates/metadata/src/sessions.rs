//! Sessions of clients: the table of sessions, leases and slots, the admission of requests, the
//! outcome of requests of ended sessions, the comparison of slots after a start, the replay of
//! changes that a power loss has reverted, the search for silent clients, and the list for
//! administrators.

mod compare_slots;
mod lifetime;
mod list;
mod outcome;
mod properties;
mod replay;
pub(crate) mod replay_window;
mod requests;
pub(crate) mod silent_holders;
pub(crate) mod table;

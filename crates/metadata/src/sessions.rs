//! Sessions of clients. The submodules contain the table of sessions, leases and slots, decide
//! which requests are admitted, and report the outcome of requests whose session has ended. They
//! also compare slots after a start, let clients replay what a power loss has reverted, search for
//! silent clients, and list the sessions for administrators.

mod compare_slots;
mod lifetime;
mod list;
mod outcome;
mod replay;
pub(crate) mod replay_window;
mod requests;
pub(crate) mod silent_holders;
pub(crate) mod table;

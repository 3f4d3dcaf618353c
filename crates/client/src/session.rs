//! Sessions: they make a modifying request happen exactly once.
//!
//! A mount has one session at each metadata group and opens it when it first needs it. The slots of
//! a session are divided into ranges, one for each worker thread, so that threads share no slot and
//! no lock. A slot carries one request at a time. Its sequence rises by one with each request, and
//! a slot is used again only after its reply arrived. Repetitions within one session are sent by
//! the router and carry the same numbers.
//!
//! - `table`: the sessions of the mount, shared by its threads. No I/O.
//! - `slots`: the range of slots of one thread. No I/O.
//! - `renewal`: opens sessions, confirms their leases, replaces lost ones.
//! - `request`: sends requests, and sends them again when the session was lost.
//!
//! # When a session is lost
//! A group replies `StaleSession` for a session that it doesn't have (any more), and `Evicted` when
//! the client was out of touch for longer than its lease. After an eviction the client first joins
//! the cluster anew, see `mount::eviction`. The thread that gets such a reply first opens another
//! session and opens the files of that group again; then all threads go on under the new session.
//!
//! The group did not execute the attempt that it refused so. But the reply to an earlier attempt
//! may have been lost with its connection. The group may have executed that attempt, and its memory
//! of it ended with the session. [`request::ModifyOptions::ambiguous_reply`] names the reply that
//! would then mislead the caller: `Exists` after a create, `NotFound` after an unlink. The caller
//! gets `Io` instead, with a text that names what to check.

pub(crate) mod renewal;
pub(crate) mod request;
pub(crate) mod slots;
pub(crate) mod table;

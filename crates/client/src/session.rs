//! Sessions, which make each modifying request happen exactly once.
//!
//! A mount opens one session at each metadata group, when it first needs the group. The slots of a
//! session are divided into ranges, one for each worker thread, so that threads share no slot and
//! no lock. A slot carries one request at a time, and is used again only after the reply has
//! arrived. The sequence of a slot rises by one with each request. When the router repeats a
//! request within a session, the repetition has the same slot and sequence.
//!
//! - `table`: the sessions of the mount, shared by its threads. No I/O.
//! - `slots`: the range of slots of one thread. No I/O.
//! - `renewal`: opens sessions, renews their leases, and replaces lost sessions.
//! - `restore_opens`: opens files again after a power loss of a metadata host.
//! - `acknowledged`: changes that may not be durable yet. No I/O.
//! - `compare_slots`: reports changes that a power loss of a metadata host has reverted.
//! - `request`: sends requests, and sends them again after a session was lost.
//!
//! # When a session is lost
//! A group replies `StaleSession` if it does not have the session (any more), and `Evicted` if the
//! client was out of touch for longer than its lease. After an eviction the client first joins the
//! cluster again, see `mount::eviction`. The thread that gets such a reply opens a new session and
//! reopens the files of that group. Then all threads continue in the new session.
//!
//! The group did not execute the attempt that it refused in this way. But it may have executed an
//! earlier attempt whose reply was lost with the connection. Then the client asks the group for the
//! outcome before it sends the request again, see `request`.

pub(crate) mod acknowledged;
mod compare_slots;
pub(crate) mod renewal;
pub(crate) mod request;
mod restore_opens;
pub(crate) mod slots;
pub(crate) mod table;

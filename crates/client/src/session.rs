//! Sessions. In a session, a metadata group executes each request for a change exactly once.
//!
//! A mount opens one session at each metadata group, when it first needs the group. Each worker
//! thread has its own range of the session's slots, so that threads share no slot and no mutex. A
//! thread uses a slot for one request at a time, and uses it again only after the reply has
//! arrived. The sequence of a slot rises by one with each request. When the router repeats a
//! request within a session, it uses the same slot and sequence again.
//!
//! - `table`: the sessions of the mount, which all its threads share. No I/O.
//! - `slots`: the range of slots of one thread. No I/O.
//! - `renewal`: opens sessions, renews their leases, and replaces lost sessions.
//! - `restore_opens`: opens files again after a power loss of a metadata host.
//! - `restore_locks`: sets locks again after a power loss of a metadata host.
//! - `acknowledged`: changes that may not be durable yet. No I/O.
//! - `change_requests`: the number of requests for changes. No I/O.
//! - `kept_requests`: the requests that the mount keeps for a replay. No I/O.
//! - `compare_slots`: finds the changes that a power loss of a metadata host has reverted, and
//!   reports each change that stays lost.
//! - `replay`: repeats the reverted changes.
//! - `request`: sends requests, and sends them again after a session was lost.
//!
//! # When a session is lost
//! A group replies `StaleSession` if it does not have the session (any more), and `Evicted` if
//! management has removed the client from the cluster. After an eviction, the client first joins
//! the cluster again, see `mount::eviction`. The thread that gets such a reply opens a new session,
//! and opens the files of that group again. Then all threads continue in the new session.
//!
//! The router repeats the requests of a renewal while the group does not answer, starts, or has
//! another epoch or cluster map. After any other error, for example because the group's target was
//! marked as lost, the renewal has failed. No operation uses the new session until another renewal
//! has succeeded: each operation that needs the group first tries the renewal again, and returns
//! the error if it fails. The mount also tries again in the background (`mount::background`). A
//! file that was deleted meanwhile is stale, as after each renewal. The locks of the lost session
//! are lost when its first renewal begins, so operations through their handles fail. Handles for
//! writing are fenced as soon as the client learns of its eviction.
//!
//! A start of the target does not end the session: see `compare_slots`, `restore_opens` and
//! `restore_locks`. If one of these steps fails, the mount does not record the new start, so the
//! next renewal of the lease repeats all of them.
//!
//! If a group replies `StaleSession` or `Evicted` to an attempt, it has not executed this attempt.
//! But the group may have executed an earlier attempt whose reply was lost with the connection. If
//! there may be such an attempt, the client asks the group for the outcome before it sends the
//! request again, see `request`.

pub(crate) mod acknowledged;
pub(crate) mod change_requests;
mod compare_slots;
pub(crate) mod ids;
mod kept_requests;
pub(crate) mod renewal;
mod replay;
pub(crate) mod request;
mod restore_locks;
mod restore_opens;
pub(crate) mod slots;
pub(crate) mod table;

//! A replicated log of commands by the Raft protocol. Its 1, 3 or 5 members apply the same commands
//! in the same order.
//!
//! This crate is responsible for votes, entries and snapshots on disk, elections, and the members.
//! [`Member`] is the whole interface. The interface does not name the library that implements Raft
//! (`openraft`), so that the library can be replaced. This crate is not responsible for the meaning
//! of commands ([`StateMachine`]) and connections ([`Transport`]).
//!
//! `docs/design/0018-replicated-management.md` has the reasons for the design, and the failure
//! cases. `docs/format/consensus.md` describes the files.

mod limits;
mod log_contents;
mod log_file;
mod log_store;
mod member;
pub mod messages;
mod peers;
mod raft_types;
mod runtime;
mod snapshot_end;
mod state_store;
mod stopped;

pub use limits::MAX_MESSAGE_BYTES;
pub use member::{LogStatus, Member, MemberSettings, MemberStatus, ProposeError};
pub use peers::Transport;
pub use skep_format::consensus::LogPosition;
pub use state_store::StateMachine;
pub use stopped::{StoredState, has_log, has_snapshot, read_state, replace_member};

#[cfg(test)]
mod tests;

//! Pure decisions about the cluster: what management knows and how it changes ([`state`]), who
//! answers and how much space there is ([`reachability`]), which groups a new file lies on
//! ([`placement`]), what patterns may be asked for ([`patterns`]) and how people write them
//! ([`pattern_text`]), where in which chunk file each byte of a file lies ([`striping`]), what
//! locks make of an owner's ranges ([`lock_ranges`]), who waits for whom in a cycle
//! ([`deadlock`]), and which settings there are ([`settings`]).
//!
//! Architecture invariant: nothing here reads a clock, draws a random number, or does I/O. Times
//! and seeds are arguments, so a simulator and a test drive the same code as the real services.

pub mod command;
pub mod deadlock;
pub mod limits;
pub mod lock_ranges;
pub mod pattern_text;
pub mod patterns;
pub mod placement;
pub mod reachability;
pub mod settings;
pub mod state;
pub mod striping;

pub use command::{Command, Outcome};
pub use placement::Candidates;
pub use reachability::SoftState;
pub use state::ClusterState;

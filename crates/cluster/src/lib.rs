//! Pure decisions about the cluster:
//!
//! - [`state`]: the durable state of management, changed by [`command`]s.
//! - [`reachability`]: the soft state of management: reachability and free space.
//! - [`patterns`]: from a pattern request to the stripe pattern of a file; [`pattern_text`]:
//!   requests as text.
//! - [`placement`]: the choice of groups for a new file.
//! - [`striping`]: the chunk file and offset of each byte of a file.
//! - [`lock_ranges`]: the locked ranges of an owner in a file.
//! - [`deadlock`]: deadlock cycles over several metadata targets.
//! - [`settings`]: the settings of the cluster by name.
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

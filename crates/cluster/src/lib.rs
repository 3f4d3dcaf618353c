//! Pure decision logic of the cluster:
//!
//! - [`state`]: the durable state of management, which [`command`]s change.
//! - [`reachability`]: the soft state of management: reachability and free space.
//! - [`capacity_pools`]: the class of a target by its free bytes and inodes.
//! - [`groups`]: the rules for changes of a group's members.
//! - [`lease_times`]: the times of the leases in a metadata group.
//! - [`losses`]: the choice of a primary when all members of a group may lack records.
//! - [`patterns`]: resolves a pattern request to the stripe pattern of a file.
//! - [`pattern_text`]: the text form of pattern requests.
//! - [`placement`]: chooses the groups of a new file.
//! - [`striping`]: maps each byte of a file to a chunk file and an offset.
//! - [`lock_ranges`]: the locked ranges of one owner in one file.
//! - [`deadlock`]: finds deadlock cycles that span several metadata targets.
//! - [`problems`]: the problems that a cluster map shows, with their remedies.
//! - [`outage_effect`]: the operations that wait because of the outage of a service.
//! - [`settings`]: the settings of the cluster by name.
//! - [`versions`]: the versions of the maps that management publishes.
//!
//! Architecture invariant: no function here reads a clock, draws a random number, or does I/O.
//! Times and seeds are arguments, so simulator and tests run the same code as the services.

pub mod capacity_pools;
pub mod command;
pub mod deadlock;
pub mod groups;
pub mod lease_times;
pub mod limits;
pub mod lock_ranges;
pub mod losses;
pub mod outage_effect;
pub mod pattern_text;
pub mod patterns;
pub mod placement;
pub mod problems;
pub mod reachability;
pub mod settings;
pub mod state;
pub mod striping;
pub mod versions;

pub use command::{Command, Outcome, Proposal, RequestId};
pub use placement::Candidates;
pub use reachability::SoftState;
pub use state::ClusterState;

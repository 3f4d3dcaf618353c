//! Simulation of one metadata group of two or three members, with leases, take-over, return and
//! copies of the store.
//!
//! Each member is a separate process with the roles of the real service: primary
//! ([`skep_metadata::target::MetadataTarget`]), backup
//! ([`skep_metadata::shipping::backup::Backup`]) and receiver of a copy
//! ([`skep_metadata::shipping::copy_receiver::CopyReceiver`]). Members ask management for changes
//! of the group, such as a new primary, and management decides by the rules of
//! [`skep_cluster::groups`] and [`skep_cluster::losses`]. Unlike in the other simulation
//! ([`mod@crate::run`]), no part of the simulation decides when a member takes over. So a previous
//! primary may still run, with an old cluster map, while its successor serves.
//!
//! - `knobs`: the values that a seed determines, and the bugs that tests plant.
//! - `cluster`: the state of a run and its events.
//! - `messages`: messages between processes, and links that lose, delay or duplicate messages.
//!   `late_requests`: requests to management that arrive after a power loss of their sender.
//! - `member`, `roles`, `actions`, `requests`: the process of a member, its roles, the actions of
//!   the roles, and its requests.
//! - `authority`: the model of management. `leaders`: changes of its leader. `published`: checks of
//!   its maps.
//! - `client`, `workload`: clients and their operations. `sharing`: files that several clients have
//!   open, and notifications about them.
//! - `nemesis`: the choice of faults. `isolation`: faults that aim at the rules of leases. `disks`:
//!   disks that hang or are full, and batches that wait for them.
//! - `ledger`: the checks.
//!
//! # Checks
//! - After a primary has replied to a client, no primary of an earlier term replies.
//! - A member that becomes the primary has every change about which a client has got a reply, and
//!   no records of another log. There is one exception: if all serving members have lost power at
//!   one time, the new primary needs only the changes with a durable reply. The exception does not
//!   apply if only the new primary has lost power, even if this primary serves alone afterwards. At
//!   the time of the power loss, another member may have served.
//! - All replies are linearizable, and each operation takes effect once (`crate::witness`). The
//!   checks also cover opens and file locks, because a take-over must not lose any of these.
//! - When a client receives the reply to an open of a shared file, each other client that has the
//!   file open was notified that the file is shared.
//! - The store of a member equals the store of the group at the same record. The ledger checks this
//!   when the member's copy is complete, when management marks the member as in sync, when the
//!   member takes over, and at the end of the run.
//! - Two published maps with one version are equal, and no later version shows an earlier epoch.
//! - After the end of the faults, all members serve.
//!
//! The simulation does not cover other groups, storage targets with data, and sessions that end. A
//! process that does not reach management starts with the newest map that it has stored.

mod actions;
mod authority;
mod client;
mod cluster;
mod disks;
mod isolation;
mod knobs;
mod late_requests;
mod leaders;
mod ledger;
mod member;
mod messages;
mod nemesis;
mod promises;
mod published;
mod requests;
mod roles;
mod sharing;
mod workload;

pub use cluster::{GroupOptions, GroupReport, run_group};
pub use knobs::GroupBug;

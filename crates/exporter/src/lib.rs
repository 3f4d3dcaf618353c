//! Shows the figures of a process to other programs: as an HTTP page for Prometheus and its
//! relatives ([`http`]), and as a message for `skep stats` ([`message`]). Shows the records of
//! single operations ([`traces`]). Also reads the figures of the host and of the process from
//! `/proc` ([`host`], [`process`]).
//!
//! The crate does not own the counting (`skep-metrics`) or the address of the page (a setting of
//! each service, an option of the mount).

pub mod host;
pub mod http;
pub mod message;
pub mod process;
pub mod traces;

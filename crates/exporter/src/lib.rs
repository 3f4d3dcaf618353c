//! Provides the statistics of a process to other programs in two forms: as an HTTP page for
//! Prometheus ([`http`]), and as a message for `skep stats` ([`message`]). The crate also provides
//! the records of single operations ([`traces`]), and reads statistics of the host and of the
//! process from `/proc` ([`host`], [`process`]). [`tls`] encrypts connections, and
//! [`failed_accepts`] limits the log of listeners. [`log_pauses`] logs that the process did not run
//! for some time.
//!
//! `skep-metrics` does the counting. The address of the page is a setting of each service, and an
//! option of the mount.

pub mod failed_accepts;
pub mod host;
pub mod http;
pub mod message;
mod pauses;
pub mod process;
pub mod tls;
pub mod traces;

pub use pauses::log_pauses;
